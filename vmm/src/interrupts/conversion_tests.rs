//! Tests of APICs that go on as the other kind.

use super::*;
use crate::interrupts::lapic::{LVT_WRITABLE, TSC_DEADLINE, X2APIC_FIRST};
use proptest::prelude::*;

const VCPU: u32 = 0x25;
const SVR: u32 = X2APIC_FIRST + 0xf;
const ICR: u32 = X2APIC_FIRST + 0x30;
const LVT_TIMER: u32 = X2APIC_FIRST + 0x32;
const INITIAL_COUNT: u32 = X2APIC_FIRST + 0x38;
const DIVIDE: u32 = X2APIC_FIRST + 0x3e;
const ENABLED: u64 = 0x1ff;
/// Counters as hosts have them, also one as fast as the timers' bus.
const COUNTERS: [u32; 3] = [1_000_000, 2_399_998, 4_200_000];
const AT: Moment = Moment { ticks: 1 << 40, khz: 2_400_000 };

fn moment() -> impl Strategy<Value = Moment> {
    let khz = prop::sample::select(COUNTERS.to_vec());
    (khz, 0_u64..1 << 50).prop_map(|(khz, ticks)| Moment { ticks, khz })
}

/// A vector that an APIC delivers.
fn vector() -> impl Strategy<Value = u8> {
    16_u8..
}

/// Eight words without the vectors of exceptions.
fn vectors() -> impl Strategy<Value = [u32; 8]> {
    any::<[u32; 8]>().prop_map(|mut words| {
        words[0] &= !0xffff;
        words
    })
}

/// A timer that was set up so long before the moment that it has run out, or not yet.
#[derive(Clone, Debug)]
struct Timer {
    mode: u32,
    masked: bool,
    vector: u8,
    divide: u32,
    initial: u32,
    ago: u64,
    deadline: u64,
}

fn timer() -> impl Strategy<Value = Timer> {
    let counts = prop_oneof![0_u32..5, 0..100_000_u32, any::<u32>()];
    let ago = prop_oneof![0_u64..10, 0_u64..1 << 20, 0_u64..1 << 38];
    let set = (0_u32..3, any::<bool>(), vector(), any::<u32>(), counts, ago, any::<u64>());
    set.prop_map(|(mode, masked, vector, divide, initial, ago, deadline)| Timer {
        mode,
        masked,
        vector,
        divide,
        initial,
        ago,
        deadline,
    })
}

/// An APIC in user space to which all of this has happened.
fn in_user_space(
    at: Moment,
    timer: &Timer,
    raised: &[(u8, bool, bool)],
    (tpr, icr, entries): (u8, u64, [u32; 5]),
) -> Lapic {
    let mut lapic = Lapic::new(VcpuId(VCPU), at.khz);
    lapic.write(SVR, ENABLED, 0).unwrap();
    let Timer { mode, masked, vector, divide, initial, ago, deadline } = *timer;
    let then = at.ticks.saturating_sub(ago);
    let entry = mode << 17 | u32::from(masked) << 16 | u32::from(vector);
    lapic.write(LVT_TIMER, entry.into(), then).unwrap();
    lapic.write(DIVIDE, divide.into(), then).unwrap();
    lapic.write(INITIAL_COUNT, initial.into(), then).unwrap();
    lapic.write(TSC_DEADLINE, deadline, then).unwrap();
    for (register, value) in (LVT_TIMER + 1..).zip(entries) {
        lapic.write(register, value.into(), then).unwrap();
    }
    for (vector, level, taken) in raised {
        lapic.raise(*vector, *level);
        if let Some(vector) = lapic.deliverable().filter(|_| *taken) {
            lapic.accept(vector);
        }
    }
    lapic.write(X2APIC_FIRST + 8, tpr.into(), then).unwrap();
    // Some are refused, or are seen in the error register.
    let _ = lapic.write(ICR, icr, then);
    lapic
}

/// An APIC as KVM tells it, whose timer has not run out.
fn in_kernel() -> impl Strategy<Value = (KernelApic, u64)> {
    let words = (vectors(), vectors(), vectors(), any::<[u32; 6]>());
    let numbers = any::<(u8, u64, bool, bool, u32, u32, u32, u64)>();
    (words, 0_u32..3, numbers).prop_map(|((isr, tmr, irr, lvt), mode, numbers)| {
        let (tpr, icr, error, enabled, initial, left, divide, deadline) = numbers;
        let counts = mode != DEADLINE;
        let mut table: [u32; 6] = std::array::from_fn(|n| lvt[n] & LVT_WRITABLE[n]);
        table[0] = table[0] & !(3 << 17) | mode << 17;
        if !enabled {
            table.iter_mut().for_each(|entry| *entry |= LVT_MASKED);
        }
        let left = if counts && initial != 0 { 1 + left % initial } else { 0 };
        let apic = KernelApic {
            id: VCPU,
            tpr: tpr.into(),
            ldr: logical_id(VcpuId(VCPU)),
            dfr: u32::MAX,
            svr: if enabled { 0x1ff } else { 0xff },
            isr,
            tmr,
            irr,
            esr: u32::from(error) << 5,
            icr,
            lvt_cmci: 0,
            lvt: table,
            initial_count: initial,
            current_count: left,
            divide: divide & DIVIDE_BITS,
        };
        (apic, if counts { 0 } else { deadline })
    })
}

fn registers(lapic: &Lapic, now: u64) -> Vec<Option<u64>> {
    let all = (X2APIC_FIRST..X2APIC_FIRST + 0x40).chain([TSC_DEADLINE]);
    let except = |index: &u32| *index != INITIAL_COUNT && *index != INITIAL_COUNT + 1;
    all.filter(except).map(|index| lapic.read(index, now).ok()).collect()
}

proptest! {
    /// From the kernel and back, nothing has changed.
    #[test]
    fn apic_of_the_kernel_is_the_same_after_it_was_in_user_space((apic, deadline) in in_kernel(), at in moment()) {
        let state = apic.in_user_space(deadline, at).unwrap();
        prop_assert_eq!(state.in_kernel(VCPU, at).unwrap(), (apic, deadline));
    }

    /// From user space and back, the guest reads the same in every register, and its timer is due at the same time.
    #[test]
    fn apic_in_user_space_is_the_same_after_it_was_in_the_kernel(
        at in moment(), timer in timer(), settings: (u8, u64, [u32; 5]),
        raised in prop::collection::vec((vector(), any::<bool>(), any::<bool>()), 0..20),
    ) {
        let mut old = in_user_space(at, &timer, &raised, settings);
        let (apic, deadline) = old.save().in_kernel(VCPU, at).unwrap();
        let state = apic.in_user_space(deadline, at).unwrap();
        let new = Lapic::restored(VcpuId(VCPU), at.khz, &state).unwrap();
        if timer.mode != DEADLINE {
            old.expire_timer(at.ticks);
        }
        prop_assert_eq!(registers(&new, at.ticks), registers(&old, at.ticks));
        prop_assert_eq!(new.deliverable(), old.deliverable());
        let runs = timer.mode != DEADLINE && old.timer().due().is_some();
        if runs {
            // A count is whole in the kernel, and the last one is not over.
            let count = crate::tsc::ticks_of(128, at.khz) + 1;
            let (due, was) = (new.timer().due().unwrap(), old.timer().due().unwrap());
            prop_assert!(due.abs_diff(was) <= count, "{} and {}", due, was);
            prop_assert_eq!(new.timer().initial_count(), old.timer().initial_count());
            let left = old.timer().current_count(at.ticks).max(1);
            prop_assert_eq!(new.timer().current_count(at.ticks), left);
        } else {
            prop_assert_eq!(new.timer().due(), old.timer().due());
        }
    }

    /// Whatever somebody else has written: an error, or a state that an APIC can be in.
    #[test]
    fn any_apic_of_the_kernel_becomes_one_or_is_refused(
        words in prop::collection::vec(any::<u32>(), 40..41), icr: u64, deadline: u64, at in moment(),
    ) {
        let set = |first: usize| std::array::from_fn(|n| words[first + n]);
        let apic = KernelApic {
            id: words[0], tpr: words[1], ldr: words[2], dfr: words[3], svr: words[4],
            isr: set(5), tmr: set(13), irr: set(21), esr: words[29] & 1 << 5, icr,
            lvt_cmci: words[30] & LVT_MASKED, lvt: std::array::from_fn(|n| words[31 + n] & LVT_WRITABLE[n]),
            initial_count: words[37], current_count: words[38], divide: words[39],
        };
        if let Ok(state) = apic.in_user_space(deadline, at) {
            state.check().unwrap();
            state.in_kernel(VCPU, at).unwrap();
        }
    }
}

fn kernel() -> KernelApic {
    let lapic = Lapic::new(VcpuId(VCPU), AT.khz).save();
    let (apic, _) = lapic.in_kernel(VCPU, AT).unwrap();
    KernelApic { svr: 0x1ff, ..apic }
}

/// KVM would raise the interrupt of a count that has run out when it takes the state.
#[test]
fn count_that_has_run_out_is_raised_once() {
    for (mode, again) in [(0, false), (1, true)] {
        let mut lapic = Lapic::new(VcpuId(VCPU), AT.khz);
        lapic.write(SVR, ENABLED, 0).unwrap();
        lapic.write(LVT_TIMER, u64::from(mode << 17 | 0x44_u32), 0).unwrap();
        lapic.write(INITIAL_COUNT, 1000, AT.ticks - 6000).unwrap();
        let (apic, _) = lapic.save().in_kernel(VCPU, AT).unwrap();
        assert_eq!(apic.irr, [0, 0, 1 << 4, 0, 0, 0, 0, 0]);
        assert_eq!((apic.initial_count != 0, apic.current_count != 0), (again, again));
    }
}

/// KVM does not tell whether the interrupt of such a count has come.
#[test]
fn count_of_the_kernel_that_has_run_out_is_due_at_once() {
    for mode in [0, 1] {
        let mut lvt = kernel().lvt;
        lvt[0] = mode << 17 | 0x44;
        let apic = KernelApic { initial_count: 1000, lvt, ..kernel() };
        let state = apic.in_user_space(0, AT).unwrap();
        let mut lapic = Lapic::restored(VcpuId(VCPU), AT.khz, &state).unwrap();
        assert!(lapic.expire_timer(AT.ticks));
        assert_eq!(lapic.deliverable(), Some(0x44));
        assert_eq!(lapic.timer().due().is_some(), mode == 1);
    }
}

#[test]
fn deadline_moves_with_the_time_that_is_left() {
    let mut lapic = Lapic::new(VcpuId(VCPU), AT.khz);
    lapic.write(SVR, ENABLED, 0).unwrap();
    lapic.write(LVT_TIMER, 2 << 17 | 0xec, 0).unwrap();
    for deadline in [AT.ticks - 1, AT.ticks + 5000, u64::MAX] {
        lapic.write(TSC_DEADLINE, deadline, 0).unwrap();
        let (apic, taken) = lapic.save().in_kernel(VCPU, AT).unwrap();
        assert_eq!((taken, apic.irr), (deadline, [0; 8]), "KVM raises what is due");
        let state = apic.in_user_space(taken, AT).unwrap();
        assert_eq!(state, lapic.save());
    }
}

#[test]
fn what_has_no_meaning_is_left_out() {
    let mut lvt = kernel().lvt;
    lvt[3] = 1 << 14 | 1 << 12 | 0x700;
    // Focus checking, and the open LINT0 of a boot vCPU whose APIC is off.
    let apic = KernelApic { svr: 0x2ff, lvt, dfr: 7, ldr: 9, ..kernel() };
    let state = apic.in_user_space(0, AT).unwrap();
    assert_eq!((state.svr, state.lvt[3]), (0xff, LVT_MASKED | 0x700));
}

#[test]
fn what_has_no_equal_is_refused() {
    let refused = |change: fn(&mut KernelApic)| {
        let mut apic = kernel();
        apic.in_user_space(0, AT).unwrap();
        change(&mut apic);
        apic.in_user_space(0, AT).unwrap_err().why
    };
    let own = "the guest tells the IOAPIC itself of ends of interrupts";
    assert_eq!(refused(|apic| apic.svr |= 1 << 12), own);
    assert_eq!(refused(|apic| apic.lvt_cmci = 0xf1), "an interrupt of corrected machine checks");
    assert_eq!(refused(|apic| apic.tpr = 0x100), "reserved bits of the task priority");
    assert_eq!(refused(|apic| apic.lvt[0] |= 3 << 17), "the reserved mode of the timer");
    assert_eq!(refused(|apic| apic.irr[0] = 1), "a vector of exceptions");
    assert_eq!(refused(|apic| apic.esr = 1), "errors that never happen");
    let mut state = Lapic::new(VcpuId(VCPU), AT.khz).save();
    state.lvt[0] |= 3 << 17;
    assert_eq!(state.in_kernel(VCPU, AT).unwrap_err().why, "the reserved mode of the timer");
}
