//! What the machine says, input by input. The model (`migrate/sim`) tries all orders.

use super::{
    Cause, DeviceReach, Effect, Layout, Plan, Policy, Reason, Room, Share, Shelf, Supervisor,
};
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;

fn policy() -> Policy {
    Policy {
        every_ms: 30_000,
        keep: 2,
        full_every: 1,
        lease_ms: 3000,
        clock_error_ms: 10,
        gather_ms: 5000,
        restarts_max: 5,
        window_ms: 600_000,
        on_panic: false,
        lazy: true,
    }
}

fn full(number: u64) -> Effect {
    Effect::Checkpoint { number, base: None }
}

fn share(vcpus: u32, memory: u64) -> Share {
    Share { vcpus, spare_vcpus: 0, memory: memory * MIB }
}

fn plan() -> Plan {
    let devices = vec![DeviceReach { slice: 0, standby: vec![] }];
    Plan { slices: vec![share(1, 64), share(2, 64)], spares: 1, room: None, devices }
}

fn answering(hosts: &[u16]) -> BTreeSet<u16> {
    hosts.iter().copied().collect()
}

/// A VM that runs since the moment 0.
fn running(plan: &Plan) -> Supervisor {
    running_with(policy(), plan)
}

fn running_with(policy: Policy, plan: &Plan) -> Supervisor {
    let mut supervisor = Supervisor::new(policy, plan.clone(), Shelf::default(), 1);
    assert_eq!(supervisor.begin(0), [Effect::Ask]);
    let layout = plan.as_planned(&answering(&[1, 2])).unwrap();
    let started = supervisor.answers(0, &answering(&[1]));
    assert_eq!(
        started,
        [Effect::Start { from: None, lazy: false, fenced_at: 0, lives: None, layout }]
    );
    supervisor.runs(0, 1);
    supervisor
}

/// Its hosts answer when they are asked.
#[track_caller]
fn started_again(supervisor: &mut Supervisor, at: u64) -> Option<u64> {
    assert_eq!(supervisor.passed(at - 1), []);
    assert_eq!(supervisor.passed(at), [Effect::Ask]);
    match supervisor.answers(at, &answering(&[1])).as_slice() {
        [Effect::Start { from, .. }] => *from,
        other => panic!("{other:?}"),
    }
}

/// The same, and when its slices of before have stopped.
#[track_caller]
fn started_fenced(supervisor: &mut Supervisor, at: u64) -> (Option<u64>, u64) {
    assert_eq!(supervisor.passed(at), [Effect::Ask]);
    match supervisor.answers(at, &answering(&[1])).as_slice() {
        [Effect::Start { from, fenced_at, .. }] => (*from, *fenced_at),
        other => panic!("{other:?}"),
    }
}

#[test]
fn lost_vm_is_started_at_once_and_runs_when_its_slices_have_stopped() {
    let mut supervisor = running(&plan());
    assert_eq!(supervisor.due(), Some(30_000));
    assert_eq!(supervisor.passed(30_000), [full(1)]);
    assert_eq!(supervisor.due(), Some(90_000), "late then");
    assert_eq!(supervisor.committed(31_000, 1, None), []);
    assert_eq!(supervisor.due(), Some(61_000));
    assert_eq!(supervisor.ended(40_000, Cause::Lost), [Effect::Ask]);
    // The host of a slice that is about to stop.
    assert_eq!(supervisor.answers(40_000, &answering(&[])), []);
    // Five quarters of a lease, the clocks' error twice, and the margin.
    let stopped = 40_000 + 3750 + 20 + 500;
    assert_eq!(supervisor.fenced_at(), stopped);
    assert_eq!(started_fenced(&mut supervisor, 40_500), (Some(1), stopped));
    supervisor.runs(50_000, 1);
    // The second time in a row waits a little, the third twice as long.
    for (lost, back_off) in [(60_000, 2000), (70_000, 4000), (80_000, 8000), (90_000, 16_000)] {
        assert_eq!(supervisor.ended(lost, Cause::Lost), []);
        assert_eq!(supervisor.passed(lost + back_off - 1), []);
        let stopped = lost + 3750 + 20 + 500;
        assert_eq!(started_fenced(&mut supervisor, lost + back_off), (Some(1), stopped));
    }
}

/// It has opened no device yet: those of the life before stop when they would have.
#[test]
fn start_that_is_lost_while_slices_of_before_stop_waits_no_longer_for_them() {
    let mut supervisor = running(&plan());
    supervisor.passed(30_000);
    supervisor.committed(31_000, 1, None);
    assert_eq!(supervisor.ended(40_000, Cause::Lost), [Effect::Ask]);
    supervisor.answers(40_000, &answering(&[]));
    let stopped = 40_000 + 3750 + 20 + 500;
    assert_eq!(started_fenced(&mut supervisor, 40_500), (Some(1), stopped));
    assert_eq!(supervisor.ended(41_000, Cause::Lost), []);
    assert_eq!(started_fenced(&mut supervisor, 43_000), (Some(1), stopped));
    // Its devices may be open by now.
    assert_eq!(supervisor.ended(stopped, Cause::Lost), []);
    let later = stopped + 3750 + 20 + 500;
    assert_eq!(started_fenced(&mut supervisor, stopped + 4000), (Some(1), later));
}

/// It would use its disks at once.
#[test]
fn lost_vm_without_a_checkpoint_is_started_when_its_slices_have_stopped() {
    let mut supervisor = running(&plan());
    assert_eq!(supervisor.ended(40_000, Cause::Lost), [Effect::Ask]);
    assert_eq!(supervisor.answers(40_000, &answering(&[1])), []);
    assert_eq!(started_again(&mut supervisor, 40_000 + 3750 + 20 + 500), None);
}

/// Storage that does not answer, a disk that somebody has, a host that is not there: for as long as it takes.
#[test]
fn start_that_is_refused_is_tried_again_without_end() {
    let mut supervisor = running(&plan());
    supervisor.passed(30_000);
    supervisor.committed(30_001, 1, None);
    assert_eq!(supervisor.ended(40_000, Cause::Lost), [Effect::Ask]);
    assert_eq!(supervisor.answers(40_000, &answering(&[])), []);
    let mut now = 40_500;
    assert_eq!(started_again(&mut supervisor, now), Some(1));
    for wait in [2000, 4000, 8000, 16_000].into_iter().chain([30_000; 50]) {
        assert_eq!(supervisor.ended(now, Cause::Refused), []);
        now += wait;
        assert_eq!(started_again(&mut supervisor, now), Some(1));
    }
    // One that begins after all is not suspected for that.
    supervisor.runs(now, 1);
    assert_eq!(supervisor.ended(now + 1, Cause::Lost), []);
    now = supervisor.due().unwrap();
    assert_eq!(started_again(&mut supervisor, now), Some(1));
    supervisor.ended(now, Cause::Refused);
    assert_eq!(supervisor.due(), Some(now + 2000));
}

/// Its slices of before may be there, and its disks are later than its checkpoints.
#[test]
fn vm_of_a_former_supervisor_goes_on_when_its_slices_have_stopped() {
    let mut shelf = Shelf::default();
    for (number, is_whole) in [(4, true), (5, true), (6, false)] {
        shelf.found(number, None, is_whole);
    }
    let mut supervisor = Supervisor::new(policy(), plan(), shelf, 7);
    assert_eq!(supervisor.begin_again(100, Some(0)), [Effect::Ask]);
    assert_eq!(supervisor.answers(100, &answering(&[])), []);
    let at = 600;
    assert_eq!(started_fenced(&mut supervisor, at), (Some(5), 100 + 3750 + 20 + 500));
    let mut unwanted = supervisor.clone();
    // Not as without a supervisor: there is something to go on from.
    assert_eq!(supervisor.ended(at, Cause::Refused), []);
    assert_eq!(started_again(&mut supervisor, at + 2000), Some(5));
    supervisor.runs(at + 3000, 1);
    assert_eq!(supervisor.passed(at + 33_000), [full(7)]);
    // One that is damaged stays.
    assert_eq!(supervisor.committed(at + 33_000, 7, None), [Effect::Delete(4)]);
    assert_eq!(supervisor.stop(), [Effect::Stop]);
    let ended = Reason::Ended(Cause::Wanted);
    assert_eq!(supervisor.ended(at + 40_000, Cause::Wanted), [Effect::Over(ended)]);
    assert!(ended.is_end());
    // Its guest never ran: who starts it the next time is to go on too.
    assert_eq!(unwanted.stop(), [Effect::Stop]);
    assert_eq!(unwanted.ended(at, Cause::Wanted), [Effect::Over(Reason::Stopped)]);
    assert!(!Reason::Stopped.is_end());
}

#[test]
fn checkpoint_that_holds_later_ones_up_is_told_of_again_and_again() {
    let mut supervisor = running(&plan());
    assert_eq!(supervisor.passed(30_000), [full(1)]);
    let late = [Effect::Late { number: 1, since: 30_000 }];
    for after in [60_000, 120_000, 240_000, 480_000] {
        assert_eq!(supervisor.due(), Some(30_000 + after));
        assert_eq!(supervisor.passed(30_000 + after), late);
    }
    // It is waited for after a loss too: it may be the newest one.
    supervisor.ended(600_000, Cause::Lost);
    assert_eq!(supervisor.due(), Some(990_000));
    assert_eq!(supervisor.passed(990_000), late);
    supervisor.committed(991_000, 1, None);
    assert_eq!(supervisor.passed(991_000), [Effect::Ask]);
    supervisor.answers(991_000, &answering(&[1]));
    supervisor.runs(991_000, 1);
    assert_eq!(supervisor.due(), Some(1_021_000));
}

#[test]
fn vm_that_is_lost_too_often_is_given_up_unless_it_gets_on() {
    // What it says when it is not started again.
    let lose = |supervisor: &mut Supervisor, now: &mut u64| {
        *now += 10;
        let said = supervisor.ended(*now, Cause::Lost);
        match next(supervisor, now, &said) {
            Ok(_) => {
                supervisor.runs(*now, 1);
                Vec::new()
            }
            Err(_) => said,
        }
    };
    let (mut supervisor, mut now) = (running(&plan()), 0);
    for _ in 0..5 {
        assert_eq!(lose(&mut supervisor, &mut now), []);
    }
    let mut other = supervisor.clone();
    let given_up = [Effect::Over(Reason::TooOften(5))];
    assert_eq!(lose(&mut supervisor, &mut now.clone()), given_up);
    assert!(supervisor.is_over());
    // What was long ago does not count.
    let mut later = now + 700_000;
    assert_eq!(lose(&mut other.clone(), &mut later), []);
    now += 30_000;
    assert_eq!(other.passed(now), [full(1)]);
    assert_eq!(other.committed(now, 1, None), []);
    for _ in 0..5 {
        assert_eq!(lose(&mut other, &mut now), []);
    }
    assert_eq!(lose(&mut other, &mut now), given_up);
}

#[test]
fn end_that_somebody_wants_is_an_end() {
    for cause in [Cause::Wanted, Cause::Panicked] {
        let ended = running(&plan()).ended(5, cause);
        assert_eq!(ended, [Effect::Over(Reason::Ended(cause))]);
    }
    let on_panic = Policy { on_panic: true, ..policy() };
    let mut supervisor = Supervisor::new(on_panic, plan(), Shelf::given(7, false), 8);
    supervisor.begin(0);
    supervisor.answers(0, &answering(&[1]));
    assert_eq!(supervisor.ended(5, Cause::Panicked), [Effect::Ask]);
    assert_eq!(supervisor.stop(), [Effect::Over(Reason::Stopped)]);
    let mut supervisor = running(&plan());
    assert_eq!(supervisor.stop(), [Effect::Stop]);
    assert_eq!(supervisor.due(), None, "no checkpoint of a VM that is to end");
    let lost = supervisor.ended(9, Cause::Lost);
    assert_eq!(lost, [Effect::Over(Reason::Ended(Cause::Lost))]);
}

#[test]
fn vm_that_never_began_is_refused_as_without_a_supervisor() {
    let mut supervisor = Supervisor::new(policy(), plan(), Shelf::default(), 1);
    supervisor.begin(0);
    supervisor.answers(0, &answering(&[1]));
    let refused = supervisor.ended(5, Cause::Refused);
    assert_eq!(refused, [Effect::Over(Reason::Ended(Cause::Refused))]);
}

#[test]
fn older_checkpoint_is_tried_when_the_newest_cannot_be_gone_on_from() {
    let mut supervisor = running(&plan());
    for number in 1..=3 {
        let at = number * 31_000;
        assert_eq!(supervisor.passed(at), [full(number)]);
        let surplus = supervisor.committed(at, number, None);
        let expected: &[Effect] = if number == 3 { &[Effect::Delete(1)] } else { &[] };
        assert_eq!(surplus, expected);
    }
    let said = supervisor.ended(100_000, Cause::Lost);
    assert_eq!(next(&mut supervisor, &mut 100_000, &said), Ok((Some(3), true)));
    // Nothing has run from it, and nothing is waited for.
    assert_eq!(supervisor.ended(104_280, Cause::Damaged), [Effect::Ask]);
    let (mut now, ask) = (104_280, [Effect::Ask]);
    assert_eq!(next(&mut supervisor, &mut now, &ask), Ok((Some(2), true)));
    let mut other = supervisor.clone();
    // One that is good and fails twice would be passed over too, if there were another one.
    for (lost, again) in [(106_281, 108_281), (110_552, 114_552)] {
        supervisor.ended(lost, Cause::Lost);
        assert_eq!(started_again(&mut supervisor, again), Some(2));
    }
    let said = other.ended(106_281, Cause::Damaged);
    assert_eq!(next(&mut other, &mut 106_281, &said), Err(Reason::NoCheckpoint));
}

#[test]
fn checkpoint_that_fails_is_tried_again_more_and_more_rarely() {
    let mut supervisor = running(&plan());
    let mut at = 30_000;
    for (number, wait) in (1..).zip([1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]) {
        assert_eq!(supervisor.passed(at), [full(number)]);
        assert_eq!(supervisor.not_committed(at, number), [Effect::Delete(number)]);
        at += wait;
        assert_eq!(supervisor.due(), Some(at));
    }
}

#[test]
fn newest_checkpoint_is_that_which_was_being_written() {
    let mut supervisor = running(&plan());
    supervisor.passed(30_000);
    supervisor.ended(30_001, Cause::Lost);
    assert_eq!(supervisor.due(), Some(90_000), "what comes of it is waited for");
    assert_eq!(supervisor.committed(30_002, 1, None), []);
    assert_eq!(started_fenced(&mut supervisor, 30_002), (Some(1), 34_271));
}

#[test]
fn process_that_stands_still_is_killed_when_its_peers_have_lost_it() {
    let mut supervisor = running(&plan());
    supervisor.halted(100, true);
    assert_eq!(supervisor.due(), Some(4370));
    supervisor.halted(200, false);
    assert_eq!(supervisor.due(), Some(30_000));
    supervisor.halted(300, true);
    assert_eq!(supervisor.passed(4570), [Effect::Kill]);
    // Nobody loses a VM of one slice.
    let mut alone = running(&Plan { slices: vec![share(1, 64)], spares: 0, ..plan() });
    alone.halted(100, true);
    assert_eq!(alone.due(), Some(30_000));
}

#[test]
fn spare_takes_the_place_of_a_host_that_does_not_answer_in_time() {
    let mut supervisor = running(&plan());
    assert_eq!(supervisor.ended(1000, Cause::Lost), [Effect::Ask]);
    assert_eq!(supervisor.answers(1000, &answering(&[2])), []);
    let mut now = supervisor.due().unwrap();
    while now < 6000 {
        assert_eq!(supervisor.passed(now), [Effect::Ask]);
        assert_eq!(supervisor.answers(now, &answering(&[2])), []);
        now = supervisor.due().unwrap();
    }
    supervisor.passed(now);
    // Neither answers: they are asked on and on.
    assert_eq!(supervisor.answers(now, &answering(&[])), []);
    now = supervisor.due().unwrap();
    supervisor.passed(now);
    let started = supervisor.answers(now, &answering(&[2]));
    let [Effect::Start { layout: Layout(places), .. }] = started.as_slice() else {
        panic!("{started:?}")
    };
    assert_eq!((places[1].host, places[1].slice, places[1].share), (2, 1, share(2, 64)));
}

/// Its folder of checkpoints is not mounted, or its disk is not there: it says no each time, and others could have the VM.
#[test]
fn host_that_answers_and_refuses_is_done_without_in_its_turn() {
    let mut supervisor = running(&plan());
    let mut verdict = supervisor.ended(40_000, Cause::Lost);
    let (mut now, mut taken) = (40_000, Vec::new());
    for _ in 0..8 {
        assert_eq!(verdict, [Effect::Ask]);
        let mut started = supervisor.answers(now, &answering(&[1, 2]));
        if started.is_empty() {
            // It begins anew, and waits for its slices of before.
            now = supervisor.due().unwrap();
            supervisor.passed(now);
            started = supervisor.answers(now, &answering(&[1, 2]));
        }
        let [Effect::Start { layout: Layout(places), .. }] = started.as_slice() else {
            panic!("{started:?}")
        };
        taken.push(places[1].host);
        supervisor.ended(now, Cause::Refused);
        now = supervisor.due().unwrap();
        verdict = supervisor.passed(now);
    }
    // Then the spare is left out, which changes nothing, and nobody again.
    assert_eq!(taken, [1, 1, 2, 2, 1, 1, 1, 1]);
}

#[test]
fn what_is_left_has_all_of_the_vm_if_there_is_room() {
    let shares = |layout: Option<Layout>| {
        let places = layout.map(|Layout(places)| places);
        places
            .map(|places| places.iter().map(|place| (place.slice, place.share)).collect::<Vec<_>>())
    };
    let three =
        Plan { slices: vec![share(1, 64), share(2, 64), share(1, 70)], spares: 0, ..plan() };
    let only = answering(&[1]);
    assert_eq!(shares(three.without(&only)), None, "nobody said so");
    let room = |vcpus, mib: u64| {
        let room = Some(Room { vcpus, memory: mib * MIB });
        shares(Plan { room, ..three.clone() }.without(&only))
    };
    assert_eq!(room(4, 200), Some(vec![(0, share(2, 64 + 70)), (1, share(2, 64))]));
    // Each has room for 36 of 70 MiB, in steps of 2 MiB.
    assert_eq!(room(4, 101), Some(vec![(0, share(2, 100)), (1, share(2, 98))]));
    assert_eq!(room(4, 98), None);
    assert_eq!(room(1, 200), None);
}

#[test]
fn devices_of_a_slice_that_is_left_out_must_be_reached_from_others() {
    let room = Some(Room { vcpus: 8, memory: 512 * MIB });
    let with = |devices| Plan { room, spares: 0, devices, ..plan() }.without(&answering(&[]));
    let device = |standby| DeviceReach { slice: 1, standby };
    assert!(with(vec![device(vec![])]).is_none());
    assert!(with(vec![device(vec![1])]).is_none());
    assert!(with(vec![device(vec![0])]).is_some());
    // A slice with devices only is given nothing else.
    let slices = vec![share(1, 64), share(0, 0), share(1, 64)];
    let plan = Plan { slices, spares: 0, room, devices: Vec::new() };
    let Layout(places) = plan.without(&answering(&[1])).unwrap();
    assert_eq!(
        places.iter().map(|place| place.share).collect::<Vec<_>>(),
        [share(2, 128), share(0, 0)]
    );
}

#[test]
fn increments_keep_what_they_are_increments_of() {
    let mut supervisor = running(&plan());
    let mut deleted = Vec::new();
    for (number, base) in (1..).zip([None, Some(1), Some(2), None, None, None]) {
        let at = number * 31_000;
        supervisor.passed(at);
        deleted.push(supervisor.committed(at, number, base));
    }
    let all = |numbers: &[u64]| numbers.iter().map(|one| Effect::Delete(*one)).collect::<Vec<_>>();
    assert_eq!(deleted[..4], [all(&[]), all(&[]), all(&[]), all(&[])]);
    // Increments first.
    assert_eq!(deleted[4..], [all(&[3, 2, 1]), all(&[4])]);
}

#[test]
fn each_third_checkpoint_is_full_and_so_is_one_after_a_failure_or_a_loss() {
    let mut supervisor = running_with(Policy { full_every: 3, ..policy() }, &plan());
    let mut now = 0;
    let mut next = |supervisor: &mut Supervisor, expected: (u64, Option<u64>), ok: bool| {
        now = supervisor.due().unwrap().max(now);
        let (number, base) = expected;
        assert_eq!(supervisor.passed(now), [Effect::Checkpoint { number, base }]);
        if ok {
            supervisor.committed(now, number, base)
        } else {
            supervisor.not_committed(now, number)
        };
        now
    };
    for expected in [(1, None), (2, Some(1)), (3, Some(2)), (4, None), (5, Some(4))] {
        next(&mut supervisor, expected, true);
    }
    next(&mut supervisor, (6, Some(5)), false);
    next(&mut supervisor, (7, None), true);
    let now = next(&mut supervisor, (8, Some(7)), true);
    assert_eq!(supervisor.ended(now, Cause::Lost), [Effect::Ask]);
    supervisor.answers(now, &answering(&[1]));
    supervisor.runs(now, 1);
    next(&mut supervisor, (9, None), true);
    next(&mut supervisor, (10, Some(9)), true);
}

/// From what it starts, and how, when it is time; or why it is over.
fn next(
    of: &mut Supervisor,
    now: &mut u64,
    said: &[Effect],
) -> Result<(Option<u64>, bool), Reason> {
    let mut said = said.to_vec();
    loop {
        for effect in &said {
            match effect {
                Effect::Over(reason) => return Err(*reason),
                Effect::Start { from, lazy, .. } => return Ok((*from, *lazy)),
                _ => {}
            }
        }
        said = if said.contains(&Effect::Ask) {
            of.answers(*now, &BTreeSet::from([1]))
        } else {
            *now = (*now).max(of.due().expect("something follows"));
            of.passed(*now)
        };
    }
}

fn with_checkpoints(count: u64, lazy: bool) -> Supervisor {
    let mut shelf = Shelf::default();
    (1..=count).for_each(|number| shelf.found(number, None, true));
    Supervisor::new(Policy { lazy, ..policy() }, plan(), shelf, count + 1)
}

#[test]
fn start_that_was_refused_is_tried_the_other_way() {
    let (mut supervisor, mut now) = (with_checkpoints(1, true), 0);
    let mut said = supervisor.begin_again(now, Some(0));
    for lazy in [true, false, true, false] {
        assert_eq!(next(&mut supervisor, &mut now, &said), Ok((Some(1), lazy)));
        said = supervisor.ended(now, Cause::Refused);
    }
}

/// Nobody waits for a VM that begins.
#[test]
fn checkpoint_that_was_given_is_read_first_unless_its_user_says_otherwise() {
    for lazy in [false, true] {
        let shelf = Shelf::given(0, lazy);
        let mut supervisor = Supervisor::new(policy(), plan(), shelf, 1);
        let said = supervisor.begin(0);
        assert_eq!(next(&mut supervisor, &mut 0, &said), Ok((Some(0), lazy)));
    }
}

/// Three newest checkpoints are damaged, the oldest one is whole. What is damaged ends a lazy start when the guest runs, and an eager one
/// before.
#[test]
fn damaged_checkpoints_are_passed_over_however_many_there_are() {
    for is_lazy in [false, true] {
        let (mut supervisor, mut now) = (with_checkpoints(4, is_lazy), 0);
        let mut said = supervisor.begin_again(now, Some(0));
        loop {
            let (from, lazy) = next(&mut supervisor, &mut now, &said).unwrap();
            if from == Some(1) {
                break;
            }
            now += 100;
            said = if lazy {
                supervisor.runs(now, 1);
                supervisor.ended(now + 100, Cause::Lost)
            } else {
                supervisor.ended(now, Cause::Damaged)
            };
        }
    }
}
