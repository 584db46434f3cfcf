//! Making the KVM objects of a machine.

#![expect(unsafe_code, reason = "memory slots and one ioctl that kvm-ioctls lacks")]
// UNSAFETY: a memory slot hands process memory to the guest by address.

use super::saved::HostKvm;
use super::{Machine, MachineConfig, MachineError, MemorySlot, Running, Shared, VcpuCore};
use crate::interrupts::ghost::{GhostInterrupts, stub};
use crate::interrupts::lapic::TSC_DEADLINE;
use crate::interrupts::userspace::Userspace;
use crate::interrupts::{InterruptBackEnd, Interrupts};
use crate::timer_spacing::TimerSpacing;
use crate::tsc::GuestTsc;
use kvm_bindings::{
    CpuId, KVM_CAP_ENFORCE_PV_FEATURE_CPUID, KVM_CAP_EXCEPTION_PAYLOAD,
    KVM_CAP_X86_TRIPLE_FAULT_EVENT, KVM_CAP_X86_USER_SPACE_MSR, KVM_MSR_EXIT_REASON_FILTER,
    KVM_MSR_EXIT_REASON_INVAL, KVM_MSR_EXIT_REASON_UNKNOWN, kvm_cpuid_entry2, kvm_device_attr,
    kvm_enable_cap, kvm_userspace_memory_region,
};
use kvm_ioctls::{
    Cap, Error, Kvm, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VcpuFd, VmFd,
};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::ioctl_iow_nr;
use wire::VcpuId;

const KVMIO: u32 = 0xAE;
ioctl_iow_nr!(KVM_SET_DEVICE_ATTR, KVMIO, 0xe1, kvm_device_attr);
ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xe2, kvm_device_attr);

/// Three pages that Intel's KVM needs below 4 GiB for real mode, out of the way of everything.
const TSS_ADDRESS: usize = 0xfffb_d000;
/// APIC base register: the default address, x2APIC mode, enabled.
const APIC_BASE_X2APIC: u64 = 0xfee0_0c00;
/// The same register's flag of the boot vCPU.
const APIC_BASE_BOOT: u64 = 1 << 8;

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
pub(crate) fn add_slot(vm: &VmFd, number: u32, slot: &MemorySlot) -> Result<(), Error> {
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

/// The attribute `KVM_VCPU_TSC_OFFSET`, with its value at `value`.
fn tsc_offset_at(value: *mut u64) -> kvm_device_attr {
    let addr = u64::try_from(value.expose_provenance()).expect("an address fits u64");
    kvm_device_attr { addr, ..Default::default() }
}

/// What KVM adds to the host's counter for this vCPU.
pub(super) fn tsc_offset(fd: &VcpuFd) -> Result<u64, Error> {
    let mut offset = 0;
    let attribute = tsc_offset_at(&raw mut offset);
    // SAFETY: the kernel writes eight bytes to `offset`, which outlives the call.
    if unsafe { ioctl_with_ref(fd, KVM_GET_DEVICE_ATTR(), &attribute) } == 0 {
        Ok(offset)
    } else {
        Err(Error::last())
    }
}

/// Sets what KVM adds to the host's counter for this vCPU.
pub(super) fn set_tsc_offset(fd: &VcpuFd, mut offset: u64) -> Result<(), Error> {
    let attribute = tsc_offset_at(&raw mut offset);
    // SAFETY: the kernel reads eight bytes of `offset`, which outlives the call.
    if unsafe { ioctl_with_ref(fd, KVM_SET_DEVICE_ATTR(), &attribute) } == 0 {
        Ok(())
    } else {
        Err(Error::last())
    }
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
    let vm = vm_step("create a virtual machine", kvm.create_vm())?;
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
    let vm = Arc::new(vm_step("create a virtual machine", kvm.create_vm())?);
    vm_step("place the real-mode TSS", vm.set_tss_address(TSS_ADDRESS))?;
    let ghosts = config.back_end == InterruptBackEnd::Ghost;
    if ghosts {
        stub::enable_split_irqchip(&vm)?;
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
    let (interrupts, ghosts): (Arc<dyn Interrupts>, _) = match config.back_end {
        InterruptBackEnd::Userspace => {
            let (remote, hooks) = (Arc::clone(&config.remote), Arc::clone(&config.hooks));
            let spacing = config.timer_spacing;
            let placement = config.placement.clone();
            let clock = Arc::clone(&clock);
            let userspace = Userspace::new(&cores, placement, remote, hooks, clock, spacing);
            (Arc::new(userspace), Vec::new())
        }
        InterruptBackEnd::Ghost => {
            let (spacing, memory) = (config.timer_spacing, &config.memory);
            let (back_end, ghosts) = GhostInterrupts::create(
                &vm,
                (&cores, &config.placement),
                &clock,
                spacing,
                memory,
                &config.cpuid,
            )?;
            (Arc::new(back_end), ghosts)
        }
    };
    let MachineConfig { placement, remote, hooks, shutdown, .. } = config;
    let shared = Arc::new(Shared {
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
        ghosts: Mutex::new(ghosts),
        vm,
    });
    let machine = Machine { shared };
    let offset = machine.tsc_offset()?;
    machine.shared.clock.set_offset(offset);
    Ok(machine)
}
