//! One slice's VM with the microguest in it.
//!
//! ```text
//!   vCPU thread: --(KVM_RUN)--> "ready" port --job copied in--> (KVM_RUN: the job) --> "ready" port
//!                                  ^                                                      |
//!                                  +------------- job copied out, answered <--------------+
//! ```
//!
//! No interrupts, no devices, no kernel: what is measured is the processor, KVM and the memory.
#![expect(unsafe_code, reason = "memory slots name host memory by address")]
// UNSAFETY: the VM keeps everything alive that its slots point to.

use crate::image;
use crate::paging::{self, GuestPages};
use crate::placement::Place;
use crate::sampled_vcpus::SampledVcpus;
use crate::worker_pool::{Answer, Done, Worker, WorkerPool, spanned};
use anyhow::{Context, Result, bail};
use dsm::{GuestRam, HugePages, Memory};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use microguest::layout::{
    self, PORT_EXCEPTION, PORT_READY, PRIVATE_BYTES, SAMPLES, SHARED, stack_end,
};
use microguest::{Job, Kind};
use std::path::Path;
use std::sync::Arc;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use wire::Gfn;

impl Alone {
    /// So many pages of the default kind, of which the guest knows pages of 4 KiB.
    #[must_use]
    pub fn of(pages: u64) -> Self {
        Self { pages, memory: Memory::default(), collapse: true, guest_pages: GuestPages::Small }
    }
}

/// Shared memory of a slice: first guest-physical address, host address, bytes.
pub type Slot = (u64, usize, u64);

/// A VM whose vCPUs wait for jobs.
#[derive(Debug)]
pub struct MicroVm {
    vcpus: Vec<Worker>,
    _vm: VmFd,
    /// The shared memory, where there is no engine.
    ram: Option<Arc<GuestRam>>,
}

/// The memory of a VM without an engine.
#[derive(Clone, Copy, Debug)]
pub struct Alone {
    /// Pages of 4 KiB.
    pub pages: u64,
    /// What they are made of.
    pub memory: Memory,
    /// Whether memory of a memory file is put on huge pages, as a slice does.
    pub collapse: bool,
    /// How the guest maps it.
    pub guest_pages: GuestPages,
}

/// What the vCPU threads need of the VM. `keep` is whatever owns the shared memory.
#[derive(Clone)]
struct Inside {
    memory: Arc<GuestMemoryMmap>,
    sampled_vcpus: Arc<SampledVcpus>,
    _keep: Arc<dyn Send + Sync>,
}

impl MicroVm {
    /// A VM with its vCPUs at their first job. Each place is where a vCPU's thread runs.
    ///
    /// # Errors
    /// KVM refuses, or the image is none.
    pub fn new(
        image: &Path,
        shared: &[Slot],
        keep: Arc<dyn Send + Sync>,
        places: &[Place],
        pages: GuestPages,
    ) -> Result<Self> {
        let sampled_vcpus = Arc::new(SampledVcpus::new(places.len(), None));
        Self::with_sampled_vcpus(image, shared, keep, places, pages, sampled_vcpus)
    }

    /// The same, with vCPUs that can be asked where they wait for pages.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn with_sampled_vcpus(
        image: &Path,
        shared: &[Slot],
        keep: Arc<dyn Send + Sync>,
        places: &[Place],
        pages: GuestPages,
        sampled_vcpus: Arc<SampledVcpus>,
    ) -> Result<Self> {
        let kvm = Kvm::new().context("open /dev/kvm")?;
        let vm = kvm.create_vm().context("create a VM")?;
        let size = usize::try_from(PRIVATE_BYTES)?;
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), size)])?;
        let entry = image::load(image, &memory)?;
        let bytes = shared.iter().map(|(start, _, bytes)| start + bytes - SHARED).max();
        paging::write(&memory, bytes.unwrap_or(0), pages)?;
        let private = memory.get_host_address(GuestAddress(0))?.expose_provenance();
        let slots = [(0, private, PRIVATE_BYTES)];
        for ((start, host, bytes), slot) in slots.iter().chain(shared).zip(0..) {
            let region = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: *start,
                memory_size: *bytes,
                userspace_addr: u64::try_from(*host)?,
            };
            // SAFETY: the vCPU threads hold both memories, and the VM is gone before them.
            unsafe { vm.set_user_memory_region(region) }.context("set a memory slot")?;
        }
        let inside = Inside { memory: Arc::new(memory), sampled_vcpus, _keep: keep };
        let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("read CPUID")?;
        let mut vcpus = Vec::new();
        for (number, place) in (0u64..).zip(places) {
            let fd = vm.create_vcpu(number).context("create a vCPU")?;
            fd.set_cpuid2(&cpuid).context("set CPUID")?;
            enter(&fd, entry, number)?;
            vcpus.push(vcpu(fd, number, inside.clone(), *place)?);
        }
        let vm = Self { vcpus, _vm: vm, ram: None };
        for number in 0..vm.vcpus.len() {
            vm.run(number, Job { kind: Kind::Nothing as u64, ..Job::default() })?;
        }
        Ok(vm)
    }

    /// A VM with memory of its own and no engine.
    ///
    /// # Errors
    /// As for [`Self::new`], or there is no memory.
    pub fn without_dsm(image: &Path, alone: &Alone, places: &[Place]) -> Result<Self> {
        let first = SHARED / 4096;
        let frames = first..first + alone.pages;
        let frames = std::slice::from_ref(&frames);
        let ram = Arc::new(GuestRam::with_memory(frames, frames, alone.memory)?);
        let thread = alone.collapse.then(|| HugePages::start(Arc::clone(&ram))).transpose()?;
        let keep = Arc::new((thread, Arc::clone(&ram)));
        let mut vm = Self::new(image, &ram.slots(), keep, places, alone.guest_pages)?;
        vm.ram = Some(ram);
        Ok(vm)
    }

    /// Writes memory of a VM without an engine.
    ///
    /// # Errors
    /// There is an engine.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let ram = self.ram.as_ref().context("a VM without DSM")?;
        for (page, bytes) in (address / 4096..).zip(bytes.chunks(4096)) {
            ram.write(Gfn(page), 0, bytes);
        }
        Ok(())
    }

    /// Bytes of memory of a VM without an engine that are mapped in huge pages.
    ///
    /// # Errors
    /// The kernel does not tell, or there is an engine.
    pub fn huge_bytes(&self) -> Result<u64> {
        let ram = self.ram.as_ref().context("a VM without DSM")?;
        ram.huge_bytes().context("count huge pages")
    }

    /// Gives a vCPU a job without waiting for it.
    ///
    /// # Errors
    /// The vCPU has failed.
    pub fn start(&self, vcpu: usize, mut job: Job) -> Result<()> {
        let number = u64::try_from(vcpu)?;
        job.samples = layout::samples(number);
        job.samples_max = SAMPLES;
        let worker = self.vcpus.get(vcpu).context("no such vCPU")?;
        worker.give(job).with_context(|| format!("vCPU {vcpu}"))
    }

    /// Waits for the job that was started last.
    ///
    /// # Errors
    /// The guest met an exception, or KVM failed, or the job takes too long.
    pub fn wait(&self, vcpu: usize) -> Answer {
        self.vcpus.get(vcpu).context("no such vCPU")?.answer()
    }

    /// Runs a job to its end.
    ///
    /// # Errors
    /// As for [`Self::start`] and [`Self::wait`].
    pub fn run(&self, vcpu: usize, job: Job) -> Answer {
        self.start(vcpu, job)?;
        self.wait(vcpu)
    }
}

impl WorkerPool for MicroVm {
    fn start(&mut self, worker: usize, job: Job) -> Result<()> {
        Self::start(self, worker, job)
    }

    fn wait(&mut self, worker: usize) -> Result<Done> {
        Self::wait(self, worker)
    }
}

impl Drop for MicroVm {
    fn drop(&mut self) {
        self.vcpus.iter_mut().for_each(Worker::dismiss);
    }
}

fn enter(fd: &VcpuFd, entry: u64, number: u64) -> Result<()> {
    let sregs = fd.get_sregs().context("read system registers")?;
    fd.set_sregs(&paging::user_mode(sregs)).context("set system registers")?;
    // The stack is as after a call (System V ABI, 3.2.2).
    let regs = kvm_regs {
        rip: entry,
        rsp: stack_end(number) - 8,
        rdi: layout::job(number),
        rflags: 2,
        ..Default::default()
    };
    fd.set_regs(&regs).context("set registers")
}

/// Starts a vCPU's thread.
fn vcpu(mut fd: VcpuFd, number: u64, inside: Inside, place: Place) -> Result<Worker> {
    let mut entered = false;
    Worker::start(format!("micro-vcpu{number}"), place, move |job| {
        if !entered {
            inside.sampled_vcpus.attach_thread(number, &fd)?;
            until_ready(&mut fd, number, &inside)?;
            entered = true;
        }
        one(&mut fd, number, &inside, job)
    })
}

fn one(fd: &mut VcpuFd, number: u64, inside: &Inside, job: Job) -> Answer {
    let address = GuestAddress(layout::job(number));
    inside.memory.write_obj(job.words(), address)?;
    let (result, span) = spanned(|| until_ready(fd, number, inside));
    result?;
    let job = Job::from_words(inside.memory.read_obj(address)?);
    let mut samples = Vec::new();
    for at in 0..job.taken.min(SAMPLES) {
        samples.push(inside.memory.read_obj(GuestAddress(layout::samples(number) + at * 4))?);
    }
    Ok(Done { job, samples, span })
}

fn until_ready(fd: &mut VcpuFd, number: u64, inside: &Inside) -> Result<()> {
    loop {
        match fd.run() {
            Ok(VcpuExit::IoOut(PORT_READY, _)) => return Ok(()),
            Ok(VcpuExit::IoOut(PORT_EXCEPTION, data)) => {
                let number = data.first().copied();
                let registers = fd.get_regs();
                bail!("the microguest met exception {number:?}: {registers:x?}");
            }
            Ok(exit) => {
                let exit = format!("{exit:?}");
                bail!("the microguest ended with {exit}: {:x?}", fd.get_regs());
            }
            Err(error) if error.errno() == libc::EINTR => {
                inside.sampled_vcpus.tell(number, fd, &inside.memory);
            }
            Err(error) if error.errno() == libc::EAGAIN => {}
            Err(error) => return Err(error).context("run a vCPU"),
        }
    }
}
