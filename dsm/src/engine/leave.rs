//! Why a slice cannot leave.

use super::rest::Unrest;
use dsm_protocol::CannotLeave;
use thiserror::Error;

/// Why an engine does not part with a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LeaveError {
    /// It was not brought to rest.
    #[error("the memory engine was not brought to rest")]
    Runs,
    /// It was, and something is under way again.
    #[error("the memory engine is not at rest: {0}")]
    NotAtRest(Unrest),
    /// Homes are to move, or pages to come to their home.
    #[error("homes are still moving, or pages on the way to them")]
    HomesMove,
    /// The slice still has a part in memory.
    #[error("part with a slice")]
    Refused(#[from] CannotLeave),
    /// The engine has stopped, or did not answer in time.
    #[error("the memory engine does not answer")]
    NoAnswer,
}
