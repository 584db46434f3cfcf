//! Where each chunk of guest memory is: one atomic byte for each 2 MiB of the memory file.
//!
//! ```text
//!   outside                               (left as it is: part of a chunk, or memory of another home)
//!   off file --brought into the file--> plain <--collapse, or its failure--> huge
//!                                          |                                   |
//!                                          +------> watched <------------------+
//!                                                      |
//!                                                      +--private again--> plain or huge
//! ```
//!
//! The engine's thread moves chunks between all states. The thread that collapses chunks ([`super::huge`]) only
//! exchanges `Plain` for `Huge`, and gives way if the engine was faster.

use crate::kernel::HUGE;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// In the file; to be left as it is.
    Outside,
    /// Outside the file, in memory of the kind that the user chose.
    OffFile,
    /// In the file, not watched.
    Plain,
    /// The same, and on a huge page.
    Huge,
    /// In the file, and watched.
    Watched,
}

impl Place {
    fn from_byte(byte: u8) -> Self {
        [Self::Outside, Self::OffFile, Self::Plain, Self::Huge, Self::Watched][usize::from(byte)]
    }
}

/// A [`Place`] for each 2 MiB of the memory file, by byte offset.
#[derive(Debug)]
pub(crate) struct Places(Vec<AtomicU8>);

impl Places {
    /// All chunks of so many bytes, `Outside`.
    pub(crate) fn new(bytes: usize) -> Self {
        Self((0..bytes.div_ceil(HUGE)).map(|_| AtomicU8::new(Place::Outside as u8)).collect())
    }

    pub(crate) fn get(&self, offset: usize) -> Place {
        Place::from_byte(self.0[offset / HUGE].load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, offset: usize, place: Place) {
        self.0[offset / HUGE].store(place as u8, Ordering::Release);
    }

    /// Exchanges one place for another. False if the chunk is somewhere else by now.
    pub(crate) fn exchange(&self, offset: usize, from: Place, to: Place) -> bool {
        let place = &self.0[offset / HUGE];
        let (from, to) = (from as u8, to as u8);
        place.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
