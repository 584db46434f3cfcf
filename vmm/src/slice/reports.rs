//! Reports of other slices while the VM runs, for whoever waits for them on the coordinator.
//!
//! ```text
//!   begin: waits --Report of each slice--> told --dropped--> nobody waits: reports go to the main thread, at the end
//! ```

use super::report::SliceReport;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::SliceId;

/// One of each slice.
const REPORTS_MAX: usize = 64;

/// Who waits.
#[derive(Debug, Default)]
pub(super) struct Reports(Mutex<Option<Sender<SliceReport>>>);

impl Reports {
    fn lock(&self) -> MutexGuard<'_, Option<Sender<SliceReport>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on reports come here. Whoever waited before gets no more.
    pub(super) fn begin(&self) -> Receiver<SliceReport> {
        let (sender, reports) = bounded(REPORTS_MAX);
        *self.lock() = Some(sender);
        reports
    }

    /// Nobody waits any more.
    pub(super) fn end(&self) {
        *self.lock() = None;
    }

    /// Gives a report to whoever waits. False if nobody does; one that cannot be read, or is too many, is dropped.
    pub(super) fn take(&self, from: SliceId, bytes: &[u8]) -> bool {
        let waiting = self.lock().clone();
        let Some(waiting) = waiting else { return false };
        match serde_json::from_slice::<SliceReport>(bytes) {
            // It speaks for itself only.
            Ok(report) if report.slice == from.0 => drop(waiting.try_send(report)),
            Ok(_) => tracing::warn!("{from} sent a report of another slice"),
            Err(error) => tracing::warn!("{from} sent an unreadable report: {error}"),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsm::{PagesFrom, Report};

    #[test]
    fn reports_go_to_whoever_waits_and_say_who_they_are_of() {
        let reports = Reports::default();
        let bytes = |slice| {
            let pages_from = vec![PagesFrom { slice: 3, pages: 5 }];
            let memory = Report { pages_from, ..Report::default() };
            serde_json::to_vec(&SliceReport { slice, memory, ..SliceReport::default() })
        };
        assert!(!reports.take(SliceId(1), &bytes(1).unwrap()));
        let waiting = reports.begin();
        for (from, bytes) in [(1, bytes(1).unwrap()), (2, bytes(1).unwrap()), (2, b"{".to_vec())] {
            assert!(reports.take(SliceId(from), &bytes));
        }
        let told: Vec<_> = waiting.try_iter().collect();
        assert_eq!((told.len(), told[0].slice, told[0].memory.pages_from[0].pages), (1, 1, 5));
        reports.end();
        assert!(!reports.take(SliceId(1), &bytes(1).unwrap()));
    }
}
