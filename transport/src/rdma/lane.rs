//! The slots of one class: which are free, which arrived, and how many messages may be sent.
//!
//! Both ends post the same number of slots. A *message* with data takes one posted slot of the
//! receiver until its bytes were taken out; the receiver then posts the slot again and owes the sender
//! a credit. Credits travel as the immediate data of every message, and in a *note*, a message
//! without data, once a quarter of the slots is owed:
//!
//! ```text
//!  sender: credits > 0, free slot ──message──> receiver: posted -> arrived -> taken, posted, owed += 1
//!     ^────────────── immediate data: owed ───────────────────────────────────┘ (owed = 0)
//! ```
//!
//! Notes need no credit. They take a posted slot too, but give it back as soon as they are seen, and
//! each stands for a quarter of the slots, which the other end cannot use again before it saw the
//! note: so at most four wait, and [`SPARE`] slots beyond the credits always suffice.

use std::collections::VecDeque;

/// Slots that are posted beyond the credits, for notes.
pub(super) const SPARE: u16 = 8;
/// Notes of our own that may be under way.
const NOTES_MAX: u16 = SPARE;

/// A slot with received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) slot: u16,
    /// Bytes in it.
    pub(super) length: usize,
    /// Bytes of it that were taken.
    pub(super) taken: usize,
}

/// The state of one class. Knows no queue pair.
#[derive(Debug)]
pub(super) struct Lane {
    slots: u16,
    free: Vec<u16>,
    /// Messages with data that the peer has slots for.
    credits: u16,
    notes: u16,
    arrived: VecDeque<Arrived>,
    owed: u16,
    wants_room: bool,
    has_room: bool,
}

impl Lane {
    pub(super) fn new(slots: u16) -> Self {
        Self {
            slots,
            free: (0..slots).rev().collect(),
            credits: slots,
            notes: 0,
            arrived: VecDeque::with_capacity(usize::from(slots)),
            owed: 0,
            wants_room: false,
            has_room: false,
        }
    }

    /// A slot for a message with data, with its credit, if there are both.
    pub(super) fn take_slot(&mut self) -> Option<u16> {
        if self.credits == 0 {
            return None;
        }
        let slot = self.free.pop()?;
        self.credits -= 1;
        Some(slot)
    }

    /// What the next message tells the peer.
    pub(super) fn take_owed(&mut self) -> u16 {
        std::mem::take(&mut self.owed)
    }

    /// The credits for a note, if one is due and may be sent.
    pub(super) fn take_note(&mut self) -> Option<u16> {
        if self.owed < self.slots / 4 || self.notes >= NOTES_MAX {
            return None;
        }
        self.notes += 1;
        Some(self.take_owed())
    }

    /// A note of ours, or the greeting, is on its way.
    pub(super) fn note_posted(&mut self) {
        self.notes += 1;
    }

    pub(super) fn note_done(&mut self) {
        self.notes = self.notes.saturating_sub(1);
    }

    /// A message of ours was received: its slot is free again.
    pub(super) fn sent(&mut self, slot: u16) {
        self.free.push(slot);
        self.look_for_room();
    }

    /// Messages of ours that were not yet acknowledged.
    pub(super) fn is_sending(&self) -> bool {
        self.free.len() < usize::from(self.slots)
    }

    /// The peer gives credits back. False when it gives more than it ever got.
    pub(super) fn credit(&mut self, credits: u32) -> bool {
        let sum = u16::try_from(credits).ok().and_then(|more| self.credits.checked_add(more));
        match sum.filter(|sum| *sum <= self.slots) {
            Some(sum) => {
                self.credits = sum;
                self.look_for_room();
                true
            }
            None => false,
        }
    }

    /// A message with data is in `slot`. False when the peer had no credit for it.
    pub(super) fn arrive(&mut self, slot: u16, length: usize) -> bool {
        if self.arrived.len() + usize::from(self.owed) >= usize::from(self.slots) {
            return false;
        }
        self.arrived.push_back(Arrived { slot, length, taken: 0 });
        true
    }

    pub(super) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// The oldest slot with bytes.
    pub(super) fn front(&self) -> Option<Arrived> {
        self.arrived.front().copied()
    }

    /// `count` bytes of the oldest slot were taken. Returns the slot once it is empty: post it again.
    pub(super) fn took(&mut self, count: usize) -> Option<u16> {
        let front = self.arrived.front_mut()?;
        front.taken += count;
        if front.taken < front.length {
            return None;
        }
        self.owed += 1;
        self.arrived.pop_front().map(|done| done.slot)
    }

    pub(super) fn want_room(&mut self, on: bool) {
        self.wants_room = on;
        self.has_room = false;
        self.look_for_room();
    }

    pub(super) fn wants_room(&self) -> bool {
        self.wants_room
    }

    /// Whether the room that is waited for is there.
    pub(super) fn has_room(&self) -> bool {
        self.has_room
    }

    /// The same, told once.
    pub(super) fn take_room(&mut self) -> bool {
        std::mem::take(&mut self.has_room)
    }

    fn look_for_room(&mut self) {
        self.has_room |= self.wants_room && self.credits > 0 && !self.free.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sender_stops_at_the_last_credit_and_goes_on_with_the_next() {
        let mut lane = Lane::new(4);
        let slots: Vec<u16> = std::iter::from_fn(|| lane.take_slot()).collect();
        assert_eq!(slots.len(), 4);
        lane.want_room(true);
        lane.sent(slots[0]);
        assert!(!lane.take_room(), "a free slot alone is no room");

        assert!(lane.credit(1));

        assert!(lane.take_room());
        assert!(!lane.take_room(), "room is told once");
        assert!(lane.take_slot().is_some());
    }

    #[test]
    fn credits_from_nothing_are_refused() {
        let mut lane = Lane::new(4);

        assert!(!lane.credit(1));
        assert!(!lane.credit(u32::MAX));
    }

    #[test]
    fn message_without_credit_is_refused() {
        let mut lane = Lane::new(2);

        assert!(lane.arrive(0, 9));
        assert!(lane.arrive(1, 9));
        assert!(!lane.arrive(2, 9));
    }

    /// What two lanes have under way to each other.
    #[derive(Debug, Default)]
    struct Wire {
        /// Data or note, with its credits.
        messages: VecDeque<(bool, u16)>,
        /// Acknowledgements of the sender's adapter: a slot, or a note.
        acknowledgements: VecDeque<Option<u16>>,
    }

    impl Wire {
        fn send(&mut self, from: &mut Lane) -> bool {
            let Some(slot) = from.take_slot() else { return false };
            self.messages.push_back((true, from.take_owed()));
            self.acknowledgements.push_back(Some(slot));
            true
        }

        fn deliver(&mut self, to: &mut Lane) {
            if let Some((data, credits)) = self.messages.pop_front() {
                assert!(to.credit(u32::from(credits)));
                assert!(!data || to.arrive(0, 1));
            }
        }

        fn acknowledge(&mut self, to: &mut Lane) {
            match self.acknowledgements.pop_front() {
                Some(Some(slot)) => to.sent(slot),
                Some(None) => to.note_done(),
                None => {}
            }
        }

        /// Messages that take a posted slot of the receiver.
        fn posted(&self, receiver: &Lane) -> usize {
            self.messages.len() + receiver.arrived.len()
        }
    }

    fn take(lane: &mut Lane, back: &mut Wire) {
        lane.took(1);
        if let Some(credits) = lane.take_note() {
            back.messages.push_back((false, credits));
            back.acknowledgements.push_back(None);
        }
    }

    proptest! {
        /// Whatever the order of steps, no receiver runs out of posted slots, and at the end
        /// everything that was started can be sent.
        #[test]
        fn receiver_always_has_a_slot(steps in prop::collection::vec(0u8..8, 0..600)) {
            let (mut a, mut b) = (Lane::new(8), Lane::new(8));
            let (mut there, mut back) = (Wire::default(), Wire::default());
            for step in steps {
                match step {
                    0 => { there.send(&mut a); }
                    1 => { back.send(&mut b); }
                    2 => there.deliver(&mut b),
                    3 => back.deliver(&mut a),
                    4 => there.acknowledge(&mut a),
                    5 => back.acknowledge(&mut b),
                    6 => take(&mut a, &mut there),
                    _ => take(&mut b, &mut back),
                }
                prop_assert!(there.posted(&b) <= usize::from(8 + SPARE));
                prop_assert!(back.posted(&a) <= usize::from(8 + SPARE));
            }
            for _ in 0..200 {
                there.deliver(&mut b);
                back.deliver(&mut a);
                there.acknowledge(&mut a);
                back.acknowledge(&mut b);
                take(&mut a, &mut there);
                take(&mut b, &mut back);
            }
            prop_assert!(there.send(&mut a) && back.send(&mut b));
        }
    }
}
