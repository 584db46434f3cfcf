//! A vCPU that moves between two machines of this process while the other one runs, on this machine's KVM.

#[path = "../assembler/mod.rs"]
mod assembler;
mod code;
#[path = "../assembler/handlers.rs"]
mod handlers;
mod rig;
mod steps;
mod stray;

use code::{
    ANSWER_COUNT, ANSWERED_COUNT, BACK, CHANGED, DEVICE_COUNT, DONE, EARLY, FIRED, NESTED,
    SLOW_COUNT, STOP, VECTORS, VECTORS_AFTER,
};
use migrate::handover::Outcome;
use rig::{LIMIT, MOVER, SLICES, Seen, World, interrupt, on_both};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{JoinHandle, spawn, yield_now};
use std::time::{Duration, Instant};
use vm_memory::{Bytes, GuestAddress};

const MOVES: u64 = 100;
/// More frames than a hand-over takes before the flip.
const FRAMES: u64 = 8;
const LONGEST_STAY_US: u64 = 3000;

/// The timer of vCPU 1 goes on: it was neither lost, nor doubled, for then the guest would wait for ever.
fn timer_goes_on(world: &mut World) {
    let (before, end) = (world.word(FIRED), Instant::now() + LIMIT);
    while world.word(FIRED).wrapping_sub(before) < 3 {
        assert!(Instant::now() < end, "the timer stands still: {}", world.counts());
        world.carry(Duration::from_millis(1));
    }
}

/// Interrupts vCPU 1 from a thread that knows nothing of its moves, each time when the last one was counted, until `over`.
fn device(world: &World, over: &Arc<AtomicBool>) -> JoinHandle<u16> {
    let (machines, over) = ([0, 1].map(|at| world.machine(at).clone()), Arc::clone(over));
    let memory = world.memory.clone();
    let counted =
        move || memory.read_obj::<u16>(GuestAddress(DEVICE_COUNT)).expect("it lies in RAM");
    spawn(move || {
        let mut sent: u16 = 0;
        for machine in machines.iter().cycle() {
            if over.load(SeqCst) {
                break;
            }
            interrupt(machine, MOVER, code::DEVICE);
            sent = sent.wrapping_add(1);
            let end = Instant::now() + LIMIT;
            while counted() != sent {
                assert!(Instant::now() < end, "{sent} sent, {} counted", counted());
                yield_now();
            }
        }
        sent
    })
}

#[test]
fn kvm_vcpu_moves_there_and_back_under_load_and_nothing_is_lost_or_doubled() {
    on_both(|mut world| {
        code::put_workers(&world.memory, code::SOON);
        world.start_both();
        let over = Arc::new(AtomicBool::new(false));
        let device = device(&world, &over);
        let (mut moved, mut given_up) = (0, 0);
        while moved < MOVES {
            let to = SLICES[usize::from(moved % 2 == 0)];
            let gives_up = (world.random(2) == 0).then(|| world.random(FRAMES));
            match world.hand_over(to, gives_up) {
                Outcome::Moved => moved += 1,
                Outcome::GivenUp(why) => {
                    assert_eq!(why, "asked");
                    given_up += 1;
                }
            }
            let stay = world.random(LONGEST_STAY_US);
            world.carry(Duration::from_micros(stay));
        }
        timer_goes_on(&mut world);
        over.store(true, SeqCst);
        while !device.is_finished() {
            world.carry(Duration::from_millis(1));
        }
        let sent = device.join().expect("all were counted");
        assert_eq!(world.word(DEVICE_COUNT), sent);
        assert!(given_up > 10, "{given_up} were given up");
        world.memory.write_slice(&[1], GuestAddress(STOP)).expect("it lies in RAM");
        world.carry_until(&Seen::Event(DONE));
        println!("{given_up} given up; {}", world.counts());
        let rounds = world.word(SLOW_COUNT);
        assert_eq!([ANSWERED_COUNT, ANSWER_COUNT].map(|at| world.word(at)), [rounds; 2]);
        let wrong = [NESTED, EARLY, BACK, CHANGED].map(|at| world.word(at));
        assert_eq!(wrong, [0; 4], "{}", world.counts());
        assert_eq!(world.read::<16>(VECTORS_AFTER), world.read(VECTORS));
        world.stop();
    });
}

/// Nothing but its timer takes a busy vCPU out of the guest here.
#[test]
fn kvm_timer_of_a_vcpu_that_nobody_interrupts_moves_with_it() {
    on_both(|mut world| {
        code::put_workers(&world.memory, code::LATER);
        world.memory.write_slice(&[1], GuestAddress(STOP)).expect("it lies in RAM");
        world.start_both();
        world.carry_until(&Seen::Event(DONE));
        for to in [1, 0].into_iter().cycle().take(20) {
            assert_eq!(world.hand_over(SLICES[to], None), Outcome::Moved);
            timer_goes_on(&mut world);
        }
        assert_eq!(world.word(EARLY), 0);
        world.stop();
    });
}
