//! States of vCPUs that do not exist: written, read, changed into KVM's structures and back.

use super::*;
use crate::interrupts::lapic::{Lapic, X2APIC_FIRST};
use crate::interrupts::saved::{Activity, KernelApic, UserspaceApic};
use kvm_bindings::{
    kvm_debugregs, kvm_regs, kvm_segment, kvm_sregs, kvm_sregs2, kvm_vcpu_events, kvm_xcrs,
};
use migrate::saved::{SavedError, decode, encode};
use proptest::prelude::*;
use std::array::from_fn;
use wire::VcpuId;

fn general() -> impl Strategy<Value = General> {
    any::<[u64; 18]>().prop_map(|v| General {
        rax: v[0],
        rbx: v[1],
        rcx: v[2],
        rdx: v[3],
        rsi: v[4],
        rdi: v[5],
        rsp: v[6],
        rbp: v[7],
        r8: v[8],
        r9: v[9],
        r10: v[10],
        r11: v[11],
        r12: v[12],
        r13: v[13],
        r14: v[14],
        r15: v[15],
        rip: v[16],
        rflags: v[17],
    })
}

/// A segment by KVM's structure, whose flags are bits.
fn segment() -> impl Strategy<Value = Segment> {
    any::<(u64, u32, u16, u8, u8)>().prop_map(|(base, limit, selector, kind, flags)| {
        let flag = |n: u8| flags >> n & 1;
        let (type_, dpl, present, db, s) = (kind & 15, kind >> 6, flag(0), flag(1), flag(2));
        let (g, avl, unusable) = (flag(3), flag(4), flag(5));
        let segment =
            kvm_segment { base, limit, selector, type_, dpl, present, db, s, ..Default::default() };
        Segment::from(kvm_segment { g, avl, unusable, ..segment })
    })
}

/// Registers in one of the modes that there are: real, protected, paging with PAE, long.
fn system() -> impl Strategy<Value = System> {
    let segments = prop::collection::vec(segment(), 8..9);
    let rest = (any::<[u64; 4]>(), any::<[(u64, u16); 2]>(), 0_u64..16, any::<bool>());
    (segments, 0_usize..4, rest).prop_map(|(segments, mode, (values, tables, cr8, x2apic))| {
        let [cs, ds, es, fs, gs, ss, tr, ldt] = from_fn(|at| segments[at]);
        let [gdt, idt] = tables.map(|(base, limit)| Table { base, limit });
        let (cr0, cr4, efer) =
            [(0x6000_0010, 0, 0), (0x11, 0, 0), (0x8000_0011, 0x20, 0), (0x8005_0033, 0x20, 0x500)]
                [mode];
        System {
            cs: Segment { l: mode == 3, ..cs },
            ds,
            es,
            fs,
            gs,
            ss,
            tr,
            ldt,
            gdt,
            idt,
            cr0,
            cr2: values[0],
            cr3: values[1],
            cr4,
            cr8,
            efer,
            apic_base: if x2apic { 0xfee0_0c00 } else { 0xfee0_0800 },
            pdptrs: (mode == 2).then_some(values),
        }
    })
}

fn xsave() -> impl Strategy<Value = XsaveArea> {
    prop::collection::vec(any::<u32>(), 0..3000).prop_map(|mut words| {
        words.iter_mut().skip(130).take(14).for_each(|word| *word = 0);
        XsaveArea::from_words(words)
    })
}

fn events() -> impl Strategy<Value = Events> {
    let stage = prop_oneof![Just(Stage::Pending), Just(Stage::Injected)];
    let exception = (0_u8..32, stage, any::<Option<u32>>(), any::<Option<u64>>());
    let interrupt = any::<Option<(u8, bool)>>();
    let numbers = (0_u8..4, 0_u8..3, any::<[bool; 7]>());
    (prop::option::of(exception), interrupt, numbers).prop_map(
        |(exception, interrupt, (shadow, nmi_pending, flags))| Events {
            exception: exception.map(|(vector, stage, error_code, payload)| Exception {
                vector: if vector == 2 { 14 } else { vector },
                stage,
                error_code,
                payload,
            }),
            interrupt: interrupt.map(|(vector, soft)| Interrupt { vector, soft }),
            shadow,
            nmi_injected: flags[0],
            nmi_pending,
            nmi_masked: flags[1],
            smm: flags[2],
            smi_pending: flags[3],
            smm_inside_nmi: flags[2] && flags[4],
            latched_init: flags[2] && flags[5],
            triple_fault: flags[6],
        },
    )
}

fn apic(vcpu: u32) -> impl Strategy<Value = ApicState> {
    let kernel = any::<([u32; 8], [u32; 6], u32, u64)>().prop_map(move |(irr, lvt, count, icr)| {
        let (initial_count, current_count) = (count, count / 2);
        let apic = KernelApic { irr, lvt, initial_count, current_count, icr, ..Default::default() };
        ApicState::Kernel(KernelApic { id: vcpu, ..apic })
    });
    let user = any::<([u8; 5], u64, bool)>().prop_map(move |(vectors, deadline, nmi_sent)| {
        let mut lapic = Lapic::new(VcpuId(vcpu), 1_000_000);
        for (index, value) in [(0xf, 0x1ff), (0x32, 2 << 17 | 0x44)] {
            lapic.write(X2APIC_FIRST + index, value, 0).unwrap();
        }
        lapic.write(0x6e0, deadline, 0).unwrap();
        vectors.iter().for_each(|vector| lapic.raise(*vector, vector & 1 != 0));
        let activity = if nmi_sent { Activity::Running } else { Activity::Halted };
        let lapic = lapic.save();
        ApicState::Userspace(UserspaceApic { lapic, activity, nmi_sent })
    });
    prop_oneof![kernel, user]
}

fn msrs() -> impl Strategy<Value = MsrSet> {
    let values = prop::collection::btree_map(0x1c_u32.., any::<u64>(), 0..300);
    (values, any::<u32>()).prop_map(|(values, refused)| {
        let values = values.into_iter().map(|(index, value)| Msr { index, value }).collect();
        MsrSet { values, refused }
    })
}

pub(crate) fn state() -> impl Strategy<Value = VcpuState> {
    (0_u32..4096).prop_flat_map(state_of)
}

fn state_of(vcpu: u32) -> impl Strategy<Value = VcpuState> {
    let registers = (general(), system(), xsave());
    let numbers = any::<(Option<u64>, ([u64; 4], u32, u32), bool, i64)>();
    let rest = (events(), msrs(), apic(vcpu));
    (registers, numbers, rest).prop_map(move |(registers, numbers, (events, msrs, apic))| {
        let (general, system, xsave) = registers;
        let (xcr0, (addresses, dr6, dr7), runs, tsc_ahead) = numbers;
        let in_kernel = matches!(apic, ApicState::Kernel(_));
        let running = if in_kernel && !runs { Running::Halted } else { Running::Runnable };
        let xcr = |value| Xcr { number: 0, value: value | 7 };
        let xcrs = Xcrs(xcr0.map(xcr).into_iter().collect());
        let debug = Debug { addresses, dr6: dr6.into(), dr7: dr7.into() };
        VcpuState {
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
        }
    })
}

/// One state of the many.
pub(crate) fn some_state() -> VcpuState {
    let mut registers = System { cr0: 0x8005_0033, cr4: 0x20, efer: 0x500, ..System::default() };
    (registers.cs.l, registers.apic_base) = (true, 0xfee0_0c00);
    VcpuState {
        vcpu: 1,
        running: Running::Runnable,
        general: General { rip: 0x1000, rflags: 2, ..General::default() },
        system: registers,
        xsave: XsaveArea::from_words([0; 1024]),
        xcrs: Xcrs(vec![Xcr { number: 0, value: 7 }]),
        debug: Debug::default(),
        events: Events::default(),
        msrs: MsrSet { values: vec![Msr { index: 0x174, value: 1 }], refused: 0 },
        apic: ApicState::Kernel(KernelApic { id: 1, ..KernelApic::default() }),
        tsc_ahead: 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_saved_is_read_back(state in state()) {
        prop_assert_eq!(state.check(), Ok(()));
        let bytes = encode(&state).unwrap();
        prop_assert_eq!(decode::<VcpuState>(&bytes).unwrap(), state);
    }

    #[test]
    fn structures_of_kvm_hold_the_whole_state(state in state()) {
        prop_assert_eq!(General::from(kvm_regs::from(state.general)), state.general);
        prop_assert_eq!(System::from(kvm_sregs2::from(state.system)), state.system);
        let without = System { pdptrs: None, ..state.system };
        prop_assert_eq!(System::from(kvm_sregs::from(state.system)), without);
        prop_assert_eq!(Debug::from(kvm_debugregs::from(state.debug)), state.debug);
        prop_assert_eq!(Events::from(kvm_vcpu_events::from(state.events)), state.events);
        prop_assert_eq!(Xcrs::from(kvm_xcrs::from(&state.xcrs)), state.xcrs);
        prop_assert_eq!(Running::from_kvm(state.running.to_kvm()), Some(state.running));
        let words = state.xsave.to_words(XSAVE_BYTES_MAX).unwrap();
        prop_assert_eq!(XsaveArea::from_words(words), state.xsave);
    }

    /// Bytes that were damaged give an error or another state that is in order, never a panic.
    #[test]
    fn damaged_bytes_do_no_harm(at: prop::sample::Index, to: u8, cut: prop::sample::Index) {
        let mut bytes = encode(&some_state()).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(read) = decode::<VcpuState>(&bytes) {
            prop_assert_eq!(read.check(), Ok(()));
        }
        prop_assert!(decode::<VcpuState>(&bytes[..cut.index(bytes.len())]).is_err());
    }
}

/// Replaces `from` in the bytes of a state by `to`, and tells what reading says.
fn read_with(from: &[u8], to: &[u8]) -> SavedError {
    let bytes = encode(&some_state()).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from).expect("it is there");
    let changed = [&bytes[..at], to, &bytes[at + from.len()..]].concat();
    decode::<VcpuState>(&changed).unwrap_err()
}

/// CBOR writes a length in front of each list and each string: major type 2 for bytes, 4 for lists.
#[test]
fn lengths_that_lie_are_refused_before_anything_is_allocated() {
    let area = b"\x65xsave\x59\x02\x40"; // 576 bytes
    let huge = |head: &[u8], kind: u8| [head, &[kind], &[0x3f; 8]].concat();
    let errors = [
        read_with(area, &huge(b"\x65xsave", 0x5b)),
        read_with(area, b"\x65xsave\x59\x02\x41"),
        read_with(area, b"\x65xsave\x59\x02\x3f"),
        read_with(b"\x66values\x81", &huge(b"\x66values", 0x9b)),
        read_with(b"\x66values\x81", b"\x66values\x82"),
        read_with(b"\x66values\x81", b"\x66values\x80"),
        read_with(b"\x64xcrs\x81", &huge(b"\x64xcrs", 0x9b)),
        read_with(b"\x63irr\x88", b"\x63irr\x87"),
        read_with(b"\x63irr\x88", &huge(b"\x63irr", 0x9b)),
    ];
    for error in errors {
        assert!(matches!(error, SavedError::Malformed { name: "vcpu", .. }), "{error}");
    }
}

#[test]
fn largest_state_can_be_written() {
    let mut state = some_state();
    let words = (0..XSAVE_BYTES_MAX / 4).map(|at| if at < 144 { 0 } else { u32::MAX });
    state.xsave = XsaveArea::from_words(words);
    let values = (0..512).map(|n| Msr { index: u32::MAX - n, value: u64::MAX });
    state.msrs = MsrSet { values: values.collect(), refused: u32::MAX };
    state.xcrs = Xcrs((0..16).map(|n| Xcr { number: u32::MAX - n, value: u64::MAX }).collect());
    let bytes = encode(&state).unwrap();
    assert_eq!(decode::<VcpuState>(&bytes).unwrap(), state);
}

#[test]
fn fields_that_do_not_fit_together_are_named() {
    let field = |change: fn(&mut VcpuState)| {
        let mut state = some_state();
        change(&mut state);
        state.check().unwrap_err().field
    };
    assert_eq!(some_state().check(), Ok(()));
    assert_eq!(field(|state| state.vcpu = 2), "apic");
    assert_eq!(field(|state| state.debug.dr7 = 1 << 32), "debug");
    assert_eq!(field(|state| state.events.nmi_pending = 3), "events");
    assert_eq!(field(|state| state.events.shadow = 4), "events");
    assert_eq!(field(|state| state.events.smm_inside_nmi = true), "events");
    assert_eq!(field(|state| state.events.latched_init = true), "events");
    let nmi = |state: &mut VcpuState| {
        let stage = Stage::Pending;
        let exception = Exception { vector: 2, stage, error_code: None, payload: None };
        state.events.exception = Some(exception);
    };
    assert_eq!(field(nmi), "events");
    let in_user_space = |state: &mut VcpuState| {
        let (lapic, activity) = (Lapic::new(VcpuId(1), 1_000_000).save(), Activity::Halted);
        state.apic = ApicState::Userspace(UserspaceApic { lapic, activity, nmi_sent: false });
        state.running = Running::Halted;
    };
    assert_eq!(field(in_user_space), "running");
}

#[test]
fn modes_that_no_vcpu_has_are_refused() {
    let refused = |change: fn(&mut System)| {
        let mut state = some_state();
        change(&mut state.system);
        state.check().unwrap_err().why
    };
    assert_eq!(refused(|system| system.cr0 &= !1), "paging without protected mode");
    assert_eq!(refused(|system| system.cr0 |= 1 << 32), "CR0 has 32 bits");
    assert_eq!(refused(|system| system.cr0 |= 1 << 29), "CR0.NW without CR0.CD");
    assert_eq!(refused(|system| system.cr4 = 0), "long mode without PAE");
    assert_eq!(refused(|system| system.efer = 0x100), "EFER.LMA is not EFER.LME with paging");
    assert_eq!(refused(|system| system.efer = 0), "64-bit code outside long mode");
    assert_eq!(refused(|system| system.cr8 = 16), "CR8 has 4 bits");
    assert_eq!(refused(|system| system.gs.kind = 16), "the type of a segment has 4 bits");
    assert_eq!(refused(|system| system.ss.dpl = 4), "the privilege level of a segment has 2 bits");
    let pointers = refused(|system| system.pdptrs = Some([0; 4]));
    assert_eq!(pointers, "page directory pointers that are not in use");
}

/// KVM tells of it as of one that a vCPU in system management mode has latched.
#[test]
fn init_that_the_apic_holds_is_no_part_of_the_state() {
    let mut events = kvm_vcpu_events::default();
    events.smi.latched_init = 1;
    assert!(!Events::from(events).latched_init);
    events.smi.smm = 1;
    assert!(Events::from(events).latched_init);
}
