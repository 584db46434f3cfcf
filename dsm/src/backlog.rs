//! Frames that found no room in the transport.
//!
//! ```text
//!   send --room--> sent
//!     |---none: waits behind others of its class to its slice --room--> sent
//!                                                              \--slice gone--> dropped
//! ```
//! Each class to each slice has a queue of its own, as it has in the transport: a megabyte for a disk that
//! fills its window keeps neither pages nor interrupts waiting, and one slow slice no other.

use std::collections::{BTreeMap, VecDeque};
use transport::{Class, SendError};
use wire::SliceId;

/// Frames that may wait altogether.
const FRAMES_MAX: usize = 65_536;

/// The queues; none of them is empty.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    waiting: BTreeMap<(SliceId, Class), VecDeque<Vec<u8>>>,
    frames: usize,
}

impl Backlog {
    /// Frames that wait.
    pub(crate) fn len(&self) -> usize {
        self.frames
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// True when a frame of this class to this slice must wait behind others.
    pub(crate) fn holds(&self, to: SliceId, class: Class) -> bool {
        // Hardly ever is anything here.
        self.frames > 0 && self.waiting.contains_key(&(to, class))
    }

    /// Takes a frame in. False: too many wait.
    pub(crate) fn push(&mut self, to: SliceId, class: Class, frame: Vec<u8>) -> bool {
        if self.frames >= FRAMES_MAX {
            return false;
        }
        self.waiting.entry((to, class)).or_default().push_back(frame);
        self.frames += 1;
        true
    }

    /// Sends what there is room for.
    ///
    /// # Errors
    /// What the transport cannot send, and to whom.
    pub(crate) fn drain(
        &mut self,
        mut send: impl FnMut(SliceId, Class, &[u8]) -> Result<(), SendError>,
    ) -> Result<(), (SliceId, SendError)> {
        let Self { waiting, frames } = self;
        for ((to, class), queue) in waiting.iter_mut() {
            while let Some(frame) = queue.front() {
                match send(*to, *class, frame) {
                    // A lost peer is reported by the next poll.
                    Ok(()) | Err(SendError::Gone) => {
                        queue.pop_front();
                        *frames -= 1;
                    }
                    Err(SendError::Full) => break,
                    Err(reason) => return Err((*to, reason)),
                }
            }
        }
        waiting.retain(|_, queue| !queue.is_empty());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_and_slices_do_not_wait_for_each_other() {
        let (one, two) = (SliceId(1), SliceId(2));
        let mut backlog = Backlog::default();
        for (to, class) in [(one, Class::Bulk), (one, Class::Interrupt), (two, Class::Bulk)] {
            assert!(backlog.push(to, class, vec![1]));
        }
        assert!(backlog.holds(one, Class::Bulk) && !backlog.holds(one, Class::Coherence));
        let mut sent = Vec::new();
        let full = |to: SliceId, class| to == one && class == Class::Bulk;
        let end = backlog.drain(|to, class, _| {
            if full(to, class) {
                return Err(SendError::Full);
            }
            sent.push((to, class));
            Ok(())
        });
        assert_eq!((end, backlog.len()), (Ok(()), 1));
        assert_eq!(sent, [(one, Class::Interrupt), (two, Class::Bulk)]);
        assert!(!backlog.holds(two, Class::Bulk));

        assert_eq!(backlog.drain(|_, _, _| Err(SendError::Gone)), Ok(()));
        assert!(backlog.is_empty() && !backlog.holds(one, Class::Bulk));
    }

    #[test]
    fn frames_that_wait_are_bounded() {
        let mut backlog = Backlog::default();
        let taken = (0..=FRAMES_MAX)
            .filter(|number| {
                backlog.push(SliceId(1), Class::ALL[number % Class::COUNT], Vec::new())
            })
            .count();
        assert_eq!((taken, backlog.len()), (FRAMES_MAX, FRAMES_MAX));
        let end = backlog.drain(|_, _, _| Err(SendError::TooLarge));
        assert_eq!(end, Err((SliceId(1), SendError::TooLarge)));
    }

    proptest! {
        #[test]
        fn order_within_a_class_to_a_slice_is_kept(
            steps in prop::collection::vec((0u16..3, 0usize..Class::COUNT, 0u8..8), 1..200),
        ) {
            let mut backlog = Backlog::default();
            let mut sent: BTreeMap<_, Vec<u32>> = BTreeMap::new();
            let mut number = 0u32;
            let mut out = |to, class, frame: &[u8]| {
                sent.entry((to, class)).or_default().push(u32::from_le_bytes(frame.try_into().unwrap()));
            };
            for (to, class, room) in steps {
                let (to, class) = (SliceId(to), Class::ALL[class]);
                number += 1;
                prop_assert!(backlog.push(to, class, number.to_le_bytes().to_vec()));
                let mut left = room;
                let end = backlog.drain(|to, class, frame| {
                    left = left.checked_sub(1).ok_or(SendError::Full)?;
                    out(to, class, frame);
                    Ok(())
                });
                prop_assert_eq!(end, Ok(()));
            }
            backlog.drain(|to, class, frame| { out(to, class, frame); Ok(()) }).unwrap();
            prop_assert!(sent.values().all(|numbers| numbers.is_sorted()));
            let all: usize = sent.values().map(Vec::len).sum();
            prop_assert_eq!(u32::try_from(all).unwrap(), number);
        }
    }
}
