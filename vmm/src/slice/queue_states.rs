//! States of queues that have come from other slices, until the device thread takes them.
//!
//! ```text
//!   former place --QueueState--> engine's thread --put--> [waiting] --take--> device thread
//! ```
//! The former place may be faster than this slice, so a state may come before its move is known here. There is one move at
//! a time, of one device, which bounds what can wait.

use devices::virtio::QUEUES_MAX;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use wire::{Epoch, SliceId};

/// Which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StateOf {
    /// The former place.
    pub(crate) from: SliceId,
    /// Epoch of the placement in which the queue is here.
    pub(crate) placement: Epoch,
    pub(crate) device: u16,
    pub(crate) queue: u16,
}

/// States that wait. Held for moments only: the engine's thread takes the lock.
#[derive(Debug, Default)]
pub(crate) struct QueueStates {
    waiting: Mutex<BTreeMap<StateOf, Vec<u8>>>,
    came: Condvar,
}

impl QueueStates {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<StateOf, Vec<u8>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A state has come. False for one that is there already, and for more than a move can bring.
    pub(super) fn put(&self, which: StateOf, state: Vec<u8>) -> bool {
        let mut waiting = self.lock();
        if waiting.len() >= QUEUES_MAX || waiting.contains_key(&which) {
            return false;
        }
        waiting.insert(which, state);
        self.came.notify_all();
        true
    }

    /// Waits for a state until the deadline.
    pub(super) fn take(&self, which: StateOf, deadline: Instant) -> Option<Vec<u8>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let absent = |waiting: &mut BTreeMap<_, _>| !waiting.contains_key(&which);
        let waited = self.came.wait_timeout_while(self.lock(), left, absent);
        waited.unwrap_or_else(PoisonError::into_inner).0.remove(&which)
    }

    /// One that waits, if any.
    pub(super) fn first(&self) -> Option<StateOf> {
        self.lock().keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    fn state_of(queue: u16) -> StateOf {
        StateOf { from: SliceId(1), placement: Epoch(7), device: 0, queue }
    }

    #[test]
    fn state_is_taken_once_whether_it_comes_before_or_after_who_waits() {
        let states = Arc::new(QueueStates::default());
        let late = Instant::now() + Duration::from_secs(60);
        assert!(states.put(state_of(0), vec![1]));
        assert_eq!(states.first(), Some(state_of(0)));
        assert_eq!(states.take(state_of(0), late), Some(vec![1]));
        let other = Arc::clone(&states);
        let thread = thread::spawn(move || other.take(state_of(1), late));
        // Of another placement, queue and slice.
        assert!(states.put(StateOf { placement: Epoch(6), ..state_of(1) }, vec![2]));
        assert!(states.put(StateOf { from: SliceId(2), ..state_of(1) }, vec![3]));
        assert!(states.put(state_of(1), Vec::new()));
        assert_eq!(thread.join().unwrap(), Some(Vec::new()));
        assert_eq!(states.take(state_of(1), Instant::now()), None);
        assert!(states.first().is_some());
    }

    #[test]
    fn what_comes_twice_and_more_than_a_move_can_bring_is_refused() {
        let states = QueueStates::default();
        assert!(states.put(state_of(3), vec![1]) && !states.put(state_of(3), vec![1]));
        let taken = (0..1000).filter(|queue| states.put(state_of(*queue), Vec::new())).count();
        assert_eq!(taken + 1, QUEUES_MAX);
    }
}
