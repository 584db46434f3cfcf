//! Decides about moves, one at a time.
//!
//! ```text
//!         begin             Ready            Installed          Settled
//!   idle -------> preparing ------> moving -------------> flipped -------> idle (moved)
//!     ^               |                |
//!     +---------------+-- Failed, or given up: Discard, Resume
//! ```

use super::{HandoverError, Message, Move};
use crate::{Change, Placement, PlacementError};
use thiserror::Error;
use wire::{SliceId, VcpuId};

/// Why a move was not begun. Nothing has happened then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// One move at a time.
    #[error("{0} is being moved")]
    Busy(VcpuId),
    /// It would change nothing.
    #[error("{0} is on {1} already")]
    ThereAlready(VcpuId, SliceId),
    /// There would be no such placement.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// The VM has no such vCPU.
    #[error("the VM has no {0}")]
    Unknown(VcpuId),
}

/// How a move has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The vCPU is there.
    Moved,
    /// It is where it was, because of this.
    GivenUp(String),
}

/// What follows from a step: messages to send, and the end of the move if this is it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict<E, S> {
    /// Messages in their order, each with its receiver; some to the coordinator's own slice.
    pub messages: Vec<(SliceId, Message<E, S>)>,
    /// What comes into force now, on all members.
    pub placement: Option<Placement>,
    /// The end of the move.
    pub outcome: Option<(Move, Outcome)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Preparing(Move),
    Moving(Move),
    Flipped(Move),
}

/// The one that decides about moves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    phase: Phase,
    /// Moves begun so far.
    begun: u64,
}

impl Default for Coordinator {
    fn default() -> Self {
        Self::new()
    }
}

impl Coordinator {
    /// A coordinator that has begun nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::after(0)
    }

    /// One that comes after another, which has begun so many moves. None of them goes on.
    #[must_use]
    pub fn after(begun: u64) -> Self {
        Self { phase: Phase::Idle, begun }
    }

    /// Moves begun so far, by those that coordinated before too.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// The move that goes on.
    #[must_use]
    pub fn current(&self) -> Option<Move> {
        match self.phase {
            Phase::Idle => None,
            Phase::Preparing(one) | Phase::Moving(one) | Phase::Flipped(one) => Some(one),
        }
    }

    /// Begins a move, given the placement in force.
    ///
    /// # Errors
    /// Another one goes on, or there is nothing to move or nowhere to move it.
    pub fn begin<E, S>(
        &mut self,
        vcpu: VcpuId,
        to: SliceId,
        placement: &Placement,
    ) -> Result<Verdict<E, S>, Refusal> {
        if let Some(one) = self.current() {
            return Err(Refusal::Busy(one.vcpu));
        }
        let from = placement.slice_of(vcpu).ok_or(Refusal::Unknown(vcpu))?;
        if from == to {
            return Err(Refusal::ThereAlready(vcpu, to));
        }
        placement.next(&[Change::Vcpu { vcpu, to }])?;
        self.begun += 1;
        let one = Move { number: self.begun, vcpu, from, to };
        self.phase = Phase::Preparing(one);
        Ok(send(vec![(to, Message::Prepare(one))]))
    }

    /// Gives the move up that goes on, if that is still possible.
    pub fn give_up<E, S>(&mut self, why: &str) -> Verdict<E, S> {
        let (Phase::Preparing(one) | Phase::Moving(one)) = self.phase else {
            return send(Vec::new());
        };
        let mut messages = vec![(one.to, Message::Discard(one.number))];
        if self.phase == Phase::Moving(one) {
            messages.push((one.from, Message::Resume(one.number)));
        }
        self.phase = Phase::Idle;
        let outcome = Some((one, Outcome::GivenUp(why.to_owned())));
        Verdict { messages, placement: None, outcome }
    }

    /// Takes a message that only the coordinator is sent, given the placement in force. Other parts may have moved since
    /// the move began.
    ///
    /// # Errors
    /// A message that cannot happen: the VM must be stopped.
    pub fn message<E, S>(
        &mut self,
        from: SliceId,
        message: &Message<E, S>,
        placement: &Placement,
    ) -> Result<Verdict<E, S>, HandoverError> {
        let number = match message {
            Message::Ready(number)
            | Message::Installed(number)
            | Message::Settled(number)
            | Message::Failed(number, _) => *number,
            _ => return Err(self.unexpected(from, message)),
        };
        if number > self.begun {
            return Err(self.unexpected(from, message));
        }
        // Of a move that was given up.
        if number < self.begun || (number == self.begun && self.phase == Phase::Idle) {
            return Ok(send(Vec::new()));
        }
        match (message, self.phase) {
            (Message::Ready(_), Phase::Preparing(one)) if from == one.to => {
                self.phase = Phase::Moving(one);
                Ok(send(vec![(one.from, Message::Stop(one))]))
            }
            (Message::Installed(_), Phase::Moving(one)) if from == one.to => {
                Ok(self.flip(one, placement))
            }
            (Message::Settled(_), Phase::Flipped(one)) if from == one.to => {
                self.phase = Phase::Idle;
                Ok(Verdict { outcome: Some((one, Outcome::Moved)), ..send(Vec::new()) })
            }
            (Message::Failed(_, why), Phase::Preparing(one) | Phase::Moving(one))
                if from == one.to || from == one.from =>
            {
                Ok(self.give_up(&format!("{from}: {why}")))
            }
            _ => Err(self.unexpected(from, message)),
        }
    }

    fn flip<E, S>(&mut self, one: Move, placement: &Placement) -> Verdict<E, S> {
        let next = match placement.next(&[Change::Vcpu { vcpu: one.vcpu, to: one.to }]) {
            Ok(next) => next,
            Err(error) => return self.give_up(&error.to_string()),
        };
        self.phase = Phase::Flipped(one);
        let flip = |slice: &SliceId| (*slice, Message::Flip(one, next.epoch()));
        let messages = next.members().iter().map(flip).collect();
        Verdict { messages, placement: Some(next), outcome: None }
    }

    fn unexpected<E, S>(&self, from: SliceId, message: &Message<E, S>) -> HandoverError {
        let vcpu = self.current().map_or(VcpuId(0), |one| one.vcpu);
        let why = "the coordinator does not wait for it";
        HandoverError { from, message: message.name(), vcpu, why }
    }
}

fn send<E, S>(messages: Vec<(SliceId, Message<E, S>)>) -> Verdict<E, S> {
    Verdict { messages, placement: None, outcome: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Epoch;
    use wire::control::InterruptEvent;

    const SLICES: [SliceId; 3] = [SliceId(0), SliceId(1), SliceId(2)];
    type Frame = Message<InterruptEvent, u8>;

    /// vCPU 0 on slice 0, vCPU 1 on slice 1; slice 2 is empty.
    fn placement() -> Placement {
        let vcpus = vec![SliceId(0), SliceId(1)];
        Placement::new(Epoch(4), SLICES.to_vec(), vcpus, Vec::new(), Vec::new()).unwrap()
    }

    fn begin(coordinator: &mut Coordinator) -> Result<Verdict<InterruptEvent, u8>, Refusal> {
        coordinator.begin(VcpuId(1), SliceId(2), &placement())
    }

    #[test]
    fn moves_that_make_no_sense_are_refused() {
        let mut coordinator = Coordinator::new();
        let mut refused = |vcpu, to| {
            coordinator
                .begin::<InterruptEvent, u8>(VcpuId(vcpu), SliceId(to), &placement())
                .unwrap_err()
        };
        assert_eq!(refused(1, 1), Refusal::ThereAlready(VcpuId(1), SliceId(1)));
        assert_eq!(refused(2, 1), Refusal::Unknown(VcpuId(2)));
        assert!(matches!(refused(1, 3), Refusal::Placement(PlacementError::NotAMember { .. })));
        begin(&mut coordinator).unwrap();
        assert_eq!(begin(&mut coordinator), Err(Refusal::Busy(VcpuId(1))));
    }

    #[test]
    fn move_is_given_up_until_the_flip_and_not_after_it() {
        let mut coordinator = Coordinator::new();
        let number = |coordinator: &Coordinator| coordinator.current().unwrap().number;
        begin(&mut coordinator).unwrap();
        let verdict: Verdict<InterruptEvent, u8> = coordinator.give_up("asked");
        assert_eq!(verdict.messages, [(SliceId(2), Message::Discard(1))]);

        begin(&mut coordinator).unwrap();
        // Of the first one.
        let late = coordinator.message(SliceId(2), &Frame::Ready(1), &placement()).unwrap();
        assert_eq!(late, send(Vec::new()));
        coordinator.message(SliceId(2), &Frame::Ready(2), &placement()).unwrap();
        let failed = Frame::Failed(2, "it waits for a page".into());
        let verdict = coordinator.message(SliceId(1), &failed, &placement()).unwrap();
        let both = [(SliceId(2), Message::Discard(2)), (SliceId(1), Message::Resume(2))];
        assert_eq!(verdict.messages, both);
        let (_, outcome) = verdict.outcome.unwrap();
        assert_eq!(outcome, Outcome::GivenUp("slice1: it waits for a page".into()));

        begin(&mut coordinator).unwrap();
        coordinator.message(SliceId(2), &Frame::Ready(3), &placement()).unwrap();
        let flip = coordinator.message(SliceId(2), &Frame::Installed(3), &placement()).unwrap();
        assert_eq!(flip.messages.len(), SLICES.len());
        assert_eq!(flip.placement.unwrap().slice_of(VcpuId(1)), Some(SliceId(2)));
        assert_eq!(coordinator.give_up::<InterruptEvent, u8>("asked"), send(Vec::new()));
        assert_eq!(number(&coordinator), 3);
        let end = coordinator.message(SliceId(2), &Frame::Settled(3), &placement()).unwrap();
        assert_eq!(end.outcome.unwrap().1, Outcome::Moved);
    }

    #[test]
    fn messages_that_nobody_asked_for_are_errors() {
        let mut coordinator = Coordinator::new();
        begin(&mut coordinator).unwrap();
        let wrong = [
            (SliceId(1), Frame::Ready(1)),
            (SliceId(2), Frame::Installed(1)),
            (SliceId(2), Frame::Settled(1)),
            (SliceId(2), Frame::Ready(2)),
            (SliceId(0), Frame::Failed(1, String::new())),
            (SliceId(2), Frame::Marker(1)),
        ];
        for (from, message) in wrong {
            assert!(coordinator.message(from, &message, &placement()).is_err(), "{message:?}");
        }
    }
}
