//! Where vCPUs of a microguest can be asked which code waits for a page, as in a slice of a real VM.

use anyhow::{Context, Result};
use dsm::{GuestRam, Handle};
use kvm_ioctls::VcpuFd;
use std::sync::{Arc, OnceLock};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm::trace::{Memory, site};
use vmm::vcpu::{Awaited, Doorbell, drain, prepare_thread};
use wire::{Gfn, VcpuId};

#[derive(Debug, Default)]
struct SampledVcpu {
    doorbell: Doorbell,
    awaited: Awaited,
}

/// The vCPUs of one slice.
#[derive(Debug)]
pub struct SampledVcpus {
    vcpus: Vec<SampledVcpu>,
    ram: Option<Arc<GuestRam>>,
    engine: OnceLock<Handle>,
}

/// The guest's memory: private, and shared.
struct View<'a> {
    private: &'a GuestMemoryMmap,
    shared: Option<&'a GuestRam>,
}

impl Memory for View<'_> {
    fn peek(&self, address: u64, out: &mut [u8]) -> bool {
        self.private.read_slice(out, GuestAddress(address)).is_ok()
            || self.shared.is_some_and(|ram| Memory::peek(ram, address, out))
    }
}

impl SampledVcpus {
    /// For so many vCPUs, and the memory that they share.
    #[must_use]
    pub fn new(vcpus: usize, ram: Option<Arc<GuestRam>>) -> Self {
        let vcpus = (0..vcpus).map(|_| SampledVcpu::default()).collect();
        Self { vcpus, ram, engine: OnceLock::new() }
    }

    /// Who gets the answers.
    pub fn attach(&self, engine: Handle) {
        // There is one engine; a second one would be asked by nobody.
        let _ = self.engine.set(engine);
    }

    fn vcpu(&self, number: u64) -> Option<&SampledVcpu> {
        usize::try_from(number).ok().and_then(|number| self.vcpus.get(number))
    }

    /// The calling thread is that of a vCPU from now on.
    pub(crate) fn attach_thread(&self, number: u64, fd: &VcpuFd) -> Result<()> {
        prepare_thread(fd).context("prepare the signals of a vCPU")?;
        self.vcpu(number).context("no such vCPU")?.doorbell.attach();
        Ok(())
    }

    /// Asks the vCPU with this thread where it waits for a page.
    pub(crate) fn ask(&self, gfn: Gfn, thread: u32) {
        let is_thread = |vcpu: &&SampledVcpu| {
            vcpu.doorbell.tid().is_some_and(|tid| u32::try_from(tid) == Ok(thread))
        };
        if let Some(vcpu) = self.vcpus.iter().find(is_thread) {
            vcpu.awaited.ask(gfn, true);
            vcpu.doorbell.ring();
        }
    }

    /// Answers for a vCPU that was kicked. Called on its thread.
    pub(crate) fn tell(&self, number: u64, fd: &VcpuFd, private: &GuestMemoryMmap) {
        drain();
        let Some((gfn, _)) = self.vcpu(number).and_then(|vcpu| vcpu.awaited.take()) else { return };
        let (Ok(regs), Ok(sregs)) = (fd.get_regs(), fd.get_sregs()) else { return };
        let Some(engine) = self.engine.get() else { return };
        let vcpu = VcpuId(u32::try_from(number).unwrap_or(u32::MAX));
        let memory = View { private, shared: self.ram.as_deref() };
        engine.sampled(gfn, site(&memory, vcpu, gfn, &regs, &sregs));
    }
}
