//! One slice of a benchmark: an engine, and a microguest on it.

use crate::microvm::MicroVm;
use crate::plan::Plan;
use crate::sampled_vcpus::SampledVcpus;
use crate::worker_pool::Done;
use anyhow::{Context, Result};
use dsm::{
    Engine, EngineConfig, EngineError, GuestRam, Handle, HomeRange, HomeTable, HugePages,
    NodeConfig, Report, TraceReport, Tracing, Uplink,
};
use microguest::Job;
use microguest::layout::SHARED;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use transport::{Class, Transport};
use wire::{Epoch, Gfn, SliceId};

/// No engine takes longer to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Tells what goes wrong, until the slices are to end, and asks vCPUs where they wait for pages.
#[derive(Debug, Clone)]
struct Loud {
    over: Arc<AtomicBool>,
    sampled_vcpus: Arc<SampledVcpus>,
}

impl Uplink for Loud {
    fn frame(&mut self, _: SliceId, _: Class, _: &[u8]) {}
    fn lost(&mut self, peer: SliceId, cause: String) {
        if !self.over.load(Ordering::Relaxed) {
            eprintln!("{peer} is lost: {cause}");
        }
    }
    fn fatal(&mut self, error: EngineError) {
        eprintln!("a memory engine failed: {error:?}");
    }
    fn sample_roots(&mut self) {}
    fn sample_fault(&mut self, gfn: Gfn, thread: u32) {
        self.sampled_vcpus.ask(gfn, thread);
    }
}

/// A slice in this process.
#[derive(Debug)]
pub struct Slice {
    /// Gone before the engine is.
    vm: Option<MicroVm>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    over: Loud,
    ram: Arc<GuestRam>,
    _huge_pages: HugePages,
}

impl Slice {
    /// Starts the engine and the vCPUs of a slice of the plan.
    ///
    /// # Errors
    /// KVM or userfaultfd refuse.
    pub fn new(plan: &Plan<'_>, local: u16, transport: Box<dyn Transport>) -> Result<Self> {
        let first = SHARED / 4096;
        let count = u16::try_from(plan.homes.len())?;
        let mut ranges = Vec::new();
        let mut start = first;
        for (home, pages) in (0..count).map(SliceId).zip(plan.homes) {
            ranges.push(HomeRange { frames: start..start + pages, home });
            start += pages;
        }
        let own = ranges.iter().filter(|range| range.home == SliceId(local));
        let own: Vec<_> = own.map(|range| range.frames.clone()).collect();
        let ram = GuestRam::with_memory(std::slice::from_ref(&(first..start)), &own, plan.memory)?;
        let ram = Arc::new(ram);
        let huge_pages = HugePages::start(Arc::clone(&ram))?;
        let all = (0..count).map(SliceId).collect();
        let mut node = NodeConfig::new(SliceId(local), all, HomeTable::new(ranges)?, Epoch(1));
        node.hold = plan.hold;
        node.mechanisms = plan.mechanisms;
        if plan.page_by_page.contains(&local) {
            node.mechanisms = node.mechanisms.page_by_page();
        }
        let at = usize::from(local);
        let places = plan.places.get(at).copied().unwrap_or(&[]);
        let sampled_vcpus = Arc::new(SampledVcpus::new(places.len(), Some(Arc::clone(&ram))));
        let over = Loud { over: Arc::default(), sampled_vcpus: Arc::clone(&sampled_vcpus) };
        let (handle, thread) = Engine::start(EngineConfig {
            bystanders: Vec::new(),
            wait_limit: Duration::from_secs(60),
            node,
            ram: Arc::clone(&ram),
            transport,
            uplink: Box::new(over.clone()),
            trace: Tracing::On,
            core: plan.engines.get(at).and_then(|place| place.core()),
        })
        .context("start a memory engine")?;
        sampled_vcpus.attach(handle.clone());
        let mut slice = Self {
            vm: None,
            handle,
            thread: Some(thread),
            over,
            ram: Arc::clone(&ram),
            _huge_pages: huge_pages,
        };
        if !places.is_empty() {
            let slots = ram.slots();
            let pages = plan.guest_pages;
            let vm =
                MicroVm::with_sampled_vcpus(plan.image, &slots, ram, places, pages, sampled_vcpus)?;
            slice.vm = Some(vm);
        }
        Ok(slice)
    }

    /// The slice's view of the shared memory.
    #[must_use]
    pub fn memory(&self) -> Arc<GuestRam> {
        Arc::clone(&self.ram)
    }

    fn vm(&self) -> Result<&MicroVm> {
        self.vm.as_ref().context("a slice without vCPUs")
    }

    /// Gives a vCPU a job.
    ///
    /// # Errors
    /// The vCPU has failed.
    pub fn start(&self, vcpu: usize, job: Job) -> Result<()> {
        self.vm()?.start(vcpu, job)
    }

    /// Waits for a vCPU's job.
    ///
    /// # Errors
    /// The vCPU has failed.
    pub fn wait(&self, vcpu: usize) -> Result<Done> {
        self.vm()?.wait(vcpu)
    }

    /// Writes memory through the engine.
    ///
    /// # Errors
    /// No memory there, or the engine has failed.
    pub fn write(&self, address: u64, bytes: Vec<u8>) -> Result<()> {
        self.handle.write(address, bytes, LIMIT).context("write memory through an engine")
    }

    /// Bytes of memory that are mapped in huge pages here.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn huge_bytes(&self) -> Result<u64> {
        self.ram.huge_bytes().context("count huge pages")
    }

    /// What the engine counted.
    ///
    /// # Errors
    /// The engine does not answer.
    pub fn report(&self) -> Result<Report> {
        self.handle.report(LIMIT).context("ask an engine for its report")
    }

    /// What the engine knows of pages.
    ///
    /// # Errors
    /// The engine does not answer.
    pub fn trace(&self) -> Result<TraceReport> {
        self.handle.trace(LIMIT).context("ask an engine for its trace")
    }

    /// Switches the trace; it is so when this returns.
    ///
    /// # Errors
    /// The engine does not answer.
    pub fn set_trace(&self, tracing: Tracing) -> Result<()> {
        self.handle.set_trace(tracing);
        self.report().map(drop)
    }

    /// From now on other slices may end.
    pub fn expect_end(&self) {
        self.over.over.store(true, Ordering::Relaxed);
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        self.vm = None;
        self.expect_end();
        self.handle.stop();
        // An engine that failed has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
