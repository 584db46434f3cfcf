//! What stands between an image and its file: the fence of the slice, and the record of the VM's generation.
//!
//! The record is looked at with what changes the file, at most every [`LOOK_EVERY`]. A process that was stopped for longer
//! than that looks again before it writes: the clock goes on while it does not. What is left is the moment between
//! the look and the system call, as with the fence.

use super::record::{Claiming, GenerationRecord, RecordError};
use crate::fence::{Fence, NotOurs, Standing};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Between two looks at a fence that is late.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Between two looks at the record, in nanoseconds.
const LOOK_EVERY: u64 = 100_000_000;

/// Fence and record of an image that is open.
#[derive(Debug)]
pub(super) struct Guard {
    fence: Arc<Fence>,
    record: Option<Watched>,
}

#[derive(Debug)]
struct Watched {
    record: GenerationRecord,
    /// When it was looked at.
    looked_ns: AtomicU64,
}

impl Guard {
    /// The record has just been claimed.
    pub(super) fn new(fence: &Arc<Fence>, record: Option<GenerationRecord>) -> Self {
        let looked = |record| Watched { record, looked_ns: AtomicU64::new(Fence::now()) };
        Self { fence: Arc::clone(fence), record: record.map(looked) }
    }

    /// Whether the file may be changed at this time ([`Fence::now`]). Look as shortly before as can be.
    pub(super) fn look(&self, now: u64) -> Standing {
        let standing = self.fence.look(now);
        let Some(watched) = self.record.as_ref().filter(|_| standing == Standing::Open) else {
            return standing;
        };
        if now.saturating_sub(watched.looked_ns.load(Ordering::Acquire)) <= LOOK_EVERY {
            return standing;
        }
        match watched.record.still_ours() {
            Ok(()) => {
                // The look was not earlier than that.
                watched.looked_ns.fetch_max(now, Ordering::AcqRel);
                standing
            }
            Err(error) => {
                self.fence.lose(not_ours(&error));
                Standing::Over
            }
        }
    }

    /// Waits while the fence is late. True: the file may be changed now.
    pub(super) fn pass(&self) -> bool {
        loop {
            match self.look(Fence::now()) {
                Standing::Open => return true,
                Standing::Over => return false,
                Standing::Late => thread::sleep(LOOK_AGAIN),
            }
        }
    }

    /// Keeps names beside the image from being changed until the result is dropped.
    ///
    /// # Errors
    /// Somebody changes them and does not come to an end.
    pub(super) fn keep_names(&self) -> Result<Option<Claiming<'_>>, RecordError> {
        self.record.as_ref().map(|watched| watched.record.exclusively()).transpose()
    }

    /// Why another generation writes, or may write.
    pub(super) fn not_ours(&self) -> Option<&NotOurs> {
        self.fence.not_ours()
    }
}

/// Only a record that names another writer says that the VM goes on elsewhere.
fn not_ours(error: &RecordError) -> NotOurs {
    match error {
        RecordError::Overtaken { .. } | RecordError::OtherVm { .. } => {
            NotOurs::Overtaken(error.to_string())
        }
        RecordError::File { source, .. } => NotOurs::Unknown(format!("{error}: {source}")),
        error => NotOurs::Unknown(error.to_string()),
    }
}
