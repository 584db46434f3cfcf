//! Device calls of vCPUs that wait for their answers.

use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Calls that wait for their answer. At most one per vCPU.
#[derive(Debug, Default)]
pub(crate) struct PendingCalls {
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Sender<u64>>>,
}

impl PendingCalls {
    pub(super) fn begin(&self) -> (u64, Receiver<u64>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, receiver) = bounded(1);
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, answer);
        (id, receiver)
    }

    /// Hands the answer to the vCPU that waits. An answer nobody waits for is dropped.
    pub(crate) fn answer(&self, id: u64, data: u64) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if let Some(waiting) = waiting {
            let _ = waiting.try_send(data);
        }
    }
}
