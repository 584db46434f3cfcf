//! Why something is not done to the VM, as programs are told it. Each error says so beside its own definition.

use super::one_line;
use super::operations::{Busy, Operation};
use crate::control::{Activity, Reason, Refusal};
use migrate::{cut, handover, plan};
use std::error::Error;

/// An error that programs are told of.
pub(super) trait Explains: Error + Sized {
    /// Why, for programs.
    fn reason(&self) -> Reason;

    /// The same with words for people.
    fn refusal(&self) -> Refusal {
        Refusal::new(self.reason(), one_line(self))
    }
}

/// This part of the request asks for something that cannot be.
pub(super) fn invalid(field: &str) -> Reason {
    Reason::Invalid { field: field.into() }
}

impl From<Operation> for Activity {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Cut => Self::Pausing,
            Operation::Move => Self::Moving,
            Operation::Checkpoint => Self::Checkpointing,
            Operation::Hotplug => Self::ChangingVcpus,
        }
    }
}

impl Explains for Busy {
    fn reason(&self) -> Reason {
        match self.0 {
            Operation::Cut => Reason::Paused,
            other => Reason::Busy(other.into()),
        }
    }
}

impl Explains for plan::Refusal {
    fn reason(&self) -> Reason {
        match self {
            Self::Unknown(_) => invalid("slice"),
            Self::NotThere { .. } => invalid("to"),
            Self::LastSlice(_) | Self::Stuck { .. } => Reason::NoCapacity,
            Self::Useless { .. } => Reason::HostUnfit,
            Self::NothingToDo(_) => Reason::NothingToDo,
            Self::TooMany(_) => Reason::Unsupported,
        }
    }
}

impl Explains for handover::Refusal {
    fn reason(&self) -> Reason {
        match self {
            Self::Busy(_) => Reason::Busy(Activity::Moving),
            Self::ThereAlready(..) => Reason::NothingToDo,
            Self::Placement(_) => invalid("slice"),
            Self::Unknown(_) => invalid("vcpu"),
        }
    }
}

impl Explains for cut::Refusal {
    fn reason(&self) -> Reason {
        match self {
            Self::Busy => Reason::Paused,
            Self::Elsewhere(slice) => Reason::NotLeader { leader: Some(slice.0) },
            Self::Stays(_) | Self::NotToThat(_) | Self::Member(_) => invalid("slice"),
            Self::NoMove(_) => Reason::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{SliceId, VcpuId};

    #[test]
    fn reasons_follow_from_what_happened() {
        assert_eq!(Busy(Operation::Cut).reason(), Reason::Paused);
        let moving = Reason::Busy(Activity::Moving);
        assert_eq!(Busy(Operation::Move).reason(), moving);
        assert_eq!(handover::Refusal::Busy(VcpuId(1)).reason(), moving);
        assert_eq!(plan::Refusal::LastSlice(SliceId(0)).reason(), Reason::NoCapacity);
        let elsewhere = cut::Refusal::Elsewhere(SliceId(3)).refusal();
        assert_eq!(elsewhere.reason, Reason::NotLeader { leader: Some(3) });
        assert_eq!(elsewhere.message, "slice3 coordinates: ask there");
    }
}
