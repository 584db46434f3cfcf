//! Bytes of packets that a pair has given to its back end.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Bytes that the back end has not taken yet.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    bytes: Mutex<usize>,
    none: Condvar,
}

impl InFlight {
    /// So many now.
    pub(super) fn bytes(&self) -> usize {
        *self.lock()
    }

    /// So many more.
    pub(super) fn add(&self, bytes: usize) {
        *self.lock() += bytes;
    }

    /// So many less. Gives the number before.
    pub(super) fn take(&self, bytes: usize) -> usize {
        let mut now = self.lock();
        let before = *now;
        *now -= bytes;
        if *now == 0 {
            self.none.notify_all();
        }
        before
    }

    /// Waits until there are none. False when the deadline is first.
    pub(super) fn wait_for_none(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.none.wait_timeout_while(self.lock(), left, |bytes| *bytes > 0);
        let (bytes, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *bytes == 0
    }

    /// A panic of another thread leaves the number right.
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
