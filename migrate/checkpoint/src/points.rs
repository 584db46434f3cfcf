//! Where writing a checkpoint can be interrupted, for tests that do.

use std::fmt::Debug;

/// A moment between two steps of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// The file of a part exists, with its head.
    PartCreated,
    /// A chunk of pages is in the file of a part.
    ChunkWritten,
    /// Index and trailer are in the file of a part.
    IndexWritten,
    /// The file of a part is on stable storage.
    PartSynced,
    /// The manifest is in a file of another name.
    ManifestWritten,
    /// That file is on stable storage.
    ManifestSynced,
    /// The file has its name: the checkpoint is whole.
    Renamed,
}

impl Point {
    /// All of them, in their order.
    pub const ALL: [Self; 7] = [
        Self::PartCreated,
        Self::ChunkWritten,
        Self::IndexWritten,
        Self::PartSynced,
        Self::ManifestWritten,
        Self::ManifestSynced,
        Self::Renamed,
    ];
}

/// Hears of each point when it is reached. A test stops or ends its process there.
pub trait Points: Send + Debug {
    /// The step before this point is done, the next has not begun.
    fn reach(&self, point: Point);
}

/// Does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPoints;

impl Points for NoPoints {
    fn reach(&self, _: Point) {}
}
