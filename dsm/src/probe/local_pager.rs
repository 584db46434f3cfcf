//! Guest memory whose faults are answered on the spot: the least that any memory engine over
//! userfaultfd must do. Benchmarks measure it as the floor of a fault.
//!
//! ```text
//!   fault on an absent page ---> its contents copied into the alias ---> mapped (read-only for a read)
//!   store to a read-only page -> protection lifted
//! ```

use super::fault_queue::FaultQueue;
use crate::kernel::{Fault, FaultWatch, Installed, UffdError};
use crate::memory::GuestRam;
use std::io::Error;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use wire::{Gfn, PAGE_SIZE};

const PAGE: u64 = 4096;

/// Why faults cannot be answered.
#[derive(Debug, Error)]
pub enum LocalPagerError {
    /// The userfaultfd failed.
    #[error("answer faults of guest memory")]
    Userfaultfd(#[from] UffdError),
    /// The userfaultfd could not be waited for or read.
    #[error("wait for faults of guest memory")]
    Wait(#[source] Error),
    /// A page could not be taken away.
    #[error("take guest memory away")]
    Zap(#[source] Error),
    /// A fault outside the memory, or a page that cannot be mapped.
    #[error("a fault at {0:#x} cannot be answered")]
    Strange(u64),
}

/// Answers the faults of one guest memory. Not together with an engine.
#[derive(Debug)]
pub struct LocalPager {
    ram: Arc<GuestRam>,
    queue: FaultQueue,
    /// What every absent page holds.
    contents: [u8; PAGE_SIZE],
    /// Faults answered.
    answered: u64,
}

impl LocalPager {
    /// Watches all of the memory.
    ///
    /// # Errors
    /// No usable userfaultfd.
    pub fn new(ram: Arc<GuestRam>) -> Result<Self, LocalPagerError> {
        let uffd = ram.userfaultfd()?;
        for (_, host, bytes) in ram.slots() {
            let start = u64::try_from(host).expect("an address fits u64");
            uffd.register(start, bytes, FaultWatch::Everything)?;
        }
        let queue = FaultQueue::new(uffd).map_err(LocalPagerError::Wait)?;
        Ok(Self { ram, queue, contents: [7; PAGE_SIZE], answered: 0 })
    }

    /// Waits for faults, `limit` at most, and answers them.
    ///
    /// # Errors
    /// The userfaultfd fails.
    pub fn serve(&mut self, limit: Duration) -> Result<(), LocalPagerError> {
        self.queue.wait(limit).map_err(LocalPagerError::Wait)?;
        self.queue.faults.iter().try_for_each(|fault| self.answer(fault))?;
        self.answered += u64::try_from(self.queue.faults.len()).unwrap_or(0);
        Ok(())
    }

    fn answer(&self, fault: &Fault) -> Result<(), LocalPagerError> {
        let strange = LocalPagerError::Strange(fault.address);
        let start = fault.address & !(PAGE - 1);
        let Some(gfn) = self.ram.frame_at(fault.address) else { return Err(strange) };
        self.ram.write(gfn, 0, &self.contents);
        match self.queue.uffd.install(start, PAGE, fault.write)? {
            Installed::Done => Ok(()),
            Installed::Mapped => Ok(self.queue.uffd.protect(start, PAGE, !fault.write)?),
            Installed::Absent | Installed::Parted => Err(strange),
        }
    }

    /// Takes pages away from the guest, or, with `readable`, its write access to them.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn recall(&self, first: Gfn, pages: u64, readable: bool) -> Result<(), LocalPagerError> {
        for gfn in (first.0..first.0 + pages).map(Gfn) {
            if readable {
                let start = self.ram.guest_address(gfn).ok_or(LocalPagerError::Strange(gfn.0))?;
                self.queue.uffd.protect(start, PAGE, true)?;
            } else {
                self.ram.zap(gfn, 1).map_err(LocalPagerError::Zap)?;
            }
        }
        Ok(())
    }

    /// Faults answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }
}
