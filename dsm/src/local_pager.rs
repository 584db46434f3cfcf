//! Guest memory whose faults are answered on the spot: the least that any memory engine over
//! userfaultfd must do. Benchmarks measure it as the floor of a fault.
//!
//! ```text
//!   fault on an absent page ---> its contents copied into the alias ---> mapped (read-only for a read)
//!   store to a read-only page -> protection lifted
//! ```

use crate::ram::GuestRam;
use crate::uffd::{Fault, Installed, Uffd, UffdError, Watch};
use std::io::Error;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use vmm_sys_util::poll::PollContext;
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
    uffd: Uffd,
    poll: PollContext<()>,
    faults: Vec<Fault>,
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
        let uffd = Uffd::open()?;
        for (_, host, bytes) in ram.slots() {
            let start = u64::try_from(host).expect("an address fits u64");
            uffd.register(start, bytes, Watch::Everything)?;
        }
        let wait = |error: vmm_sys_util::errno::Error| LocalPagerError::Wait(error.into());
        let poll = PollContext::new().map_err(wait)?;
        poll.add(&uffd, ()).map_err(wait)?;
        Ok(Self { ram, uffd, poll, faults: Vec::new(), contents: [7; PAGE_SIZE], answered: 0 })
    }

    /// Waits for faults, `limit` at most, and answers them.
    ///
    /// # Errors
    /// The userfaultfd fails.
    pub fn serve(&mut self, limit: Duration) -> Result<(), LocalPagerError> {
        let ready = self.poll.wait_timeout(limit);
        ready.map_err(|error| LocalPagerError::Wait(error.into()))?;
        let mut faults = std::mem::take(&mut self.faults);
        faults.clear();
        self.uffd.read(&mut faults).map_err(LocalPagerError::Wait)?;
        for fault in &faults {
            self.answer(fault)?;
        }
        self.answered += u64::try_from(faults.len()).unwrap_or(0);
        self.faults = faults;
        Ok(())
    }

    fn answer(&self, fault: &Fault) -> Result<(), LocalPagerError> {
        let strange = LocalPagerError::Strange(fault.address);
        let start = fault.address & !(PAGE - 1);
        let Some(gfn) = self.ram.frame_at(fault.address) else { return Err(strange) };
        self.ram.write(gfn, 0, &self.contents);
        match self.uffd.install(start, PAGE, fault.write)? {
            Installed::Done => Ok(()),
            Installed::Mapped => Ok(self.uffd.protect(start, PAGE, !fault.write)?),
            Installed::Absent => Err(strange),
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
                self.uffd.protect(start, PAGE, true)?;
            } else {
                self.ram.zap(gfn).map_err(LocalPagerError::Zap)?;
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
