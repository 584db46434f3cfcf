//! States that real vCPUs take over and give back, without running a guest.

use super::*;
use crate::interrupts::lapic::{Lapic, TSC_DEADLINE, X2APIC_FIRST};
use crate::interrupts::saved::{Activity, KernelApic, UserspaceApic};
use crate::interrupts::{InterruptBackEnd, Moment, NoRemote};
use crate::machine::{Machine, testing};
use crate::vcpu::kvm::set_tsc_offset;
use kvm_bindings::{Msrs, kvm_msr_entry, kvm_segment, kvm_sregs};
use kvm_ioctls::VcpuFd;
use migrate::saved::{decode, encode};
use std::sync::Arc;
use wire::VcpuId;

const ID: VcpuId = VcpuId(0);
const LSTAR: u32 = 0xc000_0082;
/// No register of any processor (SDM vol. 4).
const UNKNOWN: u32 = 0x4fff_0000;
const KERNEL_GS_BASE: u32 = 0xc000_0102;

fn machine(back_end: InterruptBackEnd) -> Option<Machine> {
    testing::idle(back_end, 1, Arc::new(NoRemote))
}

fn with_fd<T>(machine: &Machine, work: impl FnOnce(&mut VcpuFd) -> T) -> T {
    testing::with_fd(machine, ID, work)
}

/// The state of a vCPU that does not run.
fn state_of(machine: &Machine) -> VcpuState {
    machine.save_vcpu(ID).unwrap()
}

fn long_mode(sregs: &mut kvm_sregs) {
    let flat = kvm_segment { limit: u32::MAX, present: 1, s: 1, g: 1, ..Default::default() };
    sregs.cs = kvm_segment { selector: 8, type_: 11, l: 1, ..flat };
    let data = kvm_segment { selector: 16, type_: 3, db: 1, ..flat };
    (sregs.ds, sregs.es, sregs.ss) = (data, data, data);
    (sregs.fs, sregs.gs) = (kvm_segment { base: 0x1234_5000, ..data }, data);
    sregs.tr = kvm_segment { limit: 0x67, present: 1, type_: 11, ..Default::default() };
    (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (0x8005_0033, 0x5_0000, 0x620, 0x500);
    (sregs.cr2, sregs.gdt.base, sregs.idt.limit) = (0xdead_b000, 0x7000, 0xfff);
}

/// Fills what a guest could have changed: registers of all kinds, vectors, and things about to happen.
fn live(machine: &Machine) {
    with_fd(machine, |fd| {
        let mut sregs = fd.get_sregs().unwrap();
        long_mode(&mut sregs);
        fd.set_sregs(&sregs).unwrap();
        let general = General { rax: 1, rbx: 2, rip: 0x4000, rflags: 0x202, ..General::default() };
        fd.set_regs(&General { r15: u64::MAX, ..general }.into()).unwrap();
        let debug = Debug { addresses: [0x1000, 2, 3, 4], dr6: 0xffff_0ff0, dr7: 0x401 };
        fd.set_debug_regs(&debug.into()).unwrap();
        let entry = |index, data| kvm_msr_entry { index, data, ..Default::default() };
        let entries = [entry(LSTAR, 0xffff_8000_0000_1000), entry(KERNEL_GS_BASE, 0x7777_0000)];
        assert_eq!(fd.set_msrs(&Msrs::from_entries(&entries).unwrap()).unwrap(), 2);
        let stage = Stage::Injected;
        let exception = Exception { vector: 14, stage, error_code: Some(6), payload: None };
        let events = Events { nmi_pending: 1, exception: Some(exception), ..Events::default() };
        fd.set_vcpu_events(&events.into()).unwrap();
    });
}

/// An area with the FPU as after reset, and something in XMM7 (SDM vol. 1, tables 13-1 and 10-2).
fn vectors() -> XsaveArea {
    let mut words = [0; 1024];
    (words[0], words[6]) = (0x37f, 0x1f80);
    words[(160 + 7 * 16) / 4..][..4].fill(0x5a5a_5a5a);
    words[512 / 4] = 3; // XSTATE_BV: FPU and SSE
    XsaveArea::from_words(words)
}

/// The state without what is no state in its XSAVE area, and changes when something else uses the FPU: MXCSR_MASK, which
/// the processor writes and no restore reads; and whether the initial contents of a component count as in use (XSTATE_BV),
/// which is the processor's choice (SDM vol. 1, 10.5.1.2, 13.6 and 13.7).
fn comparable(state: VcpuState) -> VcpuState {
    let mut words = state.xsave.to_words(XSAVE_BYTES_MAX).unwrap();
    words[7] = 0;
    words[512 / 4..][..2].fill(0);
    VcpuState { xsave: XsaveArea::from_words(words), ..state }
}

fn assert_same(now: VcpuState, before: VcpuState) {
    let (now, before) = (comparable(now), comparable(before));
    let [one, other] = [&now, &before].map(|state| state.xsave.to_words(XSAVE_BYTES_MAX).unwrap());
    // An area prints nothing of its contents: the words that differ, by their offsets.
    let pairs = (0..).step_by(4).zip(one.into_iter().zip(other));
    let differ: Vec<(u32, (u32, u32))> = pairs.filter(|(_, (one, other))| one != other).collect();
    assert!(differ.is_empty(), "{differ:x?}");
    assert_eq!(now, before);
}

fn both() -> [InterruptBackEnd; 2] {
    [InterruptBackEnd::Userspace, InterruptBackEnd::Ghost]
}

#[test]
fn kvm_vcpu_gives_back_the_state_that_it_was_given() {
    for back_end in both() {
        let Some(old) = machine(back_end) else { return };
        live(&old);
        let vectors = VcpuState { xsave: vectors(), ..state_of(&old) };
        old.restore_vcpu(&vectors).unwrap();
        let state = state_of(&old);
        println!("{back_end}: {} MSRs, {} refused", state.msrs.values.len(), state.msrs.refused);
        let bytes = encode(&state).unwrap();
        println!("{} bytes", bytes.len());

        let new = machine(back_end).unwrap();
        new.set_clock(old.clock().now()).unwrap();
        new.restore_vcpu(&decode(&bytes).unwrap()).unwrap();

        assert_same(state_of(&new), state.clone());
        assert_eq!(state.general.r15, u64::MAX);
        assert_eq!(state.system.fs.base, 0x1234_5000);
        assert_eq!(state.msrs.get(LSTAR), Some(0xffff_8000_0000_1000));
        assert_eq!(state.debug.addresses, [0x1000, 2, 3, 4]);
        assert_eq!(state.events.nmi_pending, 1);
        assert_eq!(state.events.exception.map(|exception| exception.error_code), Some(Some(6)));
        let words = state.xsave.to_words(XSAVE_BYTES_MAX).unwrap();
        assert_eq!(words[(160 + 7 * 16) / 4..][..4], [0x5a5a_5a5a; 4], "XMM7");
    }
}

/// Whatever the vCPU had before is gone.
#[test]
fn kvm_state_of_a_new_vcpu_replaces_that_of_a_used_one() {
    for back_end in both() {
        let Some(old) = machine(back_end) else { return };
        let state = state_of(&old);
        let new = machine(back_end).unwrap();
        live(&new);
        new.restore_vcpu(&state).unwrap();
        assert_same(state_of(&new), state);
    }
}

#[test]
fn kvm_counter_that_the_guest_moved_stays_as_far_from_the_clock() {
    for back_end in both() {
        let Some(old) = machine(back_end) else { return };
        let offset = old.clock().offset();
        let moved = offset.wrapping_sub(1_000_000);
        with_fd(&old, |fd| set_tsc_offset(fd, moved).unwrap());
        if old.tsc_offset().unwrap() != moved {
            needs::skip("this KVM does not move the counters of guests");
            return;
        }
        let state = state_of(&old);
        assert_eq!(state.tsc_ahead, -1_000_000);

        let new = machine(back_end).unwrap();
        new.set_clock(5_000_000_000).unwrap();
        new.restore_vcpu(&state).unwrap();
        let clock = new.clock().offset();
        assert_eq!(new.tsc_offset().unwrap().wrapping_sub(clock).cast_signed(), -1_000_000);
        assert_eq!(state_of(&new).tsc_ahead, -1_000_000);
    }
}

#[test]
fn kvm_register_that_kvm_refuses_is_named() {
    let Some(old) = machine(InterruptBackEnd::Ghost) else { return };
    let mut state = state_of(&old);
    // Not canonical (SDM vol. 3, 2.2.4 and the description of WRMSR).
    let msr = state.msrs.values.iter_mut().find(|msr| msr.index == LSTAR).unwrap();
    msr.value = 0x8000_0000_0000_0000;

    let new = machine(InterruptBackEnd::Ghost).unwrap();
    let error = new.restore_vcpu(&state).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    let expected = "cannot set model-specific register 0xc0000082 to 0x8000000000000000";
    assert_eq!(source, expected, "{error}");
}

#[test]
fn kvm_register_that_this_kvm_has_not_may_be_zero() {
    let Some(old) = machine(InterruptBackEnd::Ghost) else { return };
    let restored = |value| {
        let mut state = state_of(&old);
        // As one that only the other host's KVM lists.
        state.msrs.values.push(Msr { index: UNKNOWN, value });
        machine(InterruptBackEnd::Ghost).unwrap().restore_vcpu(&state)
    };
    restored(0).unwrap();
    let error = restored(1).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "cannot set model-specific register 0x4fff0000 to 0x1", "{error}");
}

#[test]
fn kvm_step_that_kvm_refuses_is_named() {
    let Some(old) = machine(InterruptBackEnd::Ghost) else { return };
    let step = |change: fn(&mut VcpuState)| {
        let mut state = state_of(&old);
        change(&mut state);
        let new = machine(InterruptBackEnd::Ghost).unwrap();
        let error = new.restore_vcpu(&state).unwrap_err();
        std::error::Error::source(&error).unwrap().to_string()
    };
    let reserved = |state: &mut VcpuState| state.system.cr4 = 1 << 63;
    assert_eq!(step(reserved), "cannot set system registers");
    let unknown =
        |state: &mut VcpuState| state.xcrs.0 = vec![Xcr { number: 0, value: 1 << 62 | 7 }];
    assert_eq!(step(unknown), "cannot set extended control registers");
}

/// The machine's clock tells what guests see, on a KVM that moves counters and on one that does not.
#[test]
fn kvm_clock_that_is_set_agrees_with_kvm() {
    let Some(machine) = machine(InterruptBackEnd::Ghost) else { return };
    machine.set_clock(5_000_000_000).unwrap();
    assert_eq!(machine.clock().offset(), machine.tsc_offset().unwrap());
    let mut state = state_of(&machine);
    assert_eq!(state.tsc_ahead, 0);
    machine.restore_vcpu(&state).unwrap();
    state.tsc_ahead = 1 << 32;
    match machine.restore_vcpu(&state) {
        Ok(()) => assert_eq!(state_of(&machine).tsc_ahead, 1 << 32),
        Err(error) => {
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert!(source.starts_with("cannot move the time stamp counter by"), "{source}");
        }
    }
}

/// An APIC in user space with something in most registers. Its timer is masked, so KVM changes nothing by itself.
fn busy_apic(machine: &Machine, timer: &[(u32, u64)]) -> UserspaceApic {
    let clock = machine.clock();
    let (now, khz) = (clock.now(), clock.true_khz());
    let mut lapic = Lapic::new(ID, khz);
    let registers =
        [(0xf, 0x1ff), (0x33, 0x1_0044), (0x34, 0x1_0451), (0x35, 0x1_0700), (0x36, 0x400)];
    for (register, value) in registers.iter().chain(&[(0x37, 0xfe), (8, 0x40)]).chain(timer) {
        lapic.write(X2APIC_FIRST + register, *value, now).unwrap();
    }
    lapic.write(TSC_DEADLINE, now + (1 << 40), now).unwrap();
    for vector in [0x61, 0x83] {
        lapic.raise(vector, vector == 0x61);
        lapic.accept(vector);
    }
    [0x31, 0x62, 0x90].into_iter().for_each(|vector| lapic.raise(vector, vector == 0x62));
    lapic.write(X2APIC_FIRST + 0x30, 7 << 32 | 0xfd, now).unwrap();
    UserspaceApic { lapic: lapic.save(), activity: Activity::Halted, nmi_sent: true }
}

fn kernel_apic(state: &VcpuState) -> KernelApic {
    let ApicState::Kernel(apic) = state.apic else { panic!("{:?}", state.apic) };
    apic
}

/// KVM tells the same APIC as it was given, and takes and tells everything else of the vCPU.
#[test]
fn kvm_vcpu_goes_on_with_the_other_kind_of_apic() {
    let (deadline, periodic) = (2 << 17 | 1 << 16 | 0xec, 1 << 17 | 1 << 16 | 0xec);
    // Divided by 128: more than a minute is left when the test ends.
    let count = [(0x32, periodic), (0x3e, 0b1010), (0x38, 1 << 30)];
    for timer in [&[(0x32, deadline)][..], &count] {
        let (Some(old), Some(there)) =
            (machine(InterruptBackEnd::Userspace), machine(InterruptBackEnd::Ghost))
        else {
            return;
        };
        live(&old);
        let apic = busy_apic(&old, timer);
        let mut busy = VcpuState { apic: ApicState::Userspace(apic.clone()), ..state_of(&old) };
        busy.system.cr8 = u64::from(apic.lapic.tpr >> 4);
        old.restore_vcpu(&busy).unwrap();
        let state = state_of(&old);
        there.set_clock(old.clock().now()).unwrap();
        let clock = there.clock();
        let at = Moment { ticks: clock.now(), khz: clock.true_khz() };
        let given = state.with_interrupts(InterruptBackEnd::Ghost, at).unwrap();
        there.restore_vcpu(&given).unwrap();

        let told = state_of(&there);
        let (mut now, then) = (kernel_apic(&told), kernel_apic(&given));
        assert!(now.current_count <= then.current_count, "{now:x?} and {then:x?}");
        assert!(now.current_count >= then.current_count / 2, "{now:x?} and {then:x?}");
        (now.current_count, now.dfr) = (then.current_count, then.dfr);
        assert_eq!(now, then);
        assert_same(VcpuState { apic: given.apic.clone(), ..told.clone() }, given);

        let back = told.with_interrupts(InterruptBackEnd::Userspace, at).unwrap();
        let new = machine(InterruptBackEnd::Userspace).unwrap();
        new.set_clock(clock.now()).unwrap();
        new.restore_vcpu(&back).unwrap();
        let mut back = state_of(&new);
        let ApicState::Userspace(now) = &mut back.apic else { panic!("{back:?}") };
        assert_eq!(now.lapic.timer.started.is_some(), apic.lapic.timer.started.is_some());
        now.lapic.timer.started = apic.lapic.timer.started;
        assert_same(back, state);
    }
}

/// What an INIT leaves is what KVM makes a new vCPU with, but for the processor's signature.
#[test]
fn kvm_new_vcpu_is_as_after_an_init() {
    let Some(machine) = machine(InterruptBackEnd::Ghost) else { return };
    let state = state_of(&machine);
    assert_eq!(state.system.after_init(), state.system);
    assert_eq!(General::AFTER_INIT, General { rdx: 0, ..state.general });
    assert_eq!(Debug::AFTER_INIT, state.debug);
}
