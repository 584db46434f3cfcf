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

use thiserror::Error;
use wire::control::InterruptEvent;
use wire::{Epoch, SliceId, VcpuId};

/// One move of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// Counts the moves that were begun, of any vCPU.
    pub number: u64,
    /// The vCPU.
    pub vcpu: VcpuId,
    /// Where it runs.
    pub from: SliceId,
    /// Where it is to run.
    pub to: SliceId,
}

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

/// What slices tell each other about one vCPU. `E` is what arrives at a vCPU, `S` its saved state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message<E, S> {
    /// To the target: can you take it?
    Prepare(Move),
    /// To the coordinator: yes.
    Ready(u64),
    /// To the source: stop it and send its state to the target.
    Stop(Move),
    /// To the target: its state.
    State(u64, S),
    /// To the coordinator: it is restored.
    Installed(u64),
    /// To the coordinator, from source or target: this cannot be done, and why.
    Failed(u64, String),
    /// To the target: the move is given up.
    Discard(u64),
    /// To the source: the move is given up, it runs on.
    Resume(u64),
    /// To all: the placement of this epoch is in force, in which the vCPU is at the target.
    Flip(Move, Epoch),
    /// To the source: the sender knows of the flip.
    Marker(u64),
    /// To the target: the marker of this slice has come here.
    MarkerOf(u64, SliceId),
    /// To the coordinator: all markers have come.
    Settled(u64),
    /// Something for the vCPU, from a slice that takes the receiver for its place.
    Event(E),
    /// Something for the vCPU that went to its former place, and who sent it.
    Straggler(SliceId, E),
}

impl<E, S> Message<E, S> {
    /// Its name, for errors.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Prepare(_) => "Prepare",
            Self::Ready(_) => "Ready",
            Self::Stop(_) => "Stop",
            Self::State(..) => "State",
            Self::Installed(_) => "Installed",
            Self::Failed(..) => "Failed",
            Self::Discard(_) => "Discard",
            Self::Resume(_) => "Resume",
            Self::Flip(..) => "Flip",
            Self::Marker(_) => "Marker",
            Self::MarkerOf(..) => "MarkerOf",
            Self::Settled(_) => "Settled",
            Self::Event(_) => "Event",
            Self::Straggler(..) => "Straggler",
        }
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
