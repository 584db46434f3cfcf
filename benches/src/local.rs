//! The floor of a fault: one microguest whose faults a thread answers from this process.

use crate::microvm::MicroVm;
use crate::paging::GuestPages;
use crate::placement::{Place, settle_as_engine};
use anyhow::{Context, Result, anyhow};
use dsm::{GuestRam, LocalPager, LocalPagerError};
use microguest::layout::SHARED;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;
use wire::Gfn;

const TICK: Duration = Duration::from_millis(20);
/// How long the pager's thread stands back when somebody else wants the pager.
const STAND_BACK: Duration = Duration::from_micros(100);

/// A microguest and its pager.
#[derive(Debug)]
pub struct Local {
    /// The guest, with one vCPU. It ends before its pager does.
    pub vm: MicroVm,
    /// Answers its faults.
    pub pager: Pager,
}

/// A thread that answers the faults of some memory.
#[derive(Debug)]
pub struct Pager {
    pager: Arc<Mutex<LocalPager>>,
    /// Somebody waits for the pager. Its thread would take the lock again before anyone else could.
    wanted: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), LocalPagerError>>>,
}

impl Local {
    /// A guest with so many pages, none of them there.
    ///
    /// # Errors
    /// KVM or userfaultfd refuse.
    pub fn new(image: &Path, pages: u64, vcpu: Place, pager_place: Place) -> Result<Self> {
        let first = SHARED / 4096;
        let ram = Arc::new(GuestRam::new(std::slice::from_ref(&(first..first + pages)))?);
        let pager = Pager::new(Arc::clone(&ram), pager_place)?;
        let slots = ram.slots();
        let vm = MicroVm::new(image, &slots, ram, &[vcpu], GuestPages::Small)?;
        Ok(Self { vm, pager })
    }
}

impl Pager {
    /// Watches all of the memory; the thread runs at the place.
    ///
    /// # Errors
    /// Userfaultfd refuses.
    pub fn new(ram: Arc<GuestRam>, place: Place) -> Result<Self> {
        let pager = Arc::new(Mutex::new(LocalPager::new(ram)?));
        let (stop, wanted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (theirs, over, gate) = (Arc::clone(&pager), Arc::clone(&stop), Arc::clone(&wanted));
        let thread = spawn(move || {
            settle_as_engine(place);
            while !over.load(Ordering::Relaxed) {
                while gate.load(Ordering::Relaxed) {
                    sleep(STAND_BACK);
                }
                theirs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).serve(TICK)?;
            }
            Ok(())
        });
        Ok(Self { pager, wanted, stop, thread: Some(thread) })
    }

    /// Takes so many pages away, or the write access to them. Nobody must be touching them.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn recall(&self, pages: u64, readable: bool) -> Result<()> {
        self.with_pager(|pager| pager.recall(Gfn(SHARED / 4096), pages, readable))?
            .context("take pages away")
    }

    /// Faults answered so far.
    ///
    /// # Errors
    /// The pager failed.
    pub fn answered(&self) -> Result<u64> {
        self.with_pager(LocalPager::answered)
    }

    fn with_pager<T>(&self, action: impl FnOnce(&LocalPager) -> T) -> Result<T> {
        self.wanted.store(true, Ordering::Relaxed);
        let result = self.pager.lock().map(|pager| action(&pager));
        self.wanted.store(false, Ordering::Relaxed);
        result.map_err(|_| anyhow!("the pager failed"))
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the pager failed: {error}");
        }
    }
}
