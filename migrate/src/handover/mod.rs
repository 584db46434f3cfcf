//! The hand-over of a vCPU to another slice while the guest runs. Decided here, done by the slice; nothing here waits,
//! reads a clock or sends.
//!
//! ```text
//!   coordinator         source                    target                   every member
//!     |--Prepare--------------------------------->|
//!     |<-----------------------------------Ready--|
//!     |--Stop------------>| out of the guest, saved
//!     |                   |--State--------------->| restored; does not run yet
//!     |<-------------------------------Installed--|
//!     |--Flip (the placement of the next epoch)-------------------------------->| all
//!     |                   | becomes a ghost       | runs                        |
//!     |                   |<--Marker--------------------------------------------| sends to the target from now on
//!     |                   |--MarkerOf(slice)----->| takes that slice's own events from now on
//!     |<---------------------------------Settled--| all markers are here
//! ```
//! Until the flip the coordinator may give up: the target discards what it has, the source resumes, and the guest has
//! lost nothing but time. From the flip on there is no way back, and none is needed: what is left to do cannot fail,
//! unless a slice with vCPUs or memory is lost, which ends the VM. Nobody waits for one that had devices only.
//!
//! **One runner.** The source runs until `Stop` and again after `Resume`, the target from the flip on. The coordinator
//! says one of the two, never both.
//!
//! **No interrupt is lost.** While the vCPU is stopped the source keeps what comes for it. At the flip it sends that
//! on to the target, and later whatever comes from slices that had not heard of the flip.
//!
//! **Each sender's events stay in order.** INIT and start-up, or an interrupt after a start-up, mean something else the
//! other way round. Events that a slice sent before it heard of the flip go by the source, later ones go straight, and
//! could overtake them. So a slice that hears of the flip sends a marker along the old way. The target holds what comes
//! straight from a slice until that slice's marker has come round. Channels between two slices keep their order, so
//! nothing of that slice comes by the source any more.
//!
//! **Stragglers are bounded.** The next move begins once all markers are at the target. Then no event is on an old
//! way, and all slices know the placement. What waits is bounded, too: it is kept once, as in an APIC, and INIT does away
//! with what came before it.
//!
//! The number of a move tells it from an earlier one that was given up, whose frames may still be on their way.

mod coordinator;
mod effects;
mod member;
mod planted;
#[cfg(test)]
mod tests;
mod waiting;

pub use coordinator::{Coordinator, Outcome, Refusal, Verdict};
pub use effects::{Effect, Input};
pub use member::Member;
#[cfg(feature = "planted-bugs")]
pub use planted::PlantedBug;
pub use wire::control::{Move, VcpuMessage as Message};

use thiserror::Error;
use wire::control::InterruptEvent;
use wire::{SliceId, VcpuId};

/// What arrives at a vCPU.
pub trait VcpuEvent: Clone + PartialEq {
    /// Whether it undoes what arrived before and was not taken: INIT.
    fn resets(&self) -> bool;
}

impl VcpuEvent for InterruptEvent {
    fn resets(&self) -> bool {
        *self == Self::Init
    }
}

/// A message that cannot happen among slices that follow the protocol: the VM must be stopped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{from} sends {message} of the hand-over of {vcpu}: {why}")]
pub struct HandoverError {
    /// The sender.
    pub from: SliceId,
    /// What it sent.
    pub message: &'static str,
    /// The vCPU.
    pub vcpu: VcpuId,
    /// What is wrong with it.
    pub why: &'static str,
}
