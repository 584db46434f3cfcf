//! Why the state is not changed.

use crate::ids::{HostId, ReservationId, VmId};
use thiserror::Error;

/// Why the state is not changed. Nothing is, then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum ClusterError {
    /// Unknown host.
    #[error("there is no {0}")]
    NoHost(HostId),
    /// Unknown VM.
    #[error("there is no running {0}")]
    NoVm(VmId),
    /// It runs already.
    #[error("{0} runs already")]
    Runs(VmId),
    /// It is unknown, has expired, or was cancelled.
    #[error("{0} is no more: it has expired or was given up")]
    Stale(ReservationId),
    /// A move that can no longer be given up, or is not ready to be completed.
    #[error("the move of {0} flips: it can only go on")]
    Flips(ReservationId),
    /// A move that is not ready to be completed.
    #[error("the move of {0} has not flipped")]
    NotFlipped(ReservationId),
    /// The host has changed since the decision.
    #[error("{host} has changed since this was decided: generation {now}, not {decided}")]
    Generation {
        /// The host.
        host: HostId,
        /// What it was decided on.
        decided: u64,
        /// What it is.
        now: u64,
    },
    /// There is no room, or it takes nothing.
    #[error("{0} has no room for it, or takes nothing")]
    NoRoom(HostId),
    /// A placement that is none: not what the VM wants, a host twice, or no core beside the bootstrap.
    #[error("the placement does not add up to what the VM wants")]
    NotThePlacement,
    /// The slice does not have that.
    #[error("{vm} does not have that on {host}")]
    NotThere {
        /// The VM.
        vm: VmId,
        /// Where the slice is.
        host: HostId,
    },
}
