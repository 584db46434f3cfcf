//! What a machine is made of.

use crate::interrupts::{InterruptBackEnd, RemoteInterrupts};
use crate::timer_spacing::TimerSpacing;
use crate::tsc::ClockRate;
use crate::vcpu::VcpuError;
use devices::ShutdownSink;
use kvm_bindings::{kvm_cpuid_entry2, kvm_regs, kvm_sregs};
use migrate::PlacementView;
use std::fmt;
use std::sync::Arc;
use wire::{Gfn, VcpuId};

/// Guest memory that the caller has mapped, and keeps mapped for as long as the machine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySlot {
    /// Guest-physical address of the first byte.
    pub guest_address: u64,
    /// Address of the first byte in this process.
    pub host_address: usize,
    /// Size in bytes.
    pub bytes: u64,
}

/// What the machine tells its owner. Called on vCPU threads.
pub trait MachineHooks: Send + Sync {
    /// The vCPU exited with another CR3 than before. `cr3` is masked to its frame.
    fn cr3_changed(&self, vcpu: VcpuId, cr3: u64) {
        let _ = (vcpu, cr3);
    }

    /// KVM refused the vCPU access to guest memory. True when it may try again.
    fn access_refused(&self, vcpu: VcpuId) -> bool {
        let _ = vcpu;
        false
    }

    /// Called for an MMIO exit. If the address is guest memory, performs the access there: writes `data`, or reads into
    /// it. KVM reports such an exit when it could not reach the page, for example because it is protected.
    fn access_memory(&self, address: u64, data: MemoryAccess<'_>) -> InMemory {
        let _ = (address, data);
        InMemory::No
    }

    /// Answers [`Machine::sample_fault`](super::Machine::sample_fault): where a vCPU is that waits for
    /// a page, or, unless it is `certain`, may do so.
    fn fault_seen(
        &self,
        vcpu: VcpuId,
        gfn: Gfn,
        certain: bool,
        regs: &kvm_regs,
        sregs: &kvm_sregs,
    ) {
        let _ = (vcpu, gfn, certain, regs, sregs);
    }

    /// A vCPU cannot go on; its thread ends after this call.
    fn fatal(&self, error: &VcpuError);
}

/// An access of up to 8 bytes within a page.
#[derive(Debug)]
pub enum MemoryAccess<'a> {
    /// Reads into this.
    Read(&'a mut [u8]),
    /// Writes this.
    Write(&'a [u8]),
}

/// What became of an access that KVM took for one of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InMemory {
    /// The address is no memory: it is for the bus.
    No,
    /// It was memory, and is done.
    Done,
    /// It is memory that cannot be reached.
    Failed,
}

/// The machine on this host.
pub struct MachineConfig {
    /// Where the vCPUs of the VM are, as this slice reads it.
    pub placement: PlacementView,
    /// Guest memory, mapped by the caller. A userfaultfd of the caller may block vCPUs in it.
    pub memory: Vec<MemorySlot>,
    /// CPUID of each vCPU of the VM, by id.
    pub cpuid: Vec<Vec<kvm_cpuid_entry2>>,
    /// Told of interrupts that concern other slices.
    pub remote: Arc<dyn RemoteInterrupts>,
    /// Told when the guest resets itself by a triple fault.
    pub shutdown: Arc<dyn ShutdownSink>,
    /// Told what happens on vCPUs.
    pub hooks: Arc<dyn MachineHooks>,
    /// Implementation of interrupts.
    pub back_end: InterruptBackEnd,
    /// Minimum time between timer interrupts of a vCPU.
    pub timer_spacing: TimerSpacing,
    /// Speed of the guest's clock.
    pub clock_rate: ClockRate,
}

impl fmt::Debug for MachineConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineConfig")
            .field("placement", &self.placement)
            .field("memory", &self.memory)
            .field("back_end", &self.back_end)
            .field("timer_spacing", &self.timer_spacing)
            .field("clock_rate", &self.clock_rate)
            .finish_non_exhaustive()
    }
}
