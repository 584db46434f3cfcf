//! Why there is no snapshot. `snapshot` beside this makes them.

use super::rest::Unrest;
use crate::memory::Loaded;
use thiserror::Error;

/// Why there is no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// One at a time.
    #[error("memory is protected for another snapshot still")]
    Busy,
    /// What memory was is not known yet.
    #[error(
        "memory is being read from the checkpoint that the VM goes on from: {} of {} pieces are here; ask again later, or have the guest stand still meanwhile (--stop)",
        .0.pieces - .0.left, .0.pieces
    )]
    Loading(Loaded),
    /// It was not protected, or is no longer.
    #[error("memory is not protected")]
    NotProtected,
    /// Something is under way.
    #[error("the memory engine is not at rest: {0}")]
    NotAtRest(Unrest),
    /// The kernel does not protect memory; the log says why.
    #[error(
        "the kernel refuses to protect guest memory: the slice's log says why; a checkpoint with --stop needs no protection"
    )]
    Refused,
    /// The engine has stopped, or did not answer in time.
    #[error("the memory engine does not answer")]
    NoAnswer,
}
