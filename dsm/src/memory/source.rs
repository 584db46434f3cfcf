//! Where the contents of memory are that is not here yet, and why they do not come.

use crate::kernel::UffdError;
use std::error::Error as AnyError;
use std::fmt::Debug;
use std::io::Error;
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

/// Takes the contents of neighbouring frames: the first of them, and the bytes of their pages.
pub type Give<'a> = dyn FnMut(u64, &[u8]) -> Result<(), LoadError> + 'a;

/// Where the contents of memory are. Several threads may read at the same time.
pub trait Source: Debug + Send + Sync {
    /// For a person.
    fn name(&self) -> String;
    /// Whether any page of these frames is not zero.
    fn has(&self, frames: Range<u64>) -> bool;
    /// Gives the pages of these frames, each once, but for those that are zero. What is given is what was kept, or nothing is.
    ///
    /// # Errors
    /// They are damaged or cannot be read; or what `give` says.
    fn read(&self, frames: Range<u64>, give: &mut Give<'_>) -> Result<(), LoadError>;
}

/// Why the contents of memory do not come. No guest goes on without them.
#[derive(Debug, Error)]
pub enum LoadError {
    /// They are damaged or cannot be read.
    #[error(transparent)]
    Source(Box<dyn AnyError + Send + Sync>),
    /// The storage where they are hangs.
    #[error("{from} has not answered for {waited:.1?}")]
    Silent {
        /// Where they are.
        from: String,
        /// For how long somebody has waited.
        waited: Duration,
    },
    /// They cannot be put where they belong.
    #[error("write what was read into guest memory")]
    Fill(#[source] Error),
    /// Nobody would hear of touches of memory that is not here.
    #[error("watch memory that is not here yet")]
    Watch(#[from] UffdError),
    /// A thread for it cannot be made.
    #[error("start the threads that load memory")]
    Start(#[source] Error),
    /// The frames are none of this memory, or are loaded already.
    #[error("load memory that is not to be loaded")]
    Layout,
}
