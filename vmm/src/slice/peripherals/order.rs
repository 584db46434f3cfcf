//! One order for all changes of the devices' shared state.
//!
//! PCI configuration, MSI-X tables and virtio registers are the same on every slice: each has a
//! replica, reads it without asking anyone, and acts on what concerns it. A write goes to the
//! coordinator, which numbers it:
//!
//! ```text
//!   vCPU --write--> coordinator --Apply n--> every slice: replica changes, queues here start or stop
//!    goes on <--Answer--   ^------Applied n------|
//! ```
//! The vCPU goes on when all slices have acknowledged, so what it wrote is in effect everywhere: a device
//! that it has reset touches guest memory no more, wherever its queues were. The coordinator
//! does one change at a time.

mod saved;

pub(crate) use saved::OrderState;

use super::move_error::MoveError;
use crate::slice::channels::{Channels, GONE};
use crate::slice::events::SliceEvent;
use crate::slice::one_line;
use crossbeam_channel::Receiver;
use devices::virtio::StopTimeout;
use migrate::AdvanceError;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::control::OrderedChange;
use wire::{Control, SliceId};

/// A slice that has not applied a change by then hangs.
const APPLY_LIMIT: Duration = Duration::from_secs(60);

/// Why the order broke.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum OrderError {
    /// A slice does not acknowledge.
    #[error("{slice} has not applied change {sequence} of the devices within {APPLY_LIMIT:?}")]
    Silent {
        /// Which.
        slice: SliceId,
        /// The change.
        sequence: u64,
    },
    /// A slice acknowledges what it was not asked.
    #[error("{slice} acknowledges change {sequence} of the devices, which nobody asked of it")]
    Unasked {
        /// Which.
        slice: SliceId,
        /// The change.
        sequence: u64,
    },
    /// There is no such placement.
    #[error("place a part of the VM")]
    Placement(#[from] AdvanceError),
    /// Queues are not where they should be.
    #[error("move queues of a device")]
    Queues(#[from] MoveError),
    /// A device was to be reset, and may still write to the guest.
    #[error("a reset of a device has not come into effect")]
    Running(#[from] StopTimeout),
    /// A change came out of turn.
    #[error("change {got} of the devices came, {expected} was next")]
    Turn {
        /// What came.
        got: u64,
        /// What should have.
        expected: u64,
    },
}

/// Numbers changes, on the coordinator.
#[derive(Debug)]
pub(crate) struct Sequencer {
    last: u64,
    others: Vec<SliceId>,
    applied: Receiver<(SliceId, u64)>,
}

impl Sequencer {
    /// Goes on after the change with the number `last`.
    pub(crate) fn new(last: u64, others: Vec<SliceId>, applied: Receiver<(SliceId, u64)>) -> Self {
        Self { last, others, applied }
    }

    /// These are there now, between two changes. Those that are gone say so themselves.
    pub(crate) fn take_in(&mut self, others: Vec<SliceId>) {
        for other in others {
            if !self.others.contains(&other) {
                self.others.push(other);
            }
        }
    }

    /// Brings a change to all slices; `apply` is for this one, and runs while the others do theirs.
    pub(crate) fn order(
        &mut self,
        change: OrderedChange,
        send: impl Fn(SliceId, &Control),
        apply: impl FnOnce() -> Result<(), OrderError>,
    ) -> Result<(), OrderError> {
        self.last += 1;
        let sequence = self.last;
        self.drop_lost()?;
        for other in &self.others {
            send(*other, &Control::Apply { sequence, change });
        }
        apply()?;
        self.gather(sequence)
    }

    /// Slices that went away since the last change.
    fn drop_lost(&mut self) -> Result<(), OrderError> {
        while let Ok((slice, sequence)) = self.applied.try_recv() {
            if sequence != GONE {
                return Err(OrderError::Unasked { slice, sequence });
            }
            self.others.retain(|other| *other != slice);
        }
        Ok(())
    }

    fn gather(&mut self, sequence: u64) -> Result<(), OrderError> {
        let deadline = Instant::now() + APPLY_LIMIT;
        let mut waiting: BTreeSet<SliceId> = self.others.iter().copied().collect();
        while let Some(first) = waiting.first().copied() {
            let (slice, number) = self
                .applied
                .recv_deadline(deadline)
                .map_err(|_| OrderError::Silent { slice: first, sequence })?;
            if number == GONE {
                waiting.remove(&slice);
                self.others.retain(|other| *other != slice);
            } else if number != sequence || !waiting.remove(&slice) {
                return Err(OrderError::Unasked { slice, sequence: number });
            }
        }
        Ok(())
    }
}

/// Checks the numbers, on every other slice.
#[derive(Debug, Default)]
pub(crate) struct Turn(u64);

impl Turn {
    /// Goes on after the change with this number.
    pub(crate) fn after(last: u64) -> Self {
        Self(last)
    }

    /// The change with this number is next.
    pub(crate) fn check(&mut self, sequence: u64) -> Result<(), OrderError> {
        let expected = self.0 + 1;
        if sequence != expected {
            return Err(OrderError::Turn { got: sequence, expected });
        }
        self.0 = expected;
        Ok(())
    }
}

/// Ends the VM: the slices' devices are no longer the same.
pub(crate) fn broken(channels: &Channels, error: &OrderError) {
    channels.event(SliceEvent::Fatal(one_line(error)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::unbounded;
    use std::cell::{Cell, RefCell};

    const CHANGE: OrderedChange = OrderedChange::Broken { device: 1 };

    #[test]
    fn order_ends_when_all_have_acknowledged() {
        let (acknowledge, applied) = unbounded();
        let mut sequencer = Sequencer::new(0, vec![SliceId(1), SliceId(2)], applied);
        let (sent, here) = (RefCell::new(Vec::new()), Cell::new(false));
        for sequence in 1..=2 {
            let send = |to, frame: &Control| {
                assert!(!here.get(), "the others do not wait for this slice");
                sent.borrow_mut().push((to, frame.clone()));
                acknowledge.send((to, sequence)).unwrap();
            };
            let apply = || {
                here.set(true);
                Ok(())
            };
            sequencer.order(CHANGE, send, apply).unwrap();
            assert!(here.replace(false));
        }
        let frame = |sequence| Control::Apply { sequence, change: CHANGE };
        let expected = [(SliceId(1), frame(1)), (SliceId(2), frame(1))];
        assert_eq!(sent.borrow()[..2], expected);
    }

    #[test]
    fn foreign_or_double_acknowledgement_is_refused() {
        for answers in [vec![(SliceId(7), 1)], vec![(SliceId(1), 1); 2], vec![(SliceId(1), 2)]] {
            let (acknowledge, applied) = unbounded();
            let mut sequencer = Sequencer::new(0, vec![SliceId(1), SliceId(2)], applied);
            let last = *answers.last().unwrap();
            let answer = || {
                answers.iter().for_each(|answer| acknowledge.send(*answer).unwrap());
                Ok(())
            };
            let result = sequencer.order(CHANGE, |_, _| {}, answer);
            let error = OrderError::Unasked { slice: last.0, sequence: last.1 };
            assert_eq!(result, Err(error));
        }
    }

    #[test]
    fn change_that_is_not_in_effect_here_is_in_effect_nowhere() {
        let (acknowledge, applied) = unbounded();
        let mut sequencer = Sequencer::new(0, vec![SliceId(1)], applied);
        let send = |to, _: &Control| acknowledge.send((to, 1)).unwrap();
        let result = sequencer.order(CHANGE, send, || Err(StopTimeout.into()));
        assert_eq!(result, Err(OrderError::Running(StopTimeout)));
    }

    #[test]
    fn slice_that_has_joined_is_waited_for() {
        let (acknowledge, applied) = unbounded();
        let mut sequencer = Sequencer::new(7, vec![SliceId(1)], applied);
        sequencer.take_in(vec![SliceId(1), SliceId(4)]);
        let send = |to: SliceId, _: &Control| acknowledge.send((to, 8)).unwrap();
        assert_eq!(sequencer.order(CHANGE, send, || Ok(())), Ok(()));
        assert_eq!(sequencer.others, [SliceId(1), SliceId(4)]);
    }

    #[test]
    fn nobody_waits_for_a_slice_that_is_gone() {
        let (acknowledge, applied) = unbounded();
        let mut sequencer = Sequencer::new(0, vec![SliceId(1), SliceId(2), SliceId(3)], applied);
        acknowledge.send((SliceId(3), GONE)).unwrap();
        let send = |to, _: &Control| {
            assert_ne!(to, SliceId(3));
            let number = if to == SliceId(1) { GONE } else { 1 };
            acknowledge.send((to, number)).unwrap();
        };
        assert_eq!(sequencer.order(CHANGE, send, || Ok(())), Ok(()));
        assert_eq!(sequencer.others, [SliceId(2)]);
    }

    #[test]
    fn turn_accepts_only_the_next() {
        let mut turn = Turn::default();
        assert_eq!(turn.check(1), Ok(()));
        assert_eq!(turn.check(3), Err(OrderError::Turn { got: 3, expected: 2 }));
        assert_eq!(turn.check(2), Ok(()));
        assert_eq!(turn.check(2), Err(OrderError::Turn { got: 2, expected: 3 }));
    }
}
