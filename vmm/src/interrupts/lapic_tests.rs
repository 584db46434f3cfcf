//! Tests of the local APIC.

use super::*;
use proptest::prelude::*;

const KHZ: u32 = 1_000_000;

fn enabled(id: u32) -> Lapic {
    let mut apic = Lapic::new(VcpuId(id), KHZ);
    apic.write(SVR, 0x1ff, 0).unwrap();
    apic
}

fn eoi(apic: &mut Lapic) -> Effect {
    apic.write(EOI, 0, 0).unwrap()
}

#[test]
fn disabled_apic_drops_interrupts() {
    let mut apic = Lapic::new(VcpuId(0), KHZ);
    apic.raise(0x40, false);
    assert_eq!(apic.deliverable(), None);
    assert_eq!(apic.read(IRR + 2, 0), Ok(0));
}

#[test]
fn higher_class_goes_first_and_same_class_waits_for_eoi() {
    let mut apic = enabled(0);
    for vector in [0x41, 0x45, 0x82] {
        apic.raise(vector, false);
    }
    assert_eq!(apic.deliverable(), Some(0x82));
    apic.accept(0x82);
    assert_eq!(apic.deliverable(), None);
    assert_eq!(eoi(&mut apic), Effect::Ended { vector: 0x82, level: false, timer: false });
    assert_eq!(apic.deliverable(), Some(0x45));
    apic.accept(0x45);
    assert_eq!(apic.deliverable(), None);
    apic.raise(0x51, false);
    assert_eq!(apic.deliverable(), Some(0x51));
}

#[test]
fn task_priority_holds_back_its_class_and_below() {
    let mut apic = enabled(0);
    apic.raise(0x45, false);
    apic.write(TPR, 0x40, 0).unwrap();
    assert_eq!(apic.deliverable(), None);
    assert_eq!(apic.read(PPR, 0), Ok(0x40));
    apic.set_cr8(3);
    assert_eq!(apic.deliverable(), Some(0x45));
    assert_eq!(apic.read(TPR, 0), Ok(0x30));
}

#[test]
fn eoi_of_a_level_vector_tells_the_ioapic() {
    let mut apic = enabled(0);
    apic.raise(0x39, true);
    apic.accept(0x39);
    assert_eq!(apic.read(TMR + 1, 0), Ok(1 << 25));
    assert_eq!(eoi(&mut apic), Effect::Ended { vector: 0x39, level: true, timer: false });
}

#[test]
fn eoi_without_an_interrupt_does_nothing() {
    assert_eq!(eoi(&mut enabled(0)), Effect::None);
}

#[test]
fn eoi_of_the_timer_is_told_apart() {
    let mut apic = enabled(0);
    apic.write(LVT_TIMER, 2 << 17 | 0xec, 0).unwrap();
    assert_eq!(apic.write(TSC_DEADLINE, 500, 0), Ok(Effect::Timer));
    assert!(!apic.expire_timer(499));
    assert!(apic.expire_timer(500));
    apic.accept(apic.deliverable().unwrap());
    assert_eq!(eoi(&mut apic), Effect::Ended { vector: 0xec, level: false, timer: true });
}

#[test]
fn masked_timer_expires_without_an_interrupt() {
    let mut apic = enabled(0);
    apic.write(LVT_TIMER, 2 << 17 | 1 << 16 | 0xec, 0).unwrap();
    apic.write(TSC_DEADLINE, 500, 0).unwrap();
    assert!(apic.expire_timer(600));
    assert_eq!(apic.deliverable(), None);
}

#[test]
fn command_register_sends_what_linux_sends() {
    let mut apic = enabled(0);
    let send = |apic: &mut Lapic, value| match apic.write(ICR, value, 0) {
        Ok(Effect::Send(command)) => command,
        other => panic!("{other:?}"),
    };
    let fixed = send(&mut apic, 3 << 32 | 0xfd);
    assert_eq!(fixed.message.destination, 3);
    assert_eq!((fixed.message.mode, fixed.message.vector), (DeliveryMode::Fixed, 0xfd));
    let init = send(&mut apic, 1 << 32 | 0xc500);
    assert_eq!(init.message.mode, DeliveryMode::Init);
    let start = send(&mut apic, 1 << 32 | 0x69a);
    assert_eq!((start.message.mode, start.message.vector), (DeliveryMode::Startup, 0x9a));
    let nmi_to_others = send(&mut apic, 3 << 18 | 0x400);
    assert_eq!(nmi_to_others.shorthand, Shorthand::Others);
    let cluster = send(&mut apic, 0x1_0003 << 32 | 1 << 11 | 0xfb);
    assert!(cluster.message.logical);
    assert_eq!(cluster.message.destination, 0x1_0003);
    // INIT level de-assert is no interrupt.
    assert_eq!(apic.write(ICR, 1 << 32 | 0x8500, 0), Ok(Effect::None));
    assert_eq!(apic.read(ICR, 0), Ok(1 << 32 | 0x8500));
}

#[test]
fn illegal_vector_is_noted_and_not_sent() {
    let mut apic = enabled(0);
    assert_eq!(apic.write(ICR, 5, 0), Ok(Effect::None));
    assert_eq!(apic.read(ESR, 0), Ok(u64::from(ESR_ILLEGAL_SEND)));
    apic.write(ESR, 0, 0).unwrap();
    assert_eq!(apic.read(ESR, 0), Ok(0));
}

#[test]
fn self_ipi_is_raised_at_once() {
    let mut apic = enabled(0);
    assert_eq!(apic.write(SELF_IPI, 0xf6, 0), Ok(Effect::None));
    assert_eq!(apic.deliverable(), Some(0xf6));
}

#[test]
fn entries_of_the_vector_table_have_the_fields_of_their_kind() {
    let mut apic = enabled(0);
    for (entry, kept) in
        (LVT_TIMER..).zip([0x7_00ff, 0x1_07ff, 0x1_07ff, 0x1_a7ff, 0x1_a7ff, 0x1_00ff])
    {
        apic.write(entry, u64::from(u32::MAX), 0).unwrap();
        assert_eq!(apic.read(entry, 0), Ok(kept), "{entry:#x}");
    }
}

#[test]
fn reserved_accesses_are_protection_faults() {
    let mut apic = enabled(0);
    for (index, value) in [(EOI, 1), (TPR, 0x100), (ID, 0), (ESR, 1), (0x831, 0), (0x82f, 0)] {
        assert_eq!(apic.write(index, value, 0), Err(ProtectionFault), "{index:#x}");
    }
    assert_eq!(apic.read(EOI, 0), Err(ProtectionFault));
    assert_eq!(apic.write(TPR, 1 << 40, 0), Err(ProtectionFault));
}

#[test]
fn identity_registers_follow_the_vcpu() {
    let apic = Lapic::new(VcpuId(0x25), KHZ);
    assert_eq!(apic.read(ID, 0), Ok(0x25));
    assert_eq!(apic.read(LDR, 0), Ok(0x2_0020));
    assert_eq!(apic.read(VERSION, 0), Ok(0x5_0014));
}

#[test]
fn init_forgets_everything_but_the_identity() {
    let mut apic = enabled(7);
    apic.raise(0x40, false);
    apic.write(LVT_TIMER, 2 << 17 | 0xec, 0).unwrap();
    apic.write(TSC_DEADLINE, 500, 0).unwrap();
    apic.reset();
    assert_eq!(apic.deliverable(), None);
    assert_eq!(apic.timer().due(), None);
    assert_eq!(apic.read(ID, 0), Ok(7));
    assert_eq!(apic.read(SVR, 0), Ok(0xff));
}

#[derive(Clone, Debug)]
enum Step {
    Raise(u8, bool),
    Take,
    Eoi,
    Tpr(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<u8>(), any::<bool>()).prop_map(|(vector, level)| Step::Raise(vector, level)),
        Just(Step::Take),
        Just(Step::Eoi),
        any::<u8>().prop_map(Step::Tpr),
    ]
}

proptest! {
    #[test]
    fn interrupts_are_never_lost_nor_out_of_order(steps in proptest::collection::vec(step(), 0..300)) {
        let mut apic = enabled(0);
        let mut pending = std::collections::BTreeSet::new();
        let mut in_service: Vec<u8> = Vec::new();
        for step in steps {
            match step {
                Step::Raise(vector, level) => {
                    apic.raise(vector, level);
                    if vector >= 16 {
                        pending.insert(vector);
                    }
                }
                Step::Take => {
                    if let Some(vector) = apic.deliverable() {
                        // Only the highest pending one, and only above what is in service.
                        prop_assert_eq!(pending.last().copied(), Some(vector));
                        prop_assert!(in_service.iter().all(|other| vector >> 4 > other >> 4));
                        apic.accept(vector);
                        pending.remove(&vector);
                        in_service.push(vector);
                    }
                }
                Step::Eoi => match eoi(&mut apic) {
                    Effect::Ended { vector, .. } => prop_assert_eq!(in_service.pop(), Some(vector)),
                    effect => {
                        prop_assert_eq!(effect, Effect::None);
                        prop_assert!(in_service.is_empty());
                    }
                },
                Step::Tpr(value) => {
                    apic.write(TPR, u64::from(value), 0).unwrap();
                }
            }
        }
        // With everything unmasked and ended, all that was raised comes out.
        apic.write(TPR, 0, 0).unwrap();
        while eoi(&mut apic) != Effect::None {}
        while let Some(vector) = apic.deliverable() {
            prop_assert!(pending.remove(&vector));
            apic.accept(vector);
            eoi(&mut apic);
        }
        prop_assert!(pending.is_empty());
    }

    #[test]
    fn no_access_panics(accesses in proptest::collection::vec(
        (any::<bool>(), 0x800_u32..0x900, any::<u64>(), any::<u64>()), 0..100)) {
        let mut apic = enabled(3);
        for (write, index, value, now) in accesses {
            if write {
                let _ = apic.write(index, value, now);
            } else {
                let _ = apic.read(index, now);
            }
            apic.expire_timer(now);
            if let Some(vector) = apic.deliverable() {
                apic.accept(vector);
            }
        }
    }
}
