//! The hand-over holds in every interleaving, and each planted bug is found.

use migrate::handover::PlantedBug;
use tessera_migrate_sim::full;
use tessera_migrate_sim::handover::{Scenario, Step, names, prove, refute};

#[test]
fn vcpu_moves_while_all_send() {
    // From the coordinator's slice, to it, and past it.
    for (start, to) in [(0, 1), (1, 0), (1, 2)] {
        prove(&format!("from {start} to {to}"), Scenario::new(start, &[Step::Move(to)]));
    }
}

#[test]
fn two_events_of_a_sender_stay_in_order() {
    for events in [[2, 0, 0], [0, 2, 0], [0, 0, 2]] {
        let scenario = Scenario { events, ..Scenario::new(1, &[Step::Move(2)]) };
        prove(&format!("events {events:?}"), scenario);
    }
    if full() {
        prove("two of each", Scenario { events: [2; 3], ..Scenario::new(1, &[Step::Move(2)]) });
    }
}

#[test]
fn move_back_follows_at_once() {
    for (label, to) in [("there and back", 1), ("and on", 0)] {
        let steps = [Step::Move(2), Step::Move(to)];
        let events = if full() { [1; 3] } else { [1, 0, 1] };
        prove(label, Scenario { events, ..Scenario::new(1, &steps) });
    }
}

#[test]
fn anything_may_fail_before_the_flip() {
    let steps = [Step::Move(2), Step::Move(2)];
    let events = if full() { [1; 3] } else { [1, 1, 0] };
    prove("with failures", Scenario { events, failures: 2, ..Scenario::new(1, &steps) });
}

#[test]
fn move_may_be_given_up_at_any_time_and_tried_again() {
    let steps = [Step::Move(2), Step::GiveUp, Step::Move(2)];
    let events = if full() { [1; 3] } else { [1, 1, 0] };
    prove("given up", Scenario { events, ..Scenario::new(1, &steps) });
    let steps = [Step::Move(2), Step::GiveUp, Step::Move(0)];
    prove("given up, and elsewhere", Scenario { events, ..Scenario::new(1, &steps) });
}

#[test]
fn what_gives_a_move_up_may_overtake_what_begins_it() {
    let steps = [Step::Move(2), Step::GiveUp, Step::Move(2), Step::GiveUp];
    let events = if full() { [1; 3] } else { [0, 1, 0] };
    prove("overtaken", Scenario { events, overtakes: true, ..Scenario::new(1, &steps) });
    let steps = [Step::Move(2), Step::GiveUp];
    let planted = Some(PlantedBug::LateObeyed);
    let broken = refute(Scenario { planted, overtakes: true, ..Scenario::new(1, &steps) });
    assert!(broken.contains(&names::COMPLETE), "{broken:?}");
}

fn assert_caught(bug: PlantedBug, steps: &[Step], property: &str) {
    let scenario = Scenario { planted: Some(bug), events: [2, 1, 0], ..Scenario::new(1, steps) };
    let broken = refute(scenario);
    assert!(broken.contains(&property), "{bug:?} broke {broken:?}, not {property:?}");
}

#[test]
fn planted_bugs_are_caught() {
    use PlantedBug::*;
    let there = [Step::Move(2)];
    assert_caught(RunBeforeFlip, &[Step::Move(2), Step::GiveUp], names::ONE_RUNNER);
    assert_caught(RunAfterState, &there, names::ONE_RUNNER);
    assert_caught(KeptDropped, &there, names::COMPLETE);
    assert_caught(KeptDelivered, &there, names::COMPLETE);
    assert_caught(StragglerDropped, &there, names::COMPLETE);
    assert_caught(NothingHeld, &there, names::IN_ORDER);
    assert_caught(SettledEarly, &[Step::Move(2), Step::Move(1)], names::POSSIBLE);
    let again = [Step::Move(2), Step::GiveUp, Step::Move(2)];
    assert_caught(NumberIgnored, &again, names::COMPLETE);
    assert_caught(NotSettled, &there, names::ENDS);
    assert_caught(NoResume, &[Step::Move(2), Step::GiveUp], names::COMPLETE);
}
