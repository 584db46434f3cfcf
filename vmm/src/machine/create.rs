//! Making the KVM objects of a machine.

#![expect(unsafe_code, reason = "memory slots")]
// UNSAFETY: a memory slot hands process memory to the guest by address.

use super::new_vm::new_vm;
use super::saved::HostKvm;
use super::slot::Slot;
use super::{Machine, MachineConfig, MachineError, MemorySlot, Running, Shared};
use crate::interrupts::ghost::{self, GhostInterrupts, StubRegion};
use crate::interrupts::lapic::TSC_DEADLINE;
use crate::interrupts::userspace::Userspace;
use crate::interrupts::{InterruptBackEnd, Interrupts};
use crate::timer_spacing::TimerSpacing;
use crate::tsc::GuestTsc;
use crate::vcpu::VcpuCore;
use kvm_bindings::{
    CpuId, KVM_CAP_ENFORCE_PV_FEATURE_CPUID, KVM_CAP_EXCEPTION_PAYLOAD, KVM_CAP_SPLIT_IRQCHIP,
    KVM_CAP_X2APIC_API, KVM_CAP_X86_TRIPLE_FAULT_EVENT, KVM_CAP_X86_USER_SPACE_MSR,
    KVM_MSR_EXIT_REASON_FILTER, KVM_MSR_EXIT_REASON_INVAL, KVM_MSR_EXIT_REASON_UNKNOWN,
    KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK, KVM_X2APIC_API_USE_32BIT_IDS, kvm_cpuid_entry2,
    kvm_enable_cap, kvm_userspace_memory_region,
};
use kvm_ioctls::{
    Cap, Error, Kvm, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VcpuFd, VmFd,
};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use wire::VcpuId;

/// Three pages that Intel's KVM needs below 4 GiB for real mode, out of the way of everything.
const TSS_ADDRESS: usize = 0xfffb_d000;
/// APIC base register: the default address, x2APIC mode, enabled.
const APIC_BASE_X2APIC: u64 = 0xfee0_0c00;
/// The same register's flag of the boot vCPU.
const APIC_BASE_BOOT: u64 = 1 << 8;

/// Interrupt pins that are routed in user space, for an interrupt controller that is there too.
const PINS: u64 = 24;

/// Capabilities that both back ends use.
const NEEDED: [(Cap, &str); 5] = [
    (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
    (Cap::X86UserSpaceMsr, "KVM_CAP_X86_USER_SPACE_MSR (Linux 5.10)"),
    (Cap::X86MsrFilter, "KVM_CAP_X86_MSR_FILTER (Linux 5.10)"),
    (Cap::SyncRegs, "KVM_CAP_SYNC_REGS"),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
];

/// Names the step that failed.
pub(crate) fn vm_step<T>(
    action: &'static str,
    result: Result<T, Error>,
) -> Result<T, MachineError> {
    result.map_err(|source| MachineError::Vm { action, source: source.into() })
}

fn check(config: &MachineConfig) -> Result<(), MachineError> {
    let refuse = |reason: String| Err(MachineError::Config { reason });
    let vcpus = config.placement.load().vcpus().len();
    if config.cpuid.len() != vcpus {
        return refuse(format!("{vcpus} vCPUs but {} CPUIDs", config.cpuid.len()));
    }
    for slot in &config.memory {
        if slot.bytes == 0 || (slot.guest_address | slot.bytes) & 0xfff != 0 {
            return refuse(format!("memory slot {slot:x?} is not made of whole pages"));
        }
    }
    Ok(())
}

/// Hands `slot` to the guest.
fn add_slot(vm: &VmFd, number: u32, slot: &MemorySlot) -> Result<(), Error> {
    let region = kvm_userspace_memory_region {
        slot: number,
        flags: 0,
        guest_phys_addr: slot.guest_address,
        memory_size: slot.bytes,
        userspace_addr: u64::try_from(slot.host_address).expect("an address fits u64"),
    };
    // SAFETY: the owner of the slot keeps it mapped while the machine lives (see `MemorySlot`).
    unsafe { vm.set_user_memory_region(region) }
}

/// Turns on local APICs in the kernel with 32-bit ids, before any vCPU exists.
fn enable_split_irqchip(vm: &VmFd) -> Result<(), MachineError> {
    let flags = KVM_X2APIC_API_USE_32BIT_IDS | KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK;
    for (cap, value, action) in [
        (KVM_CAP_SPLIT_IRQCHIP, PINS, "put the local APICs in the kernel"),
        (KVM_CAP_X2APIC_API, u64::from(flags), "use 32-bit APIC ids"),
    ] {
        let mut request = kvm_enable_cap { cap, ..Default::default() };
        request.args[0] = value;
        vm_step(action, vm.enable_cap(&request))?;
    }
    Ok(())
}

/// Lets user space answer the registers that KVM does not know, and `deadline` too if asked.
fn handle_msrs(vm: &VmFd, deadline: Option<MsrFilterRangeFlags>) -> Result<(), MachineError> {
    let reasons = u64::from(
        KVM_MSR_EXIT_REASON_INVAL | KVM_MSR_EXIT_REASON_UNKNOWN | KVM_MSR_EXIT_REASON_FILTER,
    );
    let mut cap = kvm_enable_cap { cap: KVM_CAP_X86_USER_SPACE_MSR, ..Default::default() };
    cap.args[0] = reasons;
    vm_step("let user space answer unknown MSRs", vm.enable_cap(&cap))?;
    let Some(flags) = deadline else { return Ok(()) };
    // A zero bit denies, and a denied access is an exit.
    let range = MsrFilterRange { flags, base: TSC_DEADLINE, msr_count: 1, bitmap: &[0] };
    let filter = vm.set_msr_filter(MsrFilterDefaultAction::ALLOW, &[range]);
    vm_step("filter the TSC deadline register", filter)
}

/// Has KVM tell exceptions with what they will change, and triple faults, before they have happened.
fn tell_events(vm: &VmFd) -> Result<(), MachineError> {
    for cap in [KVM_CAP_EXCEPTION_PAYLOAD, KVM_CAP_X86_TRIPLE_FAULT_EVENT] {
        if vm.check_extension_raw(cap.into()) > 0 {
            let mut cap = kvm_enable_cap { cap, ..Default::default() };
            cap.args[0] = 1;
            vm_step("have pending events told in full", vm.enable_cap(&cap))?;
        }
    }
    Ok(())
}

/// Creates one vCPU with its CPUID and its APIC in x2APIC mode.
pub(crate) fn create_vcpu(
    vm: &VmFd,
    id: VcpuId,
    cpuid: &[kvm_cpuid_entry2],
) -> Result<VcpuFd, MachineError> {
    let step =
        |action, source: Error| MachineError::Vcpu { vcpu: id, action, source: source.into() };
    let fd =
        vm.create_vcpu(u64::from(id.0)).map_err(|source| step("create the KVM vCPU", source))?;
    let entries =
        CpuId::from_entries(cpuid).map_err(|_| step("fit the CPUID", Error::new(libc::E2BIG)))?;
    fd.set_cpuid2(&entries).map_err(|source| step("set the CPUID", source))?;
    if vm.check_extension_raw(KVM_CAP_ENFORCE_PV_FEATURE_CPUID.into()) > 0 {
        // What CPUID hides is not there: paravirtual registers would tie the guest to this host.
        let mut cap =
            kvm_enable_cap { cap: KVM_CAP_ENFORCE_PV_FEATURE_CPUID, ..Default::default() };
        cap.args[0] = 1;
        fd.enable_cap(&cap).map_err(|source| step("enforce the paravirtual CPUID", source))?;
    }
    let mut sregs = fd.get_sregs().map_err(|source| step("read system registers", source))?;
    sregs.apic_base = APIC_BASE_X2APIC | if id.0 == 0 { APIC_BASE_BOOT } else { 0 };
    fd.set_sregs(&sregs).map_err(|source| step("set x2APIC mode", source))?;
    Ok(fd)
}

/// Frequency of the time stamp counter of this host in kHz.
///
/// # Errors
/// When KVM cannot be used or does not know.
pub fn host_tsc_khz() -> Result<u32, MachineError> {
    let kvm = open_kvm()?;
    let vm = vm_step("create a virtual machine", new_vm(&kvm))?;
    let vcpu = vm_step("create a vCPU", vm.create_vcpu(0))?;
    vm_step("read the TSC frequency", vcpu.get_tsc_khz())
}

pub(crate) fn open_kvm() -> Result<Kvm, MachineError> {
    let kvm = Kvm::new().map_err(|source| MachineError::Open { source: source.into() })?;
    for (cap, what) in NEEDED {
        if !kvm.check_extension(cap) {
            return Err(MachineError::Missing { what });
        }
    }
    Ok(kvm)
}

pub(super) fn create(config: MachineConfig) -> Result<Machine, MachineError> {
    check(&config)?;
    let kvm = open_kvm()?;
    let vm = Arc::new(vm_step("create a virtual machine", new_vm(&kvm))?);
    vm_step("place the real-mode TSS", vm.set_tss_address(TSS_ADDRESS))?;
    let ghosts = config.back_end == InterruptBackEnd::Ghost;
    if ghosts {
        enable_split_irqchip(&vm)?;
    }
    let deadline = match (ghosts, config.timer_spacing) {
        (false, _) => Some(MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE),
        (true, TimerSpacing::Off) => None,
        (true, _) => Some(MsrFilterRangeFlags::WRITE),
    };
    handle_msrs(&vm, deadline)?;
    tell_events(&vm)?;
    for (number, slot) in (0..).zip(&config.memory) {
        vm_step("set a memory slot", add_slot(&vm, number, slot))?;
    }
    let cores: Vec<_> = (0u32..)
        .zip(config.placement.load().vcpus())
        .map(|(id, _)| Arc::new(VcpuCore::new(VcpuId(id))))
        .collect();
    let mut khz = None;
    for core in cores.iter().filter(|core| ghosts || config.placement.is_here(core.id)) {
        let fd = create_vcpu(&vm, core.id, &config.cpuid[core.place])?;
        if khz.is_none() {
            khz = Some(vm_step("read the TSC frequency", fd.get_tsc_khz())?);
        }
        *core.fd.lock().unwrap_or_else(PoisonError::into_inner) = Some(fd);
    }
    let khz = khz.map_or_else(host_tsc_khz, Ok)?;
    let host = vm_step("list what KVM tells of a vCPU", HostKvm::look(&kvm, &vm))?;
    finish(config, vm, cores, khz, host)
}

fn finish(
    config: MachineConfig,
    vm: Arc<VmFd>,
    cores: Vec<Arc<VcpuCore>>,
    khz: u32,
    host: HostKvm,
) -> Result<Machine, MachineError> {
    let clock = Arc::new(GuestTsc::new(khz, config.clock_rate));
    let interrupts: Arc<dyn Interrupts> = match config.back_end {
        InterruptBackEnd::Userspace => {
            let (remote, spacing) = (Arc::clone(&config.remote), config.timer_spacing);
            let placement = config.placement.clone();
            let clock = Arc::clone(&clock);
            Arc::new(Userspace::new(&cores, placement, remote, clock, spacing))
        }
        InterruptBackEnd::Ghost => Arc::new(with_ghosts(&config, &vm, &cores, &clock)?),
    };
    let MachineConfig { placement, remote, hooks, shutdown, cpuid, .. } = config;
    let slot = |core: &Arc<VcpuCore>| Slot::new(placement.is_here(core.id));
    let shared = Arc::new(Shared {
        saved: cores.iter().map(|_| Mutex::default()).collect(),
        slots: cores.iter().map(slot).collect(),
        cpuid,
        bus: Mutex::default(),
        cores,
        placement,
        interrupts,
        remote,
        hooks,
        shutdown,
        clock,
        stop: Arc::new(AtomicBool::new(false)),
        running: Arc::new(Running::default()),
        gate: super::gate::Gate::default(),
        host,
        handovers: super::Timers::default(),
        spare: super::Spare::default(),
        vm,
    });
    let machine = Machine { shared };
    let offset = machine.tsc_offset()?;
    machine.shared.clock.set_offset(offset);
    Ok(machine)
}

/// The back end with ghosts for the vCPUs elsewhere. Their memory is one more slot beside the guest's, with room for all
/// vCPUs, since each may move.
fn with_ghosts(
    config: &MachineConfig,
    vm: &Arc<VmFd>,
    cores: &[Arc<VcpuCore>],
    clock: &Arc<GuestTsc>,
) -> Result<GhostInterrupts, MachineError> {
    let count = u32::try_from(cores.len()).unwrap_or(u32::MAX);
    let region = StubRegion::new(count, ghost::address_bits(&config.cpuid))
        .map_err(|source| MachineError::Vm { action: "map the ghosts' memory", source })?;
    let (guest_address, host_address, bytes) = region.slot();
    let end = guest_address + bytes;
    if config
        .memory
        .iter()
        .any(|other| other.guest_address < end && guest_address < other.guest_address + other.bytes)
    {
        let reason = format!("guest memory covers {guest_address:#x}, where ghosts live");
        return Err(MachineError::Config { reason });
    }
    let number = u32::try_from(config.memory.len()).unwrap_or(u32::MAX);
    let slot = MemorySlot { guest_address, host_address, bytes };
    vm_step("give the ghosts their memory", add_slot(vm, number, &slot))?;
    Ok(GhostInterrupts::new(vm, cores, clock, config.timer_spacing, region))
}
