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

use crate::paging::{self, GuestPages};
use crate::placement::Place;
use crate::seats::Seats;
use crate::{image, placement};
use anyhow::{Context, Result, anyhow, bail};
use crossbeam_channel::{Receiver, Sender, bounded};
use dsm::GuestRam;
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use microguest::layout::{
    self, PORT_EXCEPTION, PORT_READY, PRIVATE_BYTES, SAMPLES, SHARED, stack_end,
};
use microguest::{Job, Kind};
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// No job takes longer.
const LIMIT: Duration = Duration::from_secs(120);

/// What a job left: itself, and the samples it took.
#[derive(Clone, Debug)]
pub struct Done {
    /// The job with its results.
    pub job: Job,
    /// Times in cycles.
    pub samples: Vec<u32>,
}

type Answer = Result<Done>;

#[derive(Debug)]
struct Vcpu {
    jobs: Option<Sender<Job>>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
}

/// Shared memory of a slice: first guest-physical address, host address, bytes.
pub type Slot = (u64, usize, u64);

/// A VM whose vCPUs wait for jobs.
#[derive(Debug)]
pub struct MicroVm {
    vcpus: Vec<Vcpu>,
    _vm: VmFd,
}

/// What the vCPU threads need of the VM. `keep` is whatever owns the shared memory.
#[derive(Clone)]
struct Inside {
    memory: Arc<GuestMemoryMmap>,
    seats: Arc<Seats>,
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
        let seats = Arc::new(Seats::new(places.len(), None));
        Self::with_seats(image, shared, keep, places, pages, seats)
    }

    /// The same, with vCPUs that can be asked where they wait for pages.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn with_seats(
        image: &Path,
        shared: &[Slot],
        keep: Arc<dyn Send + Sync>,
        places: &[Place],
        pages: GuestPages,
        seats: Arc<Seats>,
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
        let inside = Inside { memory: Arc::new(memory), seats, _keep: keep };
        let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("read CPUID")?;
        let mut vcpus = Vec::new();
        for (number, place) in (0u64..).zip(places) {
            let fd = vm.create_vcpu(number).context("create a vCPU")?;
            fd.set_cpuid2(&cpuid).context("set CPUID")?;
            enter(&fd, entry, number)?;
            vcpus.push(Vcpu::start(fd, number, inside.clone(), *place)?);
        }
        let vm = Self { vcpus, _vm: vm };
        for number in 0..vm.vcpus.len() {
            vm.run(number, Job { kind: Kind::Nothing as u64, ..Job::default() })?;
        }
        Ok(vm)
    }

    /// A VM with so many pages of memory and no engine.
    ///
    /// # Errors
    /// As for [`Self::new`], or there is no memory.
    pub fn without_dsm(
        image: &Path,
        pages: u64,
        places: &[Place],
        guest_pages: GuestPages,
    ) -> Result<Self> {
        let first = SHARED / 4096;
        let ram = Arc::new(GuestRam::new(std::slice::from_ref(&(first..first + pages)))?);
        let slots = ram.slots();
        Self::new(image, &slots, ram, places, guest_pages)
    }

    /// Gives a vCPU a job without waiting for it.
    ///
    /// # Errors
    /// The vCPU has failed.
    pub fn start(&self, vcpu: usize, mut job: Job) -> Result<()> {
        let number = u64::try_from(vcpu)?;
        job.samples = layout::samples(number);
        job.samples_max = SAMPLES;
        let sender = self.vcpus.get(vcpu).and_then(|vcpu| vcpu.jobs.as_ref());
        sender.context("no such vCPU")?.send(job).map_err(|_| anyhow!("vCPU {vcpu} has ended"))
    }

    /// Waits for the job that was started last.
    ///
    /// # Errors
    /// The guest met an exception, or KVM failed, or the job takes too long.
    pub fn wait(&self, vcpu: usize) -> Answer {
        let answers = self.vcpus.get(vcpu).map(|vcpu| &vcpu.answers).context("no such vCPU")?;
        answers.recv_timeout(LIMIT).with_context(|| format!("vCPU {vcpu} does not end its job"))?
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

impl Drop for MicroVm {
    fn drop(&mut self) {
        for vcpu in &mut self.vcpus {
            vcpu.jobs = None;
        }
        for vcpu in &mut self.vcpus {
            // A thread that panicked has said so.
            let _ = vcpu.thread.take().map(JoinHandle::join);
        }
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

impl Vcpu {
    fn start(mut fd: VcpuFd, number: u64, inside: Inside, place: Place) -> Result<Self> {
        let (jobs, orders) = bounded::<Job>(1);
        let (results, answers) = bounded(1);
        let thread = Builder::new().name(format!("micro-vcpu{number}")).spawn(move || {
            placement::settle(place);
            let seated = inside.seats.sit(number, &fd);
            if let Err(error) = seated.and_then(|()| until_ready(&mut fd, number, &inside)) {
                let _ = results.send(Err(error));
                return;
            }
            for job in orders {
                let answer = one(&mut fd, number, &inside, job);
                let failed = answer.is_err();
                if results.send(answer).is_err() || failed {
                    return;
                }
            }
        })?;
        Ok(Self { jobs: Some(jobs), answers, thread: Some(thread) })
    }
}

fn one(fd: &mut VcpuFd, number: u64, inside: &Inside, job: Job) -> Answer {
    let address = GuestAddress(layout::job(number));
    inside.memory.write_obj(job.words(), address)?;
    until_ready(fd, number, inside)?;
    let job = Job::from_words(inside.memory.read_obj(address)?);
    let mut samples = Vec::new();
    for at in 0..job.taken.min(SAMPLES) {
        samples.push(inside.memory.read_obj(GuestAddress(layout::samples(number) + at * 4))?);
    }
    Ok(Done { job, samples })
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
                inside.seats.tell(number, fd, &inside.memory);
            }
            Err(error) if error.errno() == libc::EAGAIN => {}
            Err(error) => return Err(error).context("run a vCPU"),
        }
    }
}
