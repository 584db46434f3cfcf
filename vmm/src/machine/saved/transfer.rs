//! Taking the state of a vCPU from KVM, and giving it to a new one. The order is in the module's text.

#![expect(unsafe_code, reason = "XSAVE areas of any size, and two ioctls that kvm-ioctls lacks")]
// UNSAFETY: KVM reads and writes as many bytes of an XSAVE area as it says by KVM_CAP_XSAVE2.

use super::msrs::{APIC_BASE, TSC};
use super::{Debug, Events, Msr, MsrSet, Running, System, VcpuState, XsaveArea};
use crate::interrupts::VcpuApic;
use crate::interrupts::lapic::TSC_DEADLINE;
use crate::interrupts::saved::ApicState;
use crate::machine::new_vm::new_vm;
use crate::vcpu::StateError;
use crate::vcpu::kvm::{complete_exit, set_tsc_offset, tsc_offset};
use kvm_bindings::{
    KVM_CAP_SREGS2, KVM_CAP_XSAVE2, KVM_MAX_MSR_ENTRIES, Msrs, Xsave, kvm_mp_state, kvm_msr_entry,
    kvm_sregs2, kvm_xsave,
};
use kvm_ioctls::{Error, Kvm, VcpuFd, VmFd};
use migrate::SavedState;
use std::collections::BTreeSet;
use vmm_sys_util::ioctl::{ioctl_with_mut_ref, ioctl_with_ref};
use vmm_sys_util::{ioctl_ior_nr, ioctl_iow_nr};
use wire::VcpuId;

const KVMIO: u32 = 0xAE;
ioctl_ior_nr!(KVM_GET_SREGS2, KVMIO, 0xcc, kvm_sregs2);
ioctl_iow_nr!(KVM_SET_SREGS2, KVMIO, 0xcd, kvm_sregs2);

/// Bytes of `kvm_xsave` without its flexible end.
const XSAVE_FIXED: usize = 4096;

/// Where counters cannot be moved, the clocks of two slices on one host differ by what measuring them has missed.
const NOISE_TICKS: u64 = 100_000;

/// What KVM on this host tells of a vCPU.
#[derive(Clone, Debug)]
pub(crate) struct HostKvm {
    /// Bytes of an XSAVE area; none before Linux 5.17, where it always has 4096.
    xsave_bytes: Option<usize>,
    /// `KVM_GET_SREGS2` is there.
    has_sregs2: bool,
    /// What is added to the counter of a vCPU can be set.
    moves_counters: bool,
    /// Registers of `KVM_GET_MSR_INDEX_LIST`, each once, without those that are saved elsewhere.
    msrs: Vec<u32>,
}

impl HostKvm {
    pub(crate) fn look(kvm: &Kvm, vm: &VmFd) -> Result<Self, Error> {
        let bytes = usize::try_from(vm.check_extension_raw(KVM_CAP_XSAVE2.into())).unwrap_or(0);
        let list = kvm.get_msr_index_list()?;
        let mut seen = BTreeSet::from([TSC, APIC_BASE]);
        let mut msrs = list.as_slice().to_vec();
        msrs.retain(|index| seen.insert(*index));
        Ok(Self {
            xsave_bytes: (bytes > 0).then_some(bytes.max(XSAVE_FIXED)),
            has_sregs2: vm.check_extension_raw(KVM_CAP_SREGS2.into()) > 0,
            moves_counters: moves_counters(kvm)?,
            msrs,
        })
    }

    /// A distance between two counters, which is none if this KVM could not have made it.
    fn distance(&self, ticks: i64) -> i64 {
        let is_noise = !self.moves_counters && ticks.unsigned_abs() <= NOISE_TICKS;
        if is_noise { 0 } else { ticks }
    }

    fn xsave_bytes(&self) -> usize {
        self.xsave_bytes.unwrap_or(XSAVE_FIXED)
    }

    /// A buffer of the size that this KVM reads and writes.
    fn xsave_buffer(&self) -> Result<Xsave, StateError> {
        let words = (self.xsave_bytes() - XSAVE_FIXED).div_ceil(size_of::<u32>());
        Xsave::new(words).map_err(|_| kvm("make an XSAVE area")(Error::new(libc::ENOMEM)))
    }
}

/// Whether KVM moves the counter of a vCPU that is made for this. One without hardware support (PVM) shows guests the
/// host's counter, and takes an offset without a word.
fn moves_counters(kvm: &Kvm) -> Result<bool, Error> {
    let fd = new_vm(kvm)?.create_vcpu(0)?;
    let moved = tsc_offset(&fd)?.wrapping_add(1 << 32);
    set_tsc_offset(&fd, moved)?;
    Ok(tsc_offset(&fd)? == moved)
}

fn kvm(step: &'static str) -> impl FnOnce(Error) -> StateError {
    move |source| StateError::Kvm { step, source: source.into() }
}

/// The state of a vCPU at rest, whose exits are finished. `clock` is the offset of the machine's clock.
pub(crate) fn get(
    id: VcpuId,
    fd: &mut VcpuFd,
    vcpu_apic: &mut dyn VcpuApic,
    host: &HostKvm,
    clock: u64,
) -> Result<VcpuState, StateError> {
    vcpu_apic.take_in(fd)?;
    let mp_state = fd.get_mp_state().map_err(kvm("read the MP state"))?.mp_state;
    let running =
        Running::from_kvm(mp_state).ok_or(StateError::UnknownRunning { state: mp_state })?;
    let general = fd.get_regs().map_err(kvm("read registers"))?.into();
    let system = get_system(fd, host)?;
    let xsave = get_xsave(fd, host)?;
    let xcrs = fd.get_xcrs().map_err(kvm("read extended control registers"))?.into();
    let debug = Debug::from(fd.get_debug_regs().map_err(kvm("read debug registers"))?);
    let offset = tsc_offset(fd).map_err(kvm("read the TSC offset"))?;
    let (msrs, apic) = get_timer(fd, vcpu_apic, get_msrs(fd, &host.msrs)?)?;
    let events = Events::from(fd.get_vcpu_events().map_err(kvm("read pending events"))?);
    let tsc_ahead = host.distance(offset.wrapping_sub(clock).cast_signed());
    let vcpu = id.0;
    let state = VcpuState {
        vcpu,
        running,
        general,
        system,
        xsave,
        xcrs,
        debug,
        events,
        msrs,
        apic,
        tsc_ahead,
    };
    state.check()?;
    Ok(state)
}

/// The APIC, and the deadline of its timer as it was when the APIC was read. A deadline passes once: KVM clears it.
fn get_timer(
    fd: &mut VcpuFd,
    vcpu_apic: &mut dyn VcpuApic,
    mut msrs: MsrSet,
) -> Result<(MsrSet, ApicState), StateError> {
    let mut apic = vcpu_apic.save(fd)?;
    let deadline = msrs.values.iter_mut().find(|msr| msr.index == TSC_DEADLINE);
    if let (Some(deadline), ApicState::Kernel(_)) = (deadline, &apic) {
        let now = get_msrs(fd, &[TSC_DEADLINE])?.get(TSC_DEADLINE).unwrap_or(0);
        if now != deadline.value {
            deadline.value = now;
            apic = vcpu_apic.save(fd)?;
        }
    }
    Ok((msrs, apic))
}

fn get_system(fd: &VcpuFd, host: &HostKvm) -> Result<System, StateError> {
    let step = "read system registers";
    if !host.has_sregs2 {
        return Ok(fd.get_sregs().map_err(kvm(step))?.into());
    }
    let mut sregs = kvm_sregs2::default();
    // SAFETY: the kernel writes one structure of this type, which outlives the call.
    if unsafe { ioctl_with_mut_ref(fd, KVM_GET_SREGS2(), &mut sregs) } != 0 {
        return Err(kvm(step)(Error::last()));
    }
    Ok(sregs.into())
}

fn get_xsave(fd: &VcpuFd, host: &HostKvm) -> Result<XsaveArea, StateError> {
    let step = "read the XSAVE area";
    if host.xsave_bytes.is_none() {
        let area = fd.get_xsave().map_err(kvm(step))?;
        return Ok(XsaveArea::from_words(area.region));
    }
    let mut area = host.xsave_buffer()?;
    // SAFETY: the buffer has as many bytes as this KVM writes.
    unsafe { fd.get_xsave2(&mut area) }.map_err(kvm(step))?;
    let region = area.as_fam_struct_ref().xsave.region;
    Ok(XsaveArea::from_words(region.into_iter().chain(area.as_slice().iter().copied())))
}

/// Registers that KVM refuses to read are left out and counted.
fn get_msrs(fd: &VcpuFd, mut indices: &[u32]) -> Result<MsrSet, StateError> {
    let step = "read model-specific registers";
    let mut set = MsrSet::default();
    while !indices.is_empty() {
        let chunk = &indices[..indices.len().min(KVM_MAX_MSR_ENTRIES)];
        let entry = |index: &u32| kvm_msr_entry { index: *index, ..Default::default() };
        let entries: Vec<_> = chunk.iter().map(entry).collect();
        let mut list = Msrs::from_entries(&entries).expect("a chunk fits a list");
        let read = fd.get_msrs(&mut list).map_err(kvm(step))?.min(chunk.len());
        let found = list.as_slice().iter().take(read);
        set.values.extend(found.map(|msr| Msr { index: msr.index, value: msr.data }));
        let refused = usize::from(read < chunk.len());
        set.refused += u32::from(read < chunk.len());
        indices = &indices[read + refused..];
    }
    Ok(set)
}

/// Gives a state to a vCPU that has just been made; `apic` gives its APIC to whoever has it. `clock` is the offset of
/// the machine's clock.
pub(crate) fn put(
    fd: &mut VcpuFd,
    state: &VcpuState,
    host: &HostKvm,
    clock: u64,
    apic: impl FnOnce(&mut VcpuFd) -> Result<(), StateError>,
) -> Result<(), StateError> {
    let offset = clock.wrapping_add_signed(state.tsc_ahead);
    put_offset(fd, host, offset)?;
    put_system(fd, host, state.system)?;
    fd.set_regs(&state.general.into()).map_err(kvm("set registers"))?;
    put_xsave(fd, host, &state.xsave)?;
    if !state.xcrs.0.is_empty() {
        fd.set_xcrs(&(&state.xcrs).into()).map_err(kvm("set extended control registers"))?;
    }
    fd.set_debug_regs(&state.debug.into()).map_err(kvm("set debug registers"))?;
    apic(fd)?;
    state.msrs.to_kvm().iter().try_for_each(|list| put_msrs(fd, list.as_slice()))?;
    fd.set_vcpu_events(&state.events.into()).map_err(kvm("set pending events"))?;
    let mp_state = kvm_mp_state { mp_state: state.running.to_kvm() };
    fd.set_mp_state(mp_state).map_err(kvm("set the MP state"))?;
    // The next entry takes CR8 from here, and leaves whether interrupts can be taken.
    fd.get_kvm_run().cr8 = state.system.cr8;
    complete_exit(VcpuId(state.vcpu), fd)?;
    Ok(())
}

fn put_offset(fd: &VcpuFd, host: &HostKvm, offset: u64) -> Result<(), StateError> {
    set_tsc_offset(fd, offset).map_err(kvm("set the TSC offset"))?;
    let taken = tsc_offset(fd).map_err(kvm("read the TSC offset"))?;
    let is_there = host.distance(taken.wrapping_sub(offset).cast_signed()) == 0;
    if is_there { Ok(()) } else { Err(StateError::Counter { offset, taken }) }
}

fn put_system(fd: &VcpuFd, host: &HostKvm, system: System) -> Result<(), StateError> {
    let step = "set system registers";
    if !host.has_sregs2 {
        return fd.set_sregs(&system.into()).map_err(kvm(step));
    }
    let sregs = kvm_sregs2::from(system);
    // SAFETY: the kernel reads one structure of this type, which outlives the call.
    if unsafe { ioctl_with_ref(fd, KVM_SET_SREGS2(), &sregs) } != 0 {
        return Err(kvm(step)(Error::last()));
    }
    Ok(())
}

fn put_xsave(fd: &VcpuFd, host: &HostKvm, area: &XsaveArea) -> Result<(), StateError> {
    let words = area.to_words(host.xsave_bytes())?;
    let (region, extra) = words.split_at(XSAVE_FIXED / size_of::<u32>());
    let mut buffer = host.xsave_buffer()?;
    buffer.as_mut_slice().copy_from_slice(extra);
    let mut fixed = kvm_xsave::default();
    fixed.region.copy_from_slice(region);
    // SAFETY: the length of the flexible end stays as it is.
    unsafe { buffer.as_mut_fam_struct() }.xsave.region = fixed.region;
    // SAFETY: the buffer has as many bytes as this KVM reads.
    unsafe { fd.set_xsave2(&buffer) }.map_err(kvm("set the XSAVE area"))
}

/// A register that KVM refuses must have its value already. One that this KVM does not have at all has none: the guest is not
/// told of it, for CPUID is what all hosts have, so on the other host it must not have been used.
fn put_msrs(fd: &VcpuFd, mut entries: &[kvm_msr_entry]) -> Result<(), StateError> {
    let step = "set model-specific registers";
    while !entries.is_empty() {
        let list = Msrs::from_entries(entries).expect("they were a list before");
        let done = fd.set_msrs(&list).map_err(kvm(step))?.min(entries.len());
        let (_, rest) = entries.split_at(done);
        let Some((refused, rest)) = rest.split_first() else { return Ok(()) };
        if get_msrs(fd, &[refused.index])?.get(refused.index).unwrap_or_default() != refused.data {
            return Err(StateError::Msr { index: refused.index, value: refused.data });
        }
        entries = rest;
    }
    Ok(())
}
