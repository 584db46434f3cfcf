//! vCPUs that are brought to rest, saved and restored in another machine, on this machine's KVM.

#[path = "../assembler/mod.rs"]
mod assembler;
mod code;
#[path = "../assembler/handlers.rs"]
mod handlers;
mod rig;

use code::{
    ARMED_FOR, Armed, COUNTED, DONE, ENTRY_PAGE, FIRED, FIRED_AT, READY, RESULT, TELL, TIMER,
    VECTORS, VECTORS_AFTER,
};
use devices::ShutdownCause;
use kvm_bindings::{kvm_segment, kvm_sregs};
use rig::{LIMIT, Seen, Trail, World, interrupt, on_both};
use std::thread::yield_now;
use std::time::Duration;
use tessera_vmm::interrupts::{InterruptBackEnd, VcpuEvent};
use tessera_vmm::machine::{MachineError, RestError};
use tessera_vmm::vcpu::StateError;
use wire::VcpuId;

const ROUNDS: u16 = 120;
/// Accesses of a round: two to ports, two to registers in memory, and a string.
const ACCESSES: u64 = 20;
/// Times that the guest moves while it works.
const MOVES: u64 = 12;

/// What the guest has found when it is done.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    counted: [u8; 2],
    result: [u8; 4],
    vectors: [u8; 16],
    trail: Trail,
}

fn outcome(world: &World) -> Outcome {
    Outcome {
        counted: world.read(COUNTED),
        result: world.read(RESULT),
        vectors: world.read(VECTORS_AFTER),
        trail: world.device.trail(),
    }
}

/// Works through all rounds in one machine.
fn undisturbed(back_end: InterruptBackEnd) -> Option<Outcome> {
    let world = World::new(back_end)?;
    code::put_rounds(&world.memory, ROUNDS);
    let machine = world.boot_both();
    world.expect(Seen::Event(DONE));
    machine.stop(LIMIT).expect("stop the machine");
    assert_eq!(world.so_far(), []);
    Some(outcome(&world))
}

/// Points at which the guest moves, in accesses: anywhere, by a fixed seed.
fn points() -> impl Iterator<Item = u64> {
    let span = u64::from(ROUNDS) * ACCESSES / (MOVES + 1);
    let next = |seed: &u64| Some(seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    let seeds = std::iter::successors(Some(23), next).skip(1);
    (0..MOVES).zip(seeds).map(move |(at, seed)| at * span + (seed >> 33) % span + 1)
}

/// From each kind of APIC to each.
const WAYS: [(InterruptBackEnd, InterruptBackEnd); 4] = [
    (InterruptBackEnd::Userspace, InterruptBackEnd::Userspace),
    (InterruptBackEnd::Ghost, InterruptBackEnd::Ghost),
    (InterruptBackEnd::Userspace, InterruptBackEnd::Ghost),
    (InterruptBackEnd::Ghost, InterruptBackEnd::Userspace),
];

#[test]
fn kvm_guest_that_moves_at_random_points_ends_as_if_it_had_not() {
    for (back_end, other) in WAYS {
        println!("{back_end}, {other}");
        let Some(expected) = undisturbed(back_end) else { return };
        assert_eq!(expected.counted, ROUNDS.to_le_bytes());
        assert_eq!(expected.trail.1, u64::from(ROUNDS) * ACCESSES);
        let world = World::new(back_end).expect("it was there before");
        assert_eq!(expected.vectors, {
            code::put_rounds(&world.memory, ROUNDS);
            world.read(VECTORS)
        });

        let mut machine = world.boot_both();
        for (point, back_end) in points().zip([other, back_end].into_iter().cycle()) {
            world.device.wait_for(point);
            world.back_end.set(back_end);
            let rest = machine.rest(LIMIT).expect("come to rest");
            let next = world.move_on(&machine, &rest);
            machine = next;
        }
        world.expect(Seen::Event(DONE));
        machine.stop(LIMIT).expect("stop the machine");

        assert_eq!(outcome(&world), expected);
        assert_eq!(world.so_far(), []);
    }
}

#[test]
fn kvm_machine_goes_on_after_a_rest_and_can_be_saved_twice() {
    on_both(|world| {
        code::put_rounds(&world.memory, ROUNDS);
        let machine = world.boot_both();
        for point in points() {
            world.device.wait_for(point);
            let rest = machine.rest(LIMIT).expect("come to rest");
            let before = world.device.trail();
            let (first, second) = (rest.save().expect("save"), rest.save().expect("save again"));
            assert_eq!(first.iter().map(|state| state.vcpu).collect::<Vec<_>>(), [0, 1]);
            for (one, other) in first.iter().zip(&second) {
                assert_eq!((one.general, &one.xsave), (other.general, &other.xsave));
                assert_eq!((one.events, &one.apic), (other.events, &other.apic));
            }
            assert_eq!(world.device.trail(), before, "a vCPU ran at rest");
        }
        world.expect(Seen::Event(DONE));
        machine.stop(LIMIT).expect("stop the machine");
        assert_eq!(world.read(COUNTED), ROUNDS.to_le_bytes());
        assert_eq!(world.device.trail().1, u64::from(ROUNDS) * ACCESSES);
    });
}

/// Moves a guest whose timer is armed to a machine with these APICs. With `late` its deadline passes at rest. False if the
/// timer was faster than the rest, so that nothing was tried.
fn move_with_timer(
    world: &World,
    to: InterruptBackEnd,
    (armed, ticks): (Armed, u32),
    late: bool,
) -> bool {
    code::put_timer(&world.memory, armed, ticks);
    let machine = world.boot();
    world.expect(Seen::Event(READY));
    let rest = machine.rest(LIMIT).expect("come to rest");
    let deadline = u64::from_le_bytes(world.read(ARMED_FOR));
    if u16::from_le_bytes(world.read(FIRED)) != 0 {
        drop(rest);
        machine.stop(LIMIT).expect("stop the machine");
        return false;
    }
    while late && machine.clock().now() < deadline {
        yield_now();
    }
    assert_eq!(world.so_far(), [], "a vCPU ran at rest");
    world.back_end.set(to);
    let next = world.move_on(&machine, &rest);
    world.expect(Seen::Event(TIMER));
    // What comes after it shows that it does not come again.
    interrupt(&next, 0, TELL);
    world.expect(Seen::Event(TELL));
    next.stop(LIMIT).expect("stop the machine");
    assert_eq!(world.so_far(), []);
    assert_eq!(u16::from_le_bytes(world.read(FIRED)), 1);
    let fired = u64::from_le_bytes(world.read(FIRED_AT));
    // Counts go by the host's clock, which is a little faster or slower than the counter.
    let tolerance = if armed == Armed::Count { u64::from(ticks / 100) } else { 0 };
    assert!(fired + tolerance >= deadline, "{} ticks too early", deadline - fired);
    true
}

/// Tries with longer and longer deadlines, up to some seconds.
fn timer_moves(armed: Armed, late: bool) {
    for (back_end, to) in WAYS {
        println!("{back_end}, {to}");
        let mut longer = (1..7).map(|n| 30_000_000_u32 << n);
        let tried = |ticks| {
            let world = World::new(back_end)?;
            Some(move_with_timer(&world, to, (armed, ticks), late))
        };
        let Some(first) = tried(30_000_000) else { return };
        let moved = first || longer.any(|ticks| tried(ticks) == Some(true));
        assert!(moved, "the timer was always faster than the rest");
    }
}

#[test]
fn kvm_deadline_that_is_ahead_moves_and_fires_once() {
    timer_moves(Armed::Deadline, false);
}

#[test]
fn kvm_deadline_that_passes_at_rest_moves_and_fires_once() {
    timer_moves(Armed::Deadline, true);
}

#[test]
fn kvm_count_that_runs_moves_and_ends_once() {
    timer_moves(Armed::Count, false);
}

/// The vCPU has run before its INIT, of which KVM and our APIC keep different things.
#[test]
fn kvm_vcpu_that_waits_for_its_start_up_is_started_after_a_move() {
    for (back_end, to) in WAYS {
        println!("{back_end}, {to}");
        let Some(world) = World::new(back_end) else { return };
        code::put_sleeper(&world.memory);
        let machine = world.boot();
        world.expect(Seen::Event(READY));
        let startup = VcpuEvent::Startup(ENTRY_PAGE);
        machine.deliver_local(VcpuId(1), VcpuEvent::Init);
        machine.deliver_local(VcpuId(1), startup);
        world.expect(Seen::Event(READY));
        machine.deliver_local(VcpuId(1), VcpuEvent::Init);
        let rest = machine.rest(LIMIT).expect("come to rest");
        world.back_end.set(to);
        let next = world.move_on(&machine, &rest);
        assert_eq!(world.so_far(), [], "it has not been started");
        next.deliver_local(VcpuId(1), startup);
        world.expect(Seen::Event(READY));
        interrupt(&next, 1, TELL);
        world.expect(Seen::Event(TELL));
        next.stop(LIMIT).expect("stop the machine");
        assert_eq!(world.so_far(), []);
    }
}

#[test]
fn kvm_interrupts_at_rest_wait_and_are_delivered_afterwards() {
    on_both(|world| {
        code::put_sleeper(&world.memory);
        let machine = world.boot();
        world.expect(Seen::Event(READY));
        for _ in 0..10 {
            let rest = machine.rest(LIMIT).expect("come to rest");
            interrupt(&machine, 0, TELL);
            interrupt(&machine, 0, code::COUNT);
            drop(rest.save().expect("save"));
            assert_eq!(world.so_far(), [], "delivered at rest");
            drop(rest);
            world.expect(Seen::Event(TELL));
        }
        // Those that are taken in by a save move with it.
        let rest = machine.rest(LIMIT).expect("come to rest");
        interrupt(&machine, 0, TELL);
        let next = world.move_on(&machine, &rest);
        world.expect(Seen::Event(TELL));
        next.stop(LIMIT).expect("stop the machine");
        assert_eq!(world.so_far(), []);
        assert_eq!(world.read(COUNTED), 10_u16.to_le_bytes());
    });
}

#[test]
fn kvm_vcpu_that_waits_in_a_device_is_named_and_the_others_go_on() {
    on_both(|world| {
        code::put_writer(&world.memory);
        let machine = world.boot();
        world.expect(Seen::Event(READY));
        world.device.wait_for(1);
        world.device.hold();
        let limit = Duration::from_millis(100);
        let refused = machine.rest(limit).expect_err("a vCPU is in its device");
        assert_eq!(refused, RestError::Missing { missing: vec![VcpuId(0)], limit });
        assert_eq!(refused.to_string(), "[VcpuId(0)] did not come to rest within 100ms");

        world.device.release();
        let rest = machine.rest(LIMIT).expect("come to rest");
        let busy = machine.rest(limit).expect_err("it is at rest");
        assert_eq!(busy, RestError::Busy { limit });
        assert!(machine.step_clock(1, limit), "the clock steps at rest as well");
        let accesses = world.device.trail().1;
        drop(rest);
        world.device.wait_for(accesses + 1);
        machine.stop(LIMIT).expect("stop the machine");
        assert_eq!(machine.rest(LIMIT).expect_err("it has stopped"), RestError::Stopped);
    });
}

/// Long mode with neither page tables nor an interrupt table: the first fetch is a triple fault.
fn hopeless(sregs: &mut kvm_sregs) {
    let flat = kvm_segment { limit: u32::MAX, present: 1, s: 1, g: 1, ..Default::default() };
    sregs.cs = kvm_segment { selector: 8, type_: 11, l: 1, ..flat };
    let data = kvm_segment { selector: 16, type_: 3, db: 1, ..flat };
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = kvm_segment { limit: 0x67, present: 1, type_: 11, ..Default::default() };
    (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (0x8005_0033, 0x5_0000, 0x20, 0x500);
    sregs.idt.limit = 0;
}

#[test]
fn kvm_vcpu_that_has_shut_down_comes_to_rest_but_has_no_state() {
    on_both(|world| {
        let machine = world.boot_with(hopeless);
        world.expect(Seen::Shutdown(ShutdownCause::Reset));
        let rest = machine.rest(LIMIT).expect("come to rest");
        let error = rest.save().expect_err("vCPU 0 has shut down");
        let MachineError::State { vcpu: VcpuId(0), source, .. } = error else {
            panic!("{error}");
        };
        assert!(matches!(source, StateError::ShutDown), "{source}");
        machine.stop(LIMIT).expect("stop the machine");
        assert_eq!(world.so_far(), []);
    });
}

#[test]
fn kvm_states_of_other_machines_are_refused() {
    let back_ends = [InterruptBackEnd::Userspace, InterruptBackEnd::Ghost];
    let save = |back_end| {
        let world = World::new(back_end)?;
        code::put_sleeper(&world.memory);
        let machine = world.boot();
        world.expect(Seen::Event(READY));
        let rest = machine.rest(LIMIT).expect("come to rest");
        let mut states = rest.save().expect("save");
        let running = machine.restore_vcpu(&states[0]).expect_err("it runs");
        assert!(matches!(running, MachineError::NotStopped { .. }), "{running}");
        machine.stop(LIMIT).expect("stop the machine");
        let ended = rest.save().expect_err("the vCPUs have ended");
        assert!(matches!(ended, MachineError::NotAtRest { .. }), "{ended}");
        Some(states.swap_remove(0))
    };
    let Some(states) = back_ends.map(save).into_iter().collect::<Option<Vec<_>>>() else { return };
    for (back_end, other) in back_ends.into_iter().zip(states.iter().rev()) {
        let world = World::new(back_end).expect("it was there before");
        let machine = world.machine();
        let refused = machine.restore_vcpu(other).expect_err("the APIC is elsewhere");
        assert!(matches!(refused, MachineError::State { action: "restore", .. }), "{refused}");

        let mut stranger = other.clone();
        stranger.vcpu = 7;
        let refused = world.machine().restore_vcpu(&stranger).expect_err("there is no vCPU 7");
        assert!(matches!(refused, MachineError::UnknownVcpu { .. }), "{refused}");

        let mut wrong = other.clone();
        wrong.system.cr8 = 16;
        let refused = world.machine().restore_vcpu(&wrong).expect_err("CR8 has 4 bits");
        assert!(matches!(refused, MachineError::State { .. }), "{refused}");
        machine.stop(LIMIT).expect("nothing runs");
    }
}
