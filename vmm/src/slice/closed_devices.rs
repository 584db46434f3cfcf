//! What other slices have said of a device that they have closed, until the thread for cuts takes it.
//!
//! ```text
//!   former place --ClosedDevice--> engine's thread --put--> [the last one] --take--> thread for cuts
//! ```
//! One device moves at a time, so the last word counts. One of a cut that was given up has another number.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use wire::SliceId;

/// Who has sent it, of which device, in which cut.
type Which = (SliceId, u16, u64);

/// The last one that has come. Held for moments only: the engine's thread takes the lock.
#[derive(Debug, Default)]
pub(crate) struct ClosedDevices {
    last: Mutex<Option<(Which, Vec<u8>)>>,
    came: Condvar,
}

impl ClosedDevices {
    fn lock(&self) -> MutexGuard<'_, Option<(Which, Vec<u8>)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One has come.
    pub(super) fn put(&self, which: Which, state: Vec<u8>) {
        *self.lock() = Some((which, state));
        self.came.notify_all();
    }

    /// Waits for this one until the deadline.
    pub(super) fn take(&self, which: Which, deadline: Instant) -> Option<Vec<u8>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let is_it = |last: &Option<(Which, Vec<u8>)>| last.as_ref().is_some_and(|it| it.0 == which);
        let waited = self.came.wait_timeout_while(self.lock(), left, |last| !is_it(last));
        let mut last = waited.unwrap_or_else(PoisonError::into_inner).0;
        if is_it(&last) { last.take().map(|(_, state)| state) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::scope;
    use std::time::Duration;

    #[test]
    fn who_waits_gets_what_was_sent_in_this_cut_and_nothing_else() {
        let closed = ClosedDevices::default();
        let late = Instant::now() + Duration::from_secs(60);
        let which = (SliceId(1), 3, 7);
        closed.put((SliceId(1), 3, 6), vec![1]);
        assert_eq!(closed.take(which, Instant::now()), None);
        scope(|threads| {
            let taken = threads.spawn(|| closed.take(which, late));
            closed.put((SliceId(2), 3, 7), vec![2]);
            closed.put(which, vec![3]);
            assert_eq!(taken.join().unwrap(), Some(vec![3]));
        });
        assert_eq!(closed.take(which, Instant::now()), None, "it was taken");
    }
}
