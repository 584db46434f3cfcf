//! Why a snapshot is not complete, and will not be.

use thiserror::Error;

/// What was to be read is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SnapshotLost {
    /// Nothing of it is watched any more.
    #[error("guest memory has changed while it was being read: it is shared with nobody any more")]
    Unwatched,
    /// The guest has waited for too long.
    #[error(
        "the guest stores faster than its memory is written, and would stand still; a checkpoint with --stop does not need to keep up"
    )]
    Slow,
}
