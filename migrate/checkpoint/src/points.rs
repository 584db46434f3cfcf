//! Where writing a checkpoint can be interrupted, for tests that do.

use std::fmt::Debug;
use std::str::FromStr;

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

    /// Its name, as the command line takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PartCreated => "part-created",
            Self::ChunkWritten => "chunk-written",
            Self::IndexWritten => "index-written",
            Self::PartSynced => "part-synced",
            Self::ManifestWritten => "manifest-written",
            Self::ManifestSynced => "manifest-synced",
            Self::Renamed => "renamed",
        }
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|point| point.name() == text);
        found.ok_or_else(|| format!("write {}", Self::ALL.map(Self::name).join(", ")))
    }
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
