//! Pages that are written into the peer's memory: which wait, and how many are under way.
//!
//! ```text
//!   push(offset) --> waiting --(next message of the class takes all along, ahead of itself)--> under way
//!        ^                                                                                        |
//!        +------------------------- room again <--(that message was received)---------------------+
//! ```
//!
//! A reliable queue pair carries requests out in order, so the message that says "the page is there" comes
//! after the page, and once it was received so was the page: the writes need no completions of their own.
//! The message is an ordinary one, because its immediate data carries credits, and what it says of the
//! page needs more than 32 bits.

use super::pool::SLOTS;
use crate::traits::Class;

/// Whether pages of each class are written remotely.
pub(super) const CLASSES: [bool; Class::COUNT] = [false, true, true, false];
/// Pages that may wait or be under way in a class.
pub(super) const PAGES_MAX: u16 = 256;
const PAGE: u64 = 4096;
/// The most slots of a class.
const SLOTS_MAX: usize = 128;
const _: () = assert!(SLOTS[0] <= 128 && SLOTS[1] <= 128 && SLOTS[2] <= 128 && SLOTS[3] <= 128);

/// Bookkeeping of one class of one peer. Knows no queue pair.
#[derive(Debug)]
pub(super) struct RemoteWrites {
    /// Bytes of memory that both ends expose to each other; zero if they do not.
    bytes: u64,
    waiting: Vec<u64>,
    /// Waiting pages and those under way.
    count: u16,
    /// Pages that each slot's message took along.
    along: [u16; SLOTS_MAX],
}

impl RemoteWrites {
    pub(super) fn new(bytes: u64) -> Self {
        let waiting = Vec::with_capacity(usize::from(PAGES_MAX));
        Self { bytes, waiting, count: 0, along: [0; SLOTS_MAX] }
    }

    /// Whether both ends expose memory.
    pub(super) fn is_on(&self) -> bool {
        self.bytes > 0
    }

    pub(super) fn has_room(&self, pages: u16) -> bool {
        pages <= PAGES_MAX - self.count
    }

    /// Takes neighbouring pages in. False when there is no room for all, or no such pages.
    pub(super) fn push(&mut self, offset: u64, pages: u16) -> bool {
        let end = offset.checked_add(u64::from(pages) * PAGE).filter(|end| *end <= self.bytes);
        let Some(end) = end.filter(|_| offset.is_multiple_of(PAGE) && self.has_room(pages)) else {
            return false;
        };
        self.waiting.extend((offset..end).step_by(4096));
        self.count += pages;
        true
    }

    /// Offsets of the pages that go ahead of the message in a slot, in order.
    pub(super) fn take(&mut self, slot: u16) -> std::vec::Drain<'_, u64> {
        let pages = u16::try_from(self.waiting.len()).expect("at most PAGES_MAX");
        self.along[usize::from(slot)] = pages;
        self.waiting.drain(..)
    }

    /// The message of a slot was received.
    pub(super) fn sent(&mut self, slot: u16) {
        self.count -= std::mem::take(&mut self.along[usize::from(slot)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pages_outside_the_memory_are_not_taken() {
        let mut remote_writes = RemoteWrites::new(8 * PAGE);

        assert!(remote_writes.push(7 * PAGE, 1));
        for offset in [8 * PAGE, 7 * PAGE + 1, 12, u64::MAX - 4095, u64::MAX] {
            assert!(!remote_writes.push(offset, 1), "{offset}");
        }
        assert!(!remote_writes.push(6 * PAGE, 3) && remote_writes.push(5 * PAGE, 3));
        assert!(!RemoteWrites::new(0).push(0, 1) && !RemoteWrites::new(0).is_on());
    }

    proptest! {
        /// Whatever the order, pages are taken along once, in order, and never more than fit.
        #[test]
        fn pages_go_once_and_in_order(steps in prop::collection::vec((0u8..4, 1u16..70), 0..2000)) {
            let mut remote_writes = RemoteWrites::new(u64::MAX);
            let (mut next, mut seen) = (0u64, Vec::new());
            let mut in_flight = std::collections::VecDeque::new();
            let mut slot = 0u16;
            for (step, pages) in steps {
                match step {
                    0 | 1 => if remote_writes.push(next * PAGE, pages) { next += u64::from(pages) },
                    2 if in_flight.len() < usize::from(SLOTS[1]) => {
                        seen.extend(remote_writes.take(slot));
                        in_flight.push_back(slot);
                        slot = (slot + 1) % SLOTS[1];
                    }
                    _ => if let Some(slot) = in_flight.pop_front() { remote_writes.sent(slot) },
                }
                prop_assert!(remote_writes.count <= PAGES_MAX);
            }
            prop_assert!(seen.iter().copied().eq((0..).map(|n| n * PAGE).take(seen.len())));
            while let Some(slot) = in_flight.pop_front() { remote_writes.sent(slot); }
            prop_assert_eq!(usize::from(remote_writes.count), remote_writes.waiting.len());
        }
    }
}
