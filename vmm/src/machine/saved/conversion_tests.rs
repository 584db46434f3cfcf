//! Tests of vCPUs that go on with the other kind of APIC.

use super::super::tests::{some_state, state};
use super::super::{Exception, Interrupt, Segment, Stage};
use super::*;
use crate::interrupts::lapic::{Lapic, X2APIC_FIRST};
use migrate::SavedState;
use proptest::prelude::*;
use wire::VcpuId;

const AT: Moment = Moment { ticks: 1 << 40, khz: 2_400_000 };
const SVR: u32 = X2APIC_FIRST + 0xf;
const LVT_TIMER: u32 = X2APIC_FIRST + 0x32;

fn of(state: &VcpuState) -> InterruptBackEnd {
    match state.apic {
        ApicState::Kernel(_) => InterruptBackEnd::Ghost,
        ApicState::Userspace(_) => InterruptBackEnd::Userspace,
    }
}

fn other(of: InterruptBackEnd) -> InterruptBackEnd {
    match of {
        InterruptBackEnd::Ghost => InterruptBackEnd::Userspace,
        InterruptBackEnd::Userspace => InterruptBackEnd::Ghost,
    }
}

/// All but the APIC and what goes with it.
fn rest(state: &VcpuState) -> VcpuState {
    let mut rest = state.clone();
    rest.msrs.values.retain(|msr| msr.index != TSC_DEADLINE);
    (rest.system.cr8, rest.running) = (0, Running::Runnable);
    VcpuState { apic: some_state().apic, ..rest }
}

/// A vCPU with its APIC in user space, in x2APIC mode, whose timer has a deadline.
fn in_user_space(activity: Activity, deadline: u64) -> VcpuState {
    let mut lapic = Lapic::new(VcpuId(1), AT.khz);
    for (register, value) in [(SVR, 0x1ff), (LVT_TIMER, 2 << 17 | 0xec), (X2APIC_FIRST + 8, 0x50)] {
        lapic.write(register, value, 0).unwrap();
    }
    lapic.write(TSC_DEADLINE, deadline, 0).unwrap();
    let lapic = lapic.save();
    let apic = UserspaceApic { lapic, activity, nmi_sent: false };
    VcpuState { apic: ApicState::Userspace(apic), ..some_state() }
}

fn to(state: &VcpuState, of: InterruptBackEnd) -> VcpuState {
    let state = state.with_interrupts(of, AT).unwrap();
    state.check().unwrap();
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is about to happen to the vCPU, and all of its registers, is the same with the other kind.
    #[test]
    fn all_but_the_apic_stays(state in state()) {
        let (mut state, of) = (state.clone(), of(&state));
        state.system.apic_base |= 0xc00;
        state.events.latched_init = false;
        prop_assert_eq!(&state.with_interrupts(of, AT).unwrap(), &state);
        // Whether the APIC can go on is tested beside it.
        if let Ok(there) = state.with_interrupts(other(of), AT) {
            there.check().unwrap();
            prop_assert_eq!(rest(&there), rest(&state));
            prop_assert_eq!(rest(&to(&there, of)), rest(&state));
        }
    }
}

#[test]
fn vcpu_runs_or_waits_as_before() {
    let pairs = [
        (Activity::PowerOn, Running::Uninitialized),
        (Activity::WaitForStartup, Running::InitReceived),
        (Activity::Running, Running::Runnable),
        (Activity::Halted, Running::Halted),
    ];
    for (activity, running) in pairs {
        let state = in_user_space(activity, 0);
        let there = to(&state, InterruptBackEnd::Ghost);
        assert_eq!((there.running, there.system.cr8), (running, 5));
        let back = to(&there, InterruptBackEnd::Userspace);
        assert_eq!((back.running, back.apic), (Running::Runnable, state.apic));
    }
}

#[test]
fn deadline_is_in_one_place() {
    for deadline in [0, AT.ticks + 7, u64::MAX] {
        let state = in_user_space(Activity::Halted, deadline);
        let there = to(&state, InterruptBackEnd::Ghost);
        assert_eq!(there.msrs.get(TSC_DEADLINE).unwrap_or(0), deadline);
        let back = to(&there, InterruptBackEnd::Userspace);
        assert_eq!(back.msrs.get(TSC_DEADLINE).unwrap_or(0), 0);
        assert_eq!(back.apic, state.apic);
    }
}

#[test]
fn nmi_that_waits_wakes_its_vcpu() {
    for (nmi_pending, nmi_injected) in [(0, false), (2, false), (0, true)] {
        let mut state = to(&in_user_space(Activity::Halted, 0), InterruptBackEnd::Ghost);
        (state.events.nmi_pending, state.events.nmi_injected) = (nmi_pending, nmi_injected);
        let there = to(&state, InterruptBackEnd::Userspace);
        let ApicState::Userspace(apic) = &there.apic else { panic!("{there:?}") };
        assert_eq!(apic.nmi_sent, nmi_pending != 0 || nmi_injected);
        assert_eq!(there.events, state.events);
        assert_eq!(to(&there, InterruptBackEnd::Ghost).events, state.events);
    }
}

/// KVM only sets CS and RIP at the start-up: what the vCPU had before must be gone.
#[test]
fn vcpu_that_has_had_an_init_is_reset() {
    let mut state = in_user_space(Activity::WaitForStartup, 0);
    let stage = Stage::Injected;
    let exception = Exception { vector: 14, stage, error_code: Some(2), payload: None };
    state.events.exception = Some(exception);
    state.events.interrupt = Some(Interrupt { vector: 0x41, soft: false });
    (state.system.cr0, state.system.cr3) = (0xe005_0033, 0x5000);
    let there = to(&state, InterruptBackEnd::Ghost);
    assert_eq!((there.system.cr0, there.system.cr3, there.system.efer), (0x6000_0010, 0, 0));
    assert_eq!(there.system.apic_base, state.system.apic_base);
    assert_eq!((there.general.rip, there.general.rflags, there.debug.dr7), (0xfff0, 2, 0x400));
    assert_eq!(there.events, Events::default());
    assert_eq!(there.system.ss, Segment { base: 0, selector: 0, ..there.system.ds });
    assert_eq!((there.msrs, there.xsave), (state.msrs, state.xsave), "they outlive an INIT");
}

#[test]
fn what_has_no_equal_is_refused() {
    let kernel = to(&in_user_space(Activity::Running, 0), InterruptBackEnd::Ghost);
    let refused = |state: &VcpuState, change: fn(&mut VcpuState)| {
        let mut state = state.clone();
        change(&mut state);
        state.with_interrupts(other(of(&state)), AT).unwrap_err().why
    };
    let mode = "its APIC is not in x2APIC mode";
    assert_eq!(refused(&kernel, |state| state.system.apic_base = 0xfee0_0800), mode);
    let user = in_user_space(Activity::Running, 0);
    assert_eq!(refused(&user, |state| state.system.apic_base = 0), mode);
    let hypervisor = "it waits for its hypervisor to start it";
    assert_eq!(refused(&kernel, |state| state.running = Running::ResetHold), hypervisor);
    let latched =
        |state: &mut VcpuState| (state.events.smm, state.events.latched_init) = (true, true);
    assert_eq!(refused(&kernel, latched), "an INIT that waits in system management mode");
}
