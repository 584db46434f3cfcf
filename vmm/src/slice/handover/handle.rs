//! How vCPUs are moved from outside.
//!
//! ```text
//!   move --refused
//!     \--begun --settled--> moved
//!           |\--failed--> given up: it runs where it was
//!           \--GIVE_UP_LIMIT--> given up; or, behind the flip, --SETTLE_LIMIT--> moved, but nobody says so
//! ```

use super::Handovers;
use crate::control::Reason;
use crate::slice::operations::Ongoing;
use crate::slice::refusing::Explains;
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use migrate::handover::{Coordinator, Outcome, Refusal};
use std::sync::{Arc, Weak};
use std::time::Duration;
use thiserror::Error;
use wire::{SliceId, VcpuId};

/// For the vCPU to be at its new place.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(15);
/// For all slices to have heard of it then.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// Why a vCPU is not where it was asked to be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(in crate::slice) enum MoveError {
    /// Nothing was begun.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The VM would survive the loss of that slice, and is to do so still.
    #[error("{0} has devices only: it has no memory of the VM")]
    DevicesOnly(SliceId),
    /// It runs where it was.
    #[error("it was not moved and runs on where it was: {0}")]
    GivenUp(String),
    /// It is there, but not all slices say that they know.
    #[error("it was moved, but not all slices have said within {SETTLE_LIMIT:?} that they know")]
    Silent,
    /// There is no guest to move.
    #[error("the VM is over, or has not begun")]
    Over,
}

impl Explains for MoveError {
    fn reason(&self) -> Reason {
        match self {
            Self::Refused(refusal) => refusal.reason(),
            Self::DevicesOnly(_) => Reason::HostUnfit,
            Self::GivenUp(_) => Reason::Failed,
            Self::Silent => Reason::Silent,
            Self::Over => Reason::Over,
        }
    }
}

impl MoveError {
    /// None if it is there.
    pub(super) fn of(outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Moved => None,
            Outcome::GivenUp(why) => Some(Self::GivenUp(why)),
        }
    }
}

/// Who asked waits here; gives how long it took.
pub(super) type Reply = Sender<Result<Duration, MoveError>>;

/// Moves the vCPUs of a VM. Clones are of the same VM, and do not keep it alive.
#[derive(Clone, Debug)]
pub(in crate::slice) struct MoveHandle(pub(in crate::slice) Weak<Handovers>);

impl MoveHandle {
    /// Moves begun so far, by those that coordinated before too.
    pub(in crate::slice) fn begun(&self) -> u64 {
        self.0.upgrade().map_or(0, |handovers| handovers.lock().coordinator.begun())
    }

    /// So many moves have been begun by those that coordinated before.
    pub(in crate::slice) fn count_from(&self, begun: u64) {
        if let Some(handovers) = self.0.upgrade() {
            handovers.lock().coordinator = Coordinator::after(begun);
        }
    }

    /// Brings a vCPU to another slice, as a part of an operation that goes on until all slices know.
    pub(in crate::slice) fn move_to(
        &self,
        vcpu: VcpuId,
        to: SliceId,
        ongoing: &Arc<Ongoing>,
    ) -> Result<Duration, MoveError> {
        let handovers = self.0.upgrade().ok_or(MoveError::Over)?;
        let (reply, answer) = bounded(1);
        handovers.begin(vcpu, to, (reply, Arc::clone(ongoing)))?;
        if let Ok(result) = answer.recv_timeout(GIVE_UP_LIMIT) {
            return result;
        }
        handovers.give_up(&format!("it is not there after {GIVE_UP_LIMIT:?}"));
        match answer.recv_timeout(SETTLE_LIMIT) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(MoveError::Silent),
            Err(RecvTimeoutError::Disconnected) => Err(MoveError::Over),
        }
    }
}
