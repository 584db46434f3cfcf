//! Reports of other slices while the VM runs, for whoever waits for them on the coordinator.
//!
//! ```text
//!   begin: waits --Report of each slice--> told --dropped--> nobody waits: reports go to the main thread, at the end
//! ```

use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::SliceId;

/// One of each slice.
const REPORTS_MAX: usize = 64;

/// Who waits for what slices say.
#[derive(Debug)]
pub(super) struct Reports<T>(Mutex<Option<Sender<(SliceId, T)>>>);

impl<T> Default for Reports<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Reports<T> {
    fn lock(&self) -> MutexGuard<'_, Option<Sender<(SliceId, T)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on reports come here. Whoever waited before gets no more.
    pub(super) fn begin(&self) -> Receiver<(SliceId, T)> {
        let (sender, reports) = bounded(REPORTS_MAX);
        *self.lock() = Some(sender);
        reports
    }

    /// Nobody waits any more.
    pub(super) fn end(&self) {
        *self.lock() = None;
    }

    /// Gives a report to whoever waits, or back if nobody does. One that is too many is dropped.
    pub(super) fn take(&self, from: SliceId, report: T) -> Option<T> {
        match &*self.lock() {
            Some(waiting) => {
                let _ = waiting.try_send((from, report));
                None
            }
            None => Some(report),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_go_to_whoever_waits_as_long_as_somebody_does() {
        let (reports, from) = (Reports::default(), SliceId(1));
        assert_eq!(reports.take(from, vec![1]), Some(vec![1]));
        let waiting = reports.begin();
        (0..100).for_each(|_| assert_eq!(reports.take(from, vec![2]), None));
        assert_eq!(waiting.try_iter().collect::<Vec<_>>(), vec![(from, vec![2]); REPORTS_MAX]);
        reports.end();
        assert_eq!(reports.take(from, vec![3]), Some(vec![3]));
    }
}
