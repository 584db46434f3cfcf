//! Single steps of a hand-over, with the placement changed by hand.

use crate::code::{self, DONE, ENTRY_PAGE, READY, STOP, TELL, UP};
use crate::rig::{LIMIT, MOVER, SLICES, Seen, World, interrupt, on_both};
use migrate::saved::{decode, encode};
use std::time::Duration;
use tessera_vmm::interrupts::{InterruptBackEnd, VcpuEvent};
use tessera_vmm::machine::saved::{VcpuState, Xcr, XsaveArea};
use tessera_vmm::machine::{HandoverRefusal, MachineError};
use tessera_vmm::vcpu::StateError;
use vm_memory::{Bytes, GuestAddress};
use wire::VcpuId;

/// What is told by the guest must not be told within this time. A wait, not a measurement.
const QUIET: Duration = Duration::from_millis(20);
const HLT: u8 = 0xf4;
/// The other vCPU, which is on slice 0.
const STARTER: VcpuId = VcpuId(0);
/// Bits of XCR0 and XSTATE_BV: FPU, SSE, AVX (SDM vol. 1, 13.1).
const WITH_AVX: u64 = 7;
/// Offset of XSTATE_BV and of the upper halves of the YMM registers in the standard area (SDM vol. 1, 13.4).
const XSTATE_BV: usize = 512 / 4;
const YMM_UPPER: usize = 576 / 4;

/// A sleeping vCPU 1 on slice 0, that has told that it is ready.
fn sleepers(world: &World) {
    code::put_sleepers(&world.memory);
    world.start_both();
}

/// Has all slices know that vCPU 1 is there.
fn flip(world: &mut World, to: usize) {
    world.slices.iter_mut().for_each(|slice| slice.place(MOVER, SLICES[to]));
}

/// Moves vCPU 1, whose state `change` changes on its way.
fn move_changed(world: &mut World, from: usize, change: impl FnOnce(&mut VcpuState)) {
    let mut state = world.machine(from).stop_vcpu(MOVER, LIMIT).expect("stop");
    change(&mut state);
    let state = decode(&encode(&state).expect("write")).expect("read");
    world.machine(1 - from).install_vcpu(&state, LIMIT).expect("install");
    flip(world, 1 - from);
    world.machine(from).release_vcpu(MOVER).expect("release");
    world.machine(1 - from).run_vcpu(MOVER).expect("run");
}

fn quiet(world: &World) {
    std::thread::sleep(QUIET);
    assert_eq!(world.so_far(), []);
    let forwarded: Vec<_> = world.forwarded.try_iter().collect();
    assert_eq!(forwarded, []);
}

fn forwarded(world: &World, from: usize, expected: &[VcpuEvent]) {
    for event in expected {
        let next = world.forwarded.recv_timeout(LIMIT);
        assert_eq!(next, Ok((SLICES[from], MOVER, *event)));
    }
}

#[test]
fn kvm_interrupt_for_a_stopped_vcpu_comes_once_when_it_goes_on() {
    on_both(|world| {
        sleepers(&world);
        for _ in 0..10 {
            world.machine(0).stop_vcpu(MOVER, LIMIT).expect("stop");
            interrupt(world.machine(0), MOVER, TELL);
            quiet(&world);
            world.machine(0).resume_vcpu(MOVER).expect("resume");
            world.expect(Seen::Event(TELL));
        }
        quiet(&world);
        world.stop();
    });
}

#[test]
fn kvm_vcpu_whose_handover_is_given_up_stays_out_of_a_machine_at_rest() {
    on_both(|world| {
        sleepers(&world);
        for _ in 0..10 {
            world.machine(0).stop_vcpu(MOVER, LIMIT).expect("stop");
            interrupt(world.machine(0), MOVER, TELL);
            let rest = world.machine(0).rest(LIMIT).expect("rest");
            world.machine(0).resume_vcpu(MOVER).expect("resume");
            quiet(&world);
            drop(rest);
            world.expect(Seen::Event(TELL));
        }
        world.stop();
    });
}

#[test]
fn kvm_interrupts_for_a_stopped_vcpu_that_is_released_are_forwarded() {
    on_both(|mut world| {
        sleepers(&world);
        let mut state = world.machine(0).stop_vcpu(MOVER, LIMIT).expect("stop");
        interrupt(world.machine(0), MOVER, TELL);
        flip(&mut world, 1);
        world.machine(0).release_vcpu(MOVER).expect("release");
        forwarded(&world, 0, &[VcpuEvent::Fixed(TELL)]);
        interrupt(world.machine(0), MOVER, TELL);
        forwarded(&world, 0, &[VcpuEvent::Fixed(TELL)]);
        quiet(&world);

        // Back again, given up once, and with what came before it runs.
        flip(&mut world, 0);
        flip(&mut world, 1);
        state.vcpu = MOVER.0;
        world.machine(0).install_vcpu(&state, LIMIT).expect("install");
        world.machine(0).deliver_local(MOVER, VcpuEvent::Fixed(TELL));
        quiet(&world);
        world.machine(0).discard_vcpu(MOVER).expect("discard");
        forwarded(&world, 0, &[VcpuEvent::Fixed(TELL)]);
        world.machine(0).install_vcpu(&state, LIMIT).expect("install");
        world.machine(0).deliver_local(MOVER, VcpuEvent::Fixed(TELL));
        quiet(&world);
        flip(&mut world, 0);
        world.machine(0).run_vcpu(MOVER).expect("run");
        world.expect(Seen::Event(TELL));
        quiet(&world);
        world.stop();
    });
}

#[test]
fn kvm_start_up_of_a_stopped_vcpu_takes_place_where_it_goes_on() {
    on_both(|mut world| {
        sleepers(&world);
        let restart = [VcpuEvent::Init, VcpuEvent::Startup(ENTRY_PAGE)];
        world.machine(0).stop_vcpu(MOVER, LIMIT).expect("stop");
        restart.iter().for_each(|event| world.machine(0).deliver_local(MOVER, *event));
        quiet(&world);
        world.machine(0).resume_vcpu(MOVER).expect("resume");
        world.expect(Seen::Event(READY));
        assert_eq!(world.word(UP), 2);

        let state = world.machine(0).stop_vcpu(MOVER, LIMIT).expect("stop");
        restart.iter().for_each(|event| world.machine(0).deliver_local(MOVER, *event));
        world.machine(1).install_vcpu(&state, LIMIT).expect("install");
        flip(&mut world, 1);
        world.machine(0).release_vcpu(MOVER).expect("release");
        forwarded(&world, 0, &restart);
        world.machine(1).run_vcpu(MOVER).expect("run");
        quiet(&world);
        restart.iter().for_each(|event| world.machine(1).deliver_local(MOVER, *event));
        world.expect(Seen::Event(READY));

        // Between the two it moves as well.
        world.machine(1).deliver_local(MOVER, VcpuEvent::Init);
        move_changed(&mut world, 1, |_| {});
        world.machine(0).deliver_local(MOVER, VcpuEvent::Startup(ENTRY_PAGE));
        world.expect(Seen::Event(READY));
        assert_eq!(world.word(UP), 4);
        world.stop();
    });
}

/// Has vCPU 0 send the INIT, or the start-up.
fn sent(world: &World, startup: bool) {
    let word = u16::from(!startup).to_le_bytes();
    world.memory.write_slice(&word, GuestAddress(STOP)).expect("it lies in RAM");
    world.expect(Seen::Event(DONE));
}

#[test]
fn kvm_guest_that_starts_a_vcpu_while_it_is_stopped_starts_it_where_it_goes_on() {
    on_both(|mut world| {
        code::put_starter(&world.memory);
        world.start_both();
        let state = world.machine(0).stop_vcpu(MOVER, LIMIT).expect("stop");
        sent(&world, false);
        world.machine(1).install_vcpu(&state, LIMIT).expect("install");
        flip(&mut world, 1);
        world.machine(0).release_vcpu(MOVER).expect("release");
        forwarded(&world, 0, &[VcpuEvent::Init]);
        world.machine(1).run_vcpu(MOVER).expect("run");

        // A ghost that waits for the start-up may not be asked anything, so the vCPU cannot come here.
        if world.back_end == InterruptBackEnd::Ghost {
            let early = world.machine(0).install_vcpu(&state, QUIET);
            assert_eq!(refused(early), HandoverRefusal::Ghost(QUIET));
            // Nor can who sent the INIT leave: the ghost of another slice would not take the start-up.
            let early = world.machine(0).stop_vcpu(STARTER, LIMIT).expect_err("it stays");
            let MachineError::State { source, .. } = early else { panic!("{early:?}") };
            assert!(matches!(source, StateError::StartsAnother(MOVER)), "{source:?}");
        }
        sent(&world, true);
        forwarded(&world, 0, &[VcpuEvent::Startup(ENTRY_PAGE)]);
        world.machine(0).stop_vcpu(STARTER, LIMIT).expect("stop");
        world.machine(0).resume_vcpu(STARTER).expect("resume");
        world.machine(1).deliver_local(MOVER, VcpuEvent::Init);
        world.machine(1).deliver_local(MOVER, VcpuEvent::Startup(ENTRY_PAGE));
        world.expect(Seen::Event(READY));
        move_changed(&mut world, 1, |_| {});
        interrupt(world.machine(0), MOVER, TELL);
        world.expect(Seen::Event(TELL));
        quiet(&world);
        world.stop();
    });
}

/// The state of vCPU 1 when it sleeps, which it is about to.
fn asleep(world: &World) -> VcpuState {
    loop {
        let state = world.machine(0).stop_vcpu(MOVER, LIMIT).expect("stop");
        world.machine(0).resume_vcpu(MOVER).expect("resume");
        let before = (u64::from(ENTRY_PAGE) << 12) + state.general.rip - 1;
        if world.read(before) == [HLT] {
            return state;
        }
    }
}

/// Gives the state vector registers with a pattern in their upper halves.
fn fill_vectors(state: &mut VcpuState) {
    let mut words = state.xsave.to_words(4096).expect("an area of the first size");
    words[XSTATE_BV] = 7;
    words[YMM_UPPER..][..64].fill(0xa5a5_5a5a);
    state.xsave = XsaveArea::from_words(words);
    state.xcrs.0 = vec![Xcr { number: 0, value: WITH_AVX }];
}

#[test]
fn kvm_registers_of_all_kinds_stay_the_same_on_the_way() {
    on_both(|mut world| {
        if !std::arch::is_x86_feature_detected!("avx") {
            needs::skip("this machine has no AVX");
            return;
        }
        sleepers(&world);
        let before = asleep(&world);
        move_changed(&mut world, 0, fill_vectors);
        for from in [1, 0, 1] {
            move_changed(&mut world, from, |state| {
                assert_eq!((state.general, state.debug), (before.general, before.debug));
                assert_eq!((state.system, state.events), (before.system, before.events));
                assert_eq!((&state.apic, state.running), (&before.apic, before.running));
                let words = state.xsave.to_words(4096).expect("an area of the first size");
                assert_eq!(words[YMM_UPPER..][..64], [0xa5a5_5a5a; 64]);
            });
        }
        interrupt(world.machine(0), MOVER, TELL);
        world.expect(Seen::Event(TELL));
        world.stop();
    });
}

#[test]
fn kvm_clock_steps_and_rests_do_without_a_stopped_vcpu() {
    on_both(|mut world| {
        sleepers(&world);
        let saved = |world: &World, at: usize| {
            let rest = world.machine(at).rest(LIMIT).expect("come to rest");
            rest.save().map(|states| states.iter().map(|state| state.vcpu).collect::<Vec<_>>())
        };
        assert_eq!(saved(&world, 0).expect("save"), [0, 1]);
        let state = world.machine(0).stop_vcpu(MOVER, LIMIT).expect("stop");
        assert!(world.machine(0).step_clock(0, LIMIT));
        let error = saved(&world, 0).expect_err("it is stopped");
        assert!(matches!(error, MachineError::NotAtRest { vcpu: MOVER }), "{error}");
        world.machine(1).install_vcpu(&state, LIMIT).expect("install");
        assert!(world.machine(1).step_clock(0, LIMIT));
        assert_eq!(saved(&world, 1).expect("save"), [0_u32; 0]);
        flip(&mut world, 1);
        assert!(world.machine(0).step_clock(0, LIMIT));
        world.machine(0).release_vcpu(MOVER).expect("release");
        world.machine(1).run_vcpu(MOVER).expect("run");
        assert_eq!(saved(&world, 0).expect("save"), [0]);
        assert_eq!(saved(&world, 1).expect("save"), [1]);
        assert!(world.machine(1).step_clock(0, LIMIT));
        interrupt(world.machine(1), MOVER, TELL);
        world.expect(Seen::Event(TELL));
        world.stop();
    });
}

fn refused<T: std::fmt::Debug>(result: Result<T, MachineError>) -> HandoverRefusal {
    match result.expect_err("it is refused") {
        MachineError::Handover { refusal, .. } => refusal,
        other => panic!("{other}"),
    }
}

#[test]
fn kvm_steps_that_do_not_fit_are_refused_and_change_nothing() {
    use HandoverRefusal::{Is, NoThread, Placed};
    on_both(|mut world| {
        code::put_sleepers(&world.memory);
        assert_eq!(refused(world.machine(0).stop_vcpu(MOVER, LIMIT)), NoThread);
        world.start_both();
        let stranger = VcpuId(7);
        let unknown = world.machine(0).stop_vcpu(stranger, LIMIT).expect_err("there is none");
        assert!(matches!(unknown, MachineError::UnknownVcpu { vcpu: VcpuId(7) }), "{unknown}");

        let here = Is("here");
        assert_eq!(refused(world.machine(0).resume_vcpu(MOVER)), here);
        assert_eq!(refused(world.machine(0).release_vcpu(MOVER)), here);
        assert_eq!(refused(world.machine(0).discard_vcpu(MOVER)), here);
        assert_eq!(refused(world.machine(0).run_vcpu(MOVER)), here);
        assert_eq!(refused(world.machine(1).stop_vcpu(MOVER, LIMIT)), Is("elsewhere"));

        assert_eq!(refused(world.machine(0).prepare_vcpu(MOVER, LIMIT)), here);
        world.machine(1).prepare_vcpu(MOVER, LIMIT).expect("prepare");
        assert_eq!(refused(world.machine(1).prepare_vcpu(MOVER, LIMIT)), Is("prepared"));
        world.machine(1).discard_vcpu(MOVER).expect("discard");
        assert_eq!(refused(world.machine(1).discard_vcpu(MOVER)), Is("elsewhere"));

        let state = world.machine(0).stop_vcpu(MOVER, LIMIT).expect("stop");
        let stopped = Is("stopped");
        assert_eq!(refused(world.machine(0).stop_vcpu(MOVER, LIMIT)), stopped);
        assert_eq!(refused(world.machine(0).install_vcpu(&state, LIMIT)), stopped);
        assert_eq!(refused(world.machine(0).release_vcpu(MOVER)), Placed("here"));

        // Of a vCPU that runs here, of none, and one that no vCPU is in.
        let other = VcpuState { vcpu: 0, ..state.clone() };
        assert_eq!(refused(world.machine(0).install_vcpu(&other, LIMIT)), here);
        let none = VcpuState { vcpu: 7, ..state.clone() };
        let unknown = world.machine(1).install_vcpu(&none, LIMIT).expect_err("there is none");
        assert!(matches!(unknown, MachineError::UnknownVcpu { .. }), "{unknown}");
        let mut wrong = state.clone();
        wrong.system.cr8 = 16;
        let invalid = world.machine(1).install_vcpu(&wrong, LIMIT).expect_err("CR8 has 4 bits");
        assert!(matches!(invalid, MachineError::State { action: "install", .. }), "{invalid}");
        // KVM finds this out when it has taken a part of it.
        let mut wrong = state.clone();
        wrong.xcrs.0 = vec![Xcr { number: 0, value: 1 << 62 | 7 }];
        let invalid = world.machine(1).install_vcpu(&wrong, LIMIT).expect_err("no such XCR0");
        assert!(matches!(invalid, MachineError::State { action: "install", .. }), "{invalid}");

        world.machine(1).install_vcpu(&state, LIMIT).expect("install");
        assert_eq!(refused(world.machine(1).install_vcpu(&state, LIMIT)), Is("installed"));
        assert_eq!(refused(world.machine(1).run_vcpu(MOVER)), Placed("elsewhere"));
        flip(&mut world, 1);
        assert_eq!(refused(world.machine(1).discard_vcpu(MOVER)), Placed("here"));
        world.machine(0).release_vcpu(MOVER).expect("release");
        assert_eq!(refused(world.machine(0).release_vcpu(MOVER)), Is("elsewhere"));
        world.machine(1).run_vcpu(MOVER).expect("run");
        assert_eq!(refused(world.machine(1).run_vcpu(MOVER)), here);
        interrupt(world.machine(1), MOVER, TELL);
        world.expect(Seen::Event(TELL));
        world.stop();
        assert_eq!(refused(world.machine(1).stop_vcpu(MOVER, LIMIT)), NoThread);
    });
}
