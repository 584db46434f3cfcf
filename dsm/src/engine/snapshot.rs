//! Why there is no snapshot. `freezing` beside this makes them.

use super::rest::Unrest;
use thiserror::Error;

/// Why there is no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// One at a time.
    #[error("memory is protected for another snapshot still")]
    Busy,
    /// It was not protected, or is no longer.
    #[error("memory is not protected")]
    NotProtected,
    /// Something is under way.
    #[error("the memory engine is not at rest: {0}")]
    NotAtRest(Unrest),
    /// The kernel does not protect memory; the log says why.
    #[error("the kernel refuses to protect guest memory")]
    Refused,
    /// The engine has stopped, or did not answer in time.
    #[error("the memory engine does not answer")]
    NoAnswer,
}
