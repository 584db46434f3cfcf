//! The pages of a checkpoint as a source of guest memory that is loaded while the guest runs.
//!
//! All files of the checkpoint and its bases stay open until all is loaded. What is read is compared with its digest first, as when all
//! memory is loaded before the guest runs; damage is only found later.

use checkpoint::{Checkpoint, CheckpointError};
use dsm::{Give, LoadError, Source};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;

/// The pages of a checkpoint.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) checkpoint: Arc<Checkpoint>,
    pub(super) folder: PathBuf,
}

/// What keeps a guest from going on that runs already.
#[derive(Debug, Error)]
#[error("read memory while the guest runs (--restore without --lazy verifies all of it first)")]
struct NotRead(#[source] CheckpointError);

/// Why a piece is not given.
enum Refused {
    Read(CheckpointError),
    Taker(LoadError),
}

impl From<CheckpointError> for Refused {
    fn from(error: CheckpointError) -> Self {
        Self::Read(error)
    }
}

impl Source for Pages {
    fn name(&self) -> String {
        format!("the checkpoint {}", self.folder.display())
    }

    fn has(&self, frames: Range<u64>) -> bool {
        self.checkpoint.has(frames)
    }

    fn read(&self, frames: Range<u64>, give: &mut Give<'_>) -> Result<(), LoadError> {
        let read = self.checkpoint.read_piece(frames, &mut |first, bytes: &[u8]| {
            give(first, bytes).map_err(Refused::Taker)
        });
        read.map_err(|refused| match refused {
            Refused::Read(error) => LoadError::Source(Box::new(NotRead(error))),
            Refused::Taker(error) => error,
        })
    }
}
