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
use std::thread::{JoinHandle, spawn};
use std::time::Duration;
use wire::Gfn;

const TICK: Duration = Duration::from_millis(20);

/// A microguest and its pager.
#[derive(Debug)]
pub struct Local {
    /// The guest, with one vCPU.
    pub vm: MicroVm,
    pager: Arc<Mutex<LocalPager>>,
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
        let pager = Arc::new(Mutex::new(LocalPager::new(Arc::clone(&ram))?));
        let slots = ram.slots();
        let vm = MicroVm::new(image, &slots, ram, &[vcpu], GuestPages::Small)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, over) = (Arc::clone(&pager), Arc::clone(&stop));
        let thread = spawn(move || {
            settle_as_engine(pager_place);
            while !over.load(Ordering::Relaxed) {
                theirs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).serve(TICK)?;
            }
            Ok(())
        });
        Ok(Self { vm, pager, stop, thread: Some(thread) })
    }

    /// Takes all pages away, or the write access to them. The guest must not be running.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn recall(&self, pages: u64, readable: bool) -> Result<()> {
        let pager = self.pager.lock().map_err(|_| anyhow!("the pager failed"))?;
        pager.recall(Gfn(SHARED / 4096), pages, readable).context("take pages away")
    }

    /// Faults answered so far.
    ///
    /// # Errors
    /// The pager failed.
    pub fn answered(&self) -> Result<u64> {
        Ok(self.pager.lock().map_err(|_| anyhow!("the pager failed"))?.answered())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the pager failed: {error}");
        }
    }
}
