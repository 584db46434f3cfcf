//! Why a slice cannot join.

use super::rest::Unrest;
use dsm_protocol::CannotJoin;
use thiserror::Error;
use wire::SliceId;

/// Why an engine does not take a slice in.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JoinError {
    /// It was not brought to rest.
    #[error("the memory engine was not brought to rest")]
    Runs,
    /// It was, and something is under way again.
    #[error("the memory engine is not at rest: {0}")]
    NotAtRest(Unrest),
    /// Homes are to move, or pages to come to their home.
    #[error("homes are still moving, or pages on the way to them")]
    HomesMove,
    /// One of the two has devices only, and no part in memory.
    #[error("no memory goes between the two slices")]
    DevicesOnly,
    /// The node does not take it in.
    #[error("share memory with a slice")]
    Refused(#[from] CannotJoin),
    /// The transport does not take it.
    #[error("reach {peer}: {why}")]
    NoLink {
        /// The slice.
        peer: SliceId,
        /// What the transport said.
        why: String,
    },
    /// The engine has stopped, or did not answer in time.
    #[error("the memory engine does not answer")]
    NoAnswer,
}
