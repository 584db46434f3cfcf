//! Frames that found no room in the transport.
//!
//! ```text
//!   send --room--> sent
//!     |---none: waits behind others of its class to its slice --room--> sent
//!                                                              \--slice gone--> dropped
//! ```
//! Each class to each slice has a queue of its own, as in the transport. So a megabyte for a disk that fills its window
//! delays neither pages nor interrupts, and a slow slice delays no other.

use std::collections::{BTreeMap, VecDeque};
use transport::{Class, SendError};
use wire::SliceId;

/// Bytes that may wait for one slice. A slice that is stopped takes nothing until its lease is over: enough for an
/// interrupt each microsecond for three seconds, or for 250 MiB of pages.
const BYTES_MAX: usize = 256 << 20;
/// What a frame costs beside its bytes.
const FRAME_COST: usize = 48;

/// The queues; none of them is empty.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    waiting: BTreeMap<(SliceId, Class), VecDeque<Vec<u8>>>,
    /// By slice.
    bytes: BTreeMap<SliceId, usize>,
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
        // The backlog is nearly always empty.
        self.frames > 0 && self.waiting.contains_key(&(to, class))
    }

    /// Takes a frame in. False: too much waits for this slice.
    pub(crate) fn push(&mut self, to: SliceId, class: Class, frame: Vec<u8>) -> bool {
        let bytes = self.bytes.entry(to).or_default();
        if *bytes >= BYTES_MAX {
            return false;
        }
        *bytes += cost(&frame);
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
        let Self { waiting, bytes, frames } = self;
        for ((to, class), queue) in waiting.iter_mut() {
            while let Some(frame) = queue.front() {
                match send(*to, *class, frame) {
                    // A lost peer is reported by the next poll.
                    Ok(()) | Err(SendError::Gone) => {
                        if let Some(bytes) = bytes.get_mut(to) {
                            *bytes -= cost(frame);
                        }
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

fn cost(frame: &[u8]) -> usize {
    frame.len() + FRAME_COST
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
    fn bytes_that_wait_for_a_slice_are_bounded_and_others_wait_beside_them() {
        let (stopped, other) = (SliceId(1), SliceId(2));
        let page = 1 << 20;
        let mut backlog = Backlog::default();
        let most = BYTES_MAX.div_ceil(page + FRAME_COST);
        let taken = (0..=most).filter(|number| {
            backlog.push(stopped, Class::ALL[number % Class::COUNT], vec![0; page])
        });
        assert_eq!(taken.count(), most);
        assert!(backlog.push(other, Class::Interrupt, vec![1]));
        let end = backlog.drain(|_, _, _| Err(SendError::TooLarge));
        assert_eq!(end, Err((stopped, SendError::TooLarge)));
        // What was sent makes room.
        backlog.drain(|_, _, _| Ok(())).unwrap();
        assert!(backlog.bytes.values().all(|bytes| *bytes == 0));
        assert!(backlog.push(stopped, Class::Bulk, vec![0; page]));
    }

    /// An interrupt every ten microseconds for as long as a lease of three seconds.
    #[test]
    fn storm_of_interrupts_towards_a_stopped_slice_waits() {
        let mut backlog = Backlog::default();
        assert!((0..300_000).all(|_| backlog.push(SliceId(1), Class::Interrupt, vec![0; 32])));
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
