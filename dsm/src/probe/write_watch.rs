//! Which pages of guest memory does a guest write to? Asked of a small guest, page by page.
//!
//! All of the memory is write-protected. A write stops at its page, is noted, and goes on when the
//! protection of this one page is lifted. So a page is noted at most once, and a guest never waits
//! for longer than the watcher lives. Accesses that the processor makes by itself (page walks) are
//! seen as well: that is what this is for.

use super::fault_queue::FaultQueue;
use crate::kernel::{FaultWatch, UffdError};
use crate::memory::GuestRam;
use std::io::Error;
use std::time::Duration;
use thiserror::Error;
use wire::{Gfn, PAGE_SIZE};

const PAGE: u64 = 4096;

/// Why writes cannot be watched.
#[derive(Debug, Error)]
pub enum WriteWatchError {
    /// The userfaultfd failed.
    #[error("watch guest memory for writes")]
    Userfaultfd(#[from] UffdError),
    /// The memory could not be backed.
    #[error("back {bytes} bytes of guest memory before they are watched")]
    Populate {
        /// Bytes of the range.
        bytes: u64,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The userfaultfd could not be waited for or read.
    #[error("wait for writes to guest memory")]
    Wait(#[source] Error),
}

/// Watches a guest's memory for writes until it is dropped; then all of it is writable again.
#[derive(Debug)]
pub struct WriteWatch<'a> {
    ram: &'a GuestRam,
    queue: FaultQueue,
}

impl<'a> WriteWatch<'a> {
    /// Backs all pages of `ram` and protects them from the guest. The VMM's own accesses are not
    /// watched. The memory must not be watched by an engine.
    ///
    /// # Errors
    /// No usable userfaultfd, or no memory.
    pub fn new(ram: &'a GuestRam) -> Result<Self, WriteWatchError> {
        let uffd = ram.userfaultfd()?;
        for (address, host, bytes) in ram.slots() {
            let pages = usize::try_from(bytes).unwrap_or(usize::MAX) / PAGE_SIZE;
            ram.populate(Gfn(address / PAGE), pages)
                .map_err(|source| WriteWatchError::Populate { bytes, source })?;
            let start = u64::try_from(host).expect("an address fits u64");
            uffd.register(start, bytes, FaultWatch::Writes)?;
            uffd.protect(start, bytes, true)?;
        }
        Ok(Self { ram, queue: FaultQueue::new(uffd).map_err(WriteWatchError::Wait)? })
    }

    /// Waits for writes, `limit` at most, and lets them happen. The frames that were written to
    /// come back in order; a page that two vCPUs wrote at once may come twice.
    ///
    /// # Errors
    /// The userfaultfd fails.
    pub fn take(&mut self, limit: Duration) -> Result<Vec<Gfn>, WriteWatchError> {
        self.queue.wait(limit).map_err(WriteWatchError::Wait)?;
        let FaultQueue { uffd, faults, .. } = &self.queue;
        let mut written = Vec::with_capacity(faults.len());
        for fault in faults {
            uffd.protect(fault.address & !(PAGE - 1), PAGE, false)?;
            written.extend(self.ram.frame_at(fault.address));
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::check_host;
    use needs::Need;
    use std::thread::scope;
    use std::time::Instant;

    #[test]
    fn uffd_write_watch_names_each_written_page_once() {
        if !needs::has(Need::Uffd, check_host()) {
            return;
        }
        let ram = GuestRam::new(&[0..4, 8..12]).unwrap();
        let mut watch = WriteWatch::new(&ram).unwrap();
        let mut seen = Vec::new();

        scope(|scope| {
            // The kernel writes to the guest's mapping, twice to the first page.
            let writer = scope
                .spawn(|| [2, 9, 2].into_iter().try_for_each(|frame| ram.populate(Gfn(frame), 1)));
            let end = Instant::now() + Duration::from_secs(60);
            while !writer.is_finished() && Instant::now() < end {
                seen.extend(watch.take(Duration::from_millis(1)).unwrap());
            }
            drop(watch);
            writer.join().unwrap().unwrap();
        });

        assert_eq!(seen, [Gfn(2), Gfn(9)]);
    }
}
