//! One turn of a slice's parts in hand-overs: an input, and all that follows from it here.
//!
//! ```text
//!   inputs --member--> effects --+--> the machine, the placement, the worker
//!     ^                          +--> frames, which leave when the turn ends
//!     +---- to this slice -------+
//! ```
//! Frames leave without the lock: a thread may wait there for room, which the engine makes, which may wait for the lock. The
//! engine's own thread never waits there, and its frames go before those of all others. So its frames leave with the
//! lock, in the order of turns. Frames of other threads may overtake each other: `Resume` of a move that is given up may be before
//! the `Stop` that it undoes, and members know that ([`migrate::handover`]).

use super::handle::MoveError;
use super::worker::Order;
use super::{Asked, Handovers, Parts, State, VcpuInput, VcpuMessage, is_event};
use crate::slice::events::SliceEvent;
use migrate::Change;
use migrate::handover::{Effect, Input, Message, Move, Outcome, Verdict};
use std::collections::VecDeque;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use wire::control::InterruptEvent;
use wire::{Control, Epoch, SliceId, VcpuId};

/// See the module's text.
pub(super) struct Turn<'a> {
    handovers: &'a Handovers,
    pub(super) parts: MutexGuard<'a, Parts>,
    inputs: VecDeque<(VcpuId, VcpuInput)>,
    frames: Vec<(SliceId, Control)>,
    /// Who asked for a move that is over, and what came of it. Told once the frames have left: the next move begins then, and
    /// its frames must not overtake what undoes this one.
    over: Option<(Asked, Outcome)>,
}

impl<'a> Turn<'a> {
    pub(super) fn new(handovers: &'a Handovers, parts: MutexGuard<'a, Parts>) -> Self {
        Self { handovers, parts, inputs: VecDeque::new(), frames: Vec::new(), over: None }
    }

    /// Takes an input.
    pub(super) fn step(mut self, vcpu: VcpuId, input: VcpuInput) -> Self {
        self.inputs.push_back((vcpu, input));
        self.take_inputs();
        self
    }

    /// Takes the inputs that wait, and those that follow from them.
    fn take_inputs(&mut self) {
        while let Some((vcpu, input)) = self.inputs.pop_front() {
            let place = usize::try_from(vcpu.0).expect("a vCPU id fits usize");
            let Some(member) = self.parts.members.get_mut(place) else {
                self.unfit(&format!("something came for {vcpu}, which the VM has not"));
                break;
            };
            match member.step(input) {
                Ok(effects) => {
                    effects.into_iter().for_each(|effect| self.perform(vcpu, effect));
                }
                Err(error) => {
                    self.unfit(&error.to_string());
                    break;
                }
            }
        }
    }

    /// On the coordinator: takes what a slice tells the coordinator.
    pub(super) fn decide(mut self, from: SliceId, vcpu: VcpuId, message: &VcpuMessage) -> Self {
        self.coordinate(from, vcpu, message);
        self.take_inputs();
        self
    }

    /// Takes what the coordinator says.
    pub(super) fn follow(mut self, vcpu: VcpuId, verdict: Verdict<InterruptEvent, State>) -> Self {
        self.obey(vcpu, verdict);
        self.take_inputs();
        self
    }

    /// Ends it: the frames leave.
    pub(super) fn end(self) {
        let Self { handovers, parts, frames, over, .. } = self;
        drop(parts);
        frames.iter().for_each(|(to, frame)| handovers.channels.send(*to, frame));
        tell(over);
    }

    /// The same on the engine's thread.
    pub(super) fn end_on_engine(self) {
        let Self { handovers, parts, frames, over, .. } = self;
        frames.iter().for_each(|(to, frame)| handovers.channels.send(*to, frame));
        drop(parts);
        tell(over);
    }

    /// The same for an event of this slice. If all that follows is that it goes to another slice, that one is given, and it
    /// has not left.
    pub(super) fn end_of_event(mut self) -> Option<SliceId> {
        let to = match &self.frames[..] {
            [(to, Control::Vcpu { message: Message::Event(_), .. })] => Some(*to),
            _ => None,
        };
        if to.is_some() {
            self.frames.clear();
        }
        self.end_on_engine();
        to
    }

    fn unfit(&self, text: &str) {
        self.handovers.channels.event(SliceEvent::Fatal(text.to_owned()));
    }

    fn perform(&mut self, vcpu: VcpuId, effect: Effect<InterruptEvent, State>) {
        match effect {
            Effect::Send { to, message } => self.send(vcpu, to, message),
            Effect::Prepare(Move { number, .. }) => {
                if self.parts.worker.is_some() {
                    return self.order(vcpu, Order::Prepare(number));
                }
                let why = "its guest does not run".to_owned();
                self.inputs.push_back((vcpu, Input::Prepared(number, Err(why))));
            }
            Effect::Place(one, epoch) => self.place(one, epoch),
            Effect::Deliver(event) => match self.handovers.machine.get() {
                Some(machine) => machine.deliver_local(vcpu, event.into()),
                None => tracing::warn!(%vcpu, "interrupt before the start"),
            },
            Effect::Stop(number) => self.order(vcpu, Order::Stop(number)),
            Effect::Resume => self.order(vcpu, Order::Resume),
            Effect::Install(number, state) => self.order(vcpu, Order::Install(number, state)),
            Effect::Discard => self.order(vcpu, Order::Discard),
            Effect::Run => self.order(vcpu, Order::Run),
            Effect::Forget => self.order(vcpu, Order::Forget),
        }
    }

    fn order(&self, vcpu: VcpuId, order: Order) {
        // Without a worker the VM is over.
        if let Some(worker) = &self.parts.worker
            && worker.try_send((vcpu, order)).is_err()
        {
            self.unfit(&format!("more is wanted of {vcpu} than can be done"));
        }
    }

    fn send(&mut self, vcpu: VcpuId, to: SliceId, message: VcpuMessage) {
        let channels = &self.handovers.channels;
        let local = channels.local();
        if to != local {
            if is_event(&message) {
                channels.traffic.interrupts_out.fetch_add(1, Ordering::Relaxed);
            }
            self.frames.push((to, Control::Vcpu { vcpu, message }));
        } else if message.is_for_coordinator() {
            self.coordinate(local, vcpu, &message);
        } else {
            self.inputs.push_back((vcpu, Input::Message { from: local, message }));
        }
    }

    fn coordinate(&mut self, from: SliceId, vcpu: VcpuId, message: &VcpuMessage) {
        let placement = self.handovers.channels.placement.load().clone();
        match self.parts.coordinator.message(from, message, &placement) {
            Ok(verdict) => self.obey(vcpu, verdict),
            Err(error) => self.unfit(&error.to_string()),
        }
    }

    fn obey(&mut self, vcpu: VcpuId, verdict: Verdict<InterruptEvent, State>) {
        // The placement of the verdict comes into force here when this slice hears of the flip, as on any other.
        for (to, message) in verdict.messages {
            self.send(vcpu, to, message);
        }
        let Some((one, outcome)) = verdict.outcome else { return };
        tracing::info!("{} from {} to {}: {outcome:?}", one.vcpu, one.from, one.to);
        if let Some(asked) = self.parts.asked.take() {
            self.over = Some((asked, outcome));
        }
    }

    fn place(&mut self, one: Move, epoch: Epoch) {
        let change = Change::Vcpu { vcpu: one.vcpu, to: one.to };
        if let Err(why) = self.handovers.channels.owner.advance(&[change], epoch) {
            let Move { vcpu, to, .. } = one;
            self.unfit(&format!("epoch {} cannot have {vcpu} on {to}: {why}", epoch.0));
        }
    }
}

fn tell(over: Option<(Asked, Outcome)>) {
    if let Some((asked, outcome)) = over {
        let took = asked.began.elapsed();
        asked.tell(MoveError::of(outcome).map_or(Ok(took), Err));
    }
}
