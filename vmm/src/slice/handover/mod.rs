//! vCPUs move between slices while the guest runs. [`migrate::handover`] decides; this does it.
//!
//! ```text
//!   control socket --MoveHandle--> [Handovers of the slice that coordinates]
//!                                        |  ^ frames
//!                                        v  |
//!   frames of peers, and frames for vCPUs that leave ---engine's thread---> [Handovers of each slice: a member a vCPU]
//!                                                                              |  ^
//!                                                            order: stop, ...  v  |  answer
//!                                                                          [worker thread] --> Machine
//! ```
//! **In order.** What a slice sends to a vCPU and the marker that says that nothing more comes on the old way are sent by
//! one thread, the engine's. It asks for the receiver when the frame leaves ([`dsm::Uplink::route`]). So no frame for a
//! former place can be behind the marker.
//!
//! **Nothing blocks.** To stop a vCPU takes as long as its last access to memory, which the engine must serve. So a thread
//! of its own does what the machine is asked for.

mod handle;
#[cfg(test)]
mod tests;
mod turn;
mod worker;

pub(super) use handle::{MoveError, MoveHandle};

use super::SliceError;
use super::channels::Channels;
use super::events::SliceEvent;
use super::operations::Ongoing;
use crate::machine::Machine;
use crossbeam_channel::Sender;
use handle::Reply;
use migrate::handover::{Coordinator, Input, Member, Message, Move};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use turn::Turn;
use wire::control::InterruptEvent;
use wire::{SliceId, VcpuId};
use worker::Order;

/// A saved vCPU, encoded.
type State = Vec<u8>;
/// What slices say of a vCPU.
pub(super) type VcpuMessage = Message<InterruptEvent, State>;
/// What happens to a slice's part in the moves of a vCPU.
type VcpuInput = Input<InterruptEvent, State>;

/// Who asked for the move that goes on.
#[derive(Debug)]
struct Asked {
    reply: Reply,
    began: Instant,
    /// Nothing else is done to the VM meanwhile.
    ongoing: Arc<Ongoing>,
}

/// What one lock holds.
#[derive(Debug)]
struct Parts {
    /// This slice's part in the moves of each vCPU.
    members: Vec<Member<InterruptEvent, State>>,
    /// Of the slice that coordinates.
    coordinator: Coordinator,
    asked: Option<Asked>,
    /// While the guest runs.
    worker: Option<Sender<(VcpuId, Order)>>,
}

/// The parts of one slice in all hand-overs.
#[derive(Debug)]
pub(crate) struct Handovers {
    parts: Mutex<Parts>,
    channels: Arc<Channels>,
    machine: Arc<OnceLock<Machine>>,
}

impl Handovers {
    /// Of a slice with the placement of the start.
    pub(super) fn new(channels: &Arc<Channels>, machine: &Arc<OnceLock<Machine>>) -> Self {
        let placement = channels.placement.load().clone();
        let local = channels.local();
        let members = placement.members().iter().copied().collect();
        let member = |(vcpu, place): (u32, &SliceId)| {
            let known = (placement.coordinator(), BTreeSet::clone(&members));
            Member::new(local, VcpuId(vcpu), known, (*place, placement.epoch()))
        };
        let members = (0..).zip(placement.vcpus()).map(member).collect();
        let parts = Parts { members, coordinator: Coordinator::new(), asked: None, worker: None };
        Self {
            parts: Mutex::new(parts),
            channels: Arc::clone(channels),
            machine: Arc::clone(machine),
        }
    }

    /// From now on vCPUs can leave and come. The thread does not keep the slice alive.
    pub(super) fn start(self: &Arc<Self>) -> Result<(), SliceError> {
        let failed = |source| SliceError::Io { what: "start the thread for hand-overs", source };
        let Some(machine) = self.machine.get().cloned() else { return Ok(()) };
        let (answers, failures) = (Arc::downgrade(self), Arc::downgrade(&self.channels));
        let answer = move |vcpu, input| {
            if let Some(handovers) = answers.upgrade() {
                handovers.turn().step(vcpu, input).end();
            }
        };
        let fail = move |text| {
            if let Some(channels) = failures.upgrade() {
                channels.event(SliceEvent::Fatal(text));
            }
        };
        let worker = worker::start(machine, answer, fail).map_err(failed)?;
        self.lock().worker = Some(worker);
        Ok(())
    }

    /// The VM is over: nothing moves any more, and who waits for that is told.
    pub(super) fn end(&self) {
        let mut parts = self.lock();
        parts.worker = None;
        if let Some(asked) = parts.asked.take() {
            asked.tell(Err(MoveError::Over));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// On the engine's thread: something for a vCPU is to leave this slice. To which one, unless that is seen to here.
    pub(super) fn local(&self, vcpu: VcpuId, event: InterruptEvent) -> Option<SliceId> {
        self.turn().step(vcpu, Input::Local(event)).end_of_event()
    }

    /// On the engine's thread: what another slice says.
    pub(super) fn message(&self, from: SliceId, vcpu: VcpuId, message: VcpuMessage) {
        if message.is_for_coordinator() {
            return self.turn().decide(from, vcpu, &message).end_on_engine();
        }
        if is_event(&message) {
            self.channels.traffic.interrupts_in.fetch_add(1, Ordering::Relaxed);
        }
        self.turn().step(vcpu, Input::Message { from, message }).end_on_engine();
    }

    /// On the engine's thread: a slice is gone, and the VM goes on.
    pub(super) fn lost(&self, slice: SliceId) {
        let mut turn = self.turn();
        for vcpu in (0..).map(VcpuId).take(turn.parts.members.len()) {
            turn = turn.step(vcpu, Input::Lost(slice));
        }
        turn.end_on_engine();
    }

    /// Another slice decides about moves from now on. None goes on.
    pub(super) fn coordinates(&self, slice: SliceId) {
        self.all(|| Input::Coordinates(slice));
    }

    /// A slice has joined. No move goes on.
    pub(super) fn joined(&self, slice: SliceId) {
        self.all(|| Input::Joined(slice));
    }

    /// On the thread of cuts: a slice has left. No move goes on.
    pub(super) fn left(&self, slice: SliceId) {
        self.all(|| Input::Lost(slice));
    }

    /// The same for all vCPUs.
    fn all(&self, input: impl Fn() -> VcpuInput) {
        let mut turn = self.turn();
        for vcpu in (0..).map(VcpuId).take(turn.parts.members.len()) {
            turn = turn.step(vcpu, input());
        }
        turn.end();
    }

    /// Begins a move; the answer comes later.
    fn begin(
        &self,
        vcpu: VcpuId,
        to: SliceId,
        (reply, ongoing): (Reply, Arc<Ongoing>),
    ) -> Result<(), MoveError> {
        let mut turn = self.turn();
        if turn.parts.worker.is_none() {
            return Err(MoveError::Over);
        }
        if self.channels.bystanders.contains(&to) {
            return Err(MoveError::DevicesOnly(to));
        }
        let placement = self.channels.placement.load().clone();
        let verdict = turn.parts.coordinator.begin(vcpu, to, &placement)?;
        turn.parts.asked = Some(Asked { reply, began: Instant::now(), ongoing });
        turn.follow(vcpu, verdict).end();
        Ok(())
    }

    /// Gives up the move that goes on, if that is still possible.
    fn give_up(&self, why: &str) {
        let mut turn = self.turn();
        let Some(Move { vcpu, .. }) = turn.parts.coordinator.current() else { return };
        let verdict = turn.parts.coordinator.give_up(why);
        turn.follow(vcpu, verdict).end();
    }

    fn turn(&self) -> Turn<'_> {
        Turn::new(self, self.lock())
    }
}

/// Whether it brings a vCPU something.
fn is_event(message: &VcpuMessage) -> bool {
    matches!(message, Message::Event(_) | Message::Straggler(..))
}

impl Asked {
    fn tell(self, result: Result<Duration, MoveError>) {
        let Self { reply, ongoing, .. } = self;
        // Whoever is told may begin something else at once.
        drop(ongoing);
        // Whoever asked may have gone.
        let _ = reply.try_send(result);
    }
}
