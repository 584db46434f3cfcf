//! A checkpoint is of one moment in every interleaving, and each planted bug is found.

use migrate::checkpoint::PlantedBug;
use tessera_migrate_sim::checkpoint::{Scenario, names, prove, refute};
use tessera_migrate_sim::full;

fn scenario() -> Scenario {
    Scenario { checkpoints: 1, ..Scenario::default() }
}

#[test]
fn checkpoint_has_all_slices_at_one_moment() {
    prove("tokens on their way", Scenario { moves: [2, 2, 0], ..scenario() });
    prove("two checkpoints", Scenario { checkpoints: 2, moves: [1, 1, 0], ..scenario() });
    let three = Scenario { three: true, ..scenario() };
    prove("three slices", Scenario { moves: [0, 0, 1], ..three.clone() });
    if full() {
        prove("three slices that run", Scenario { moves: [1, 1, 1], ..three });
    }
}

#[test]
fn checkpoint_may_come_to_nothing_at_any_time_and_leaves_nothing() {
    let moves = Scenario { moves: [1, 1, 0], ..scenario() };
    prove("a failure", Scenario { failures: 1, ..moves.clone() });
    prove("two failures", Scenario { failures: 2, ..moves.clone() });
    prove("given up", Scenario { give_up: true, ..moves.clone() });
    prove("a slice is lost", Scenario { lose: true, ..moves });
    let three = Scenario { three: true, ..scenario() };
    prove("a failure, three slices", Scenario { failures: 1, ..three.clone() });
    prove("one of three is lost", Scenario { lose: true, ..three });
    let all = Scenario { failures: 1, give_up: true, lose: true, ..scenario() };
    prove("anything", all.clone());
    if full() {
        prove("anything, three slices", Scenario { three: true, ..all });
    }
}

#[test]
fn next_checkpoint_has_nothing_of_the_one_before() {
    let twice = Scenario { checkpoints: 2, ..Scenario::default() };
    prove("again after a failure", Scenario { failures: 1, ..twice.clone() });
    prove("again after one that was given up", Scenario { give_up: true, ..twice.clone() });
    prove("again after a loss", Scenario { lose: true, ..twice.clone() });
    if full() {
        let moves = Scenario { moves: [0, 1, 0], ..twice };
        prove("again after a failure, beside tokens", Scenario { failures: 1, ..moves.clone() });
        prove("again after both", Scenario { failures: 1, give_up: true, ..moves });
    }
}

#[test]
fn pause_of_a_user_ends_by_the_user() {
    let pause = Scenario { pause: true, ..scenario() };
    prove("a pause", Scenario { moves: [0, 1, 0], ..pause.clone() });
    prove("a pause, given up", Scenario { give_up: true, ..pause.clone() });
    prove("a pause, and a failure", Scenario { failures: 1, ..pause.clone() });
    prove("a pause, and a loss", Scenario { lose: true, ..pause.clone() });
    prove("a pause, and another one", Scenario { checkpoints: 2, ..pause });
}

#[test]
fn guest_runs_on_while_a_live_checkpoint_is_written() {
    let live = Scenario { live: true, ..scenario() };
    let moves = Scenario { moves: [2, 1, 0], ..live.clone() };
    prove("live", moves.clone());
    prove("live, two checkpoints", Scenario { checkpoints: 2, moves: [1, 0, 0], ..live.clone() });
    prove("live, a failure", Scenario { failures: 1, moves: [1, 1, 0], ..live.clone() });
    prove("live, given up", Scenario { give_up: true, moves: [1, 1, 0], ..live.clone() });
    prove("live, a slice is lost", Scenario { lose: true, moves: [1, 1, 0], ..live.clone() });
    prove("live, a pause", Scenario { pause: true, moves: [1, 0, 0], ..live.clone() });
    if full() {
        let three = Scenario { three: true, moves: [1, 1, 0], ..live };
        prove("live, three slices", three.clone());
        prove("live, one of three is lost", Scenario { lose: true, ..three });
    }
}

#[track_caller]
fn assert_caught(bug: PlantedBug, scenario: &Scenario, property: &str) {
    let broken = refute(Scenario { planted: Some(bug), ..scenario.clone() });
    assert!(broken.contains(&property), "{bug:?} broke {broken:?}, not {property:?}");
}

#[test]
fn planted_bugs_are_caught() {
    use PlantedBug::*;
    assert_caught(CommitsEarly, &scenario(), names::MOMENT);
    assert_caught(GoesOnEarly, &scenario(), names::STANDS_STILL);
    assert_caught(GoesOnUncommitted, &scenario(), names::STANDS_STILL);
    assert_caught(CutsUnprepared, &scenario(), names::PREPARED);
    // A slice that writes on is no mend for it.
    let careless = Scenario { careless: true, moves: [0, 1, 0], ..scenario() };
    assert_caught(GoesOnEarly, &careless, names::MOMENT);
    let live = Scenario { live: true, ..scenario() };
    assert_caught(LiveStandsStill, &live, names::NOT_HELD);
    assert_caught(GoesOnTwice, &live, names::ONCE);
    let lose = Scenario { lose: true, ..scenario() };
    assert_caught(LostForgotten, &lose, names::MOMENT);
    let give_up = Scenario { give_up: true, ..scenario() };
    assert_caught(NotDiscarded, &give_up, names::NO_FILE);
    assert_caught(StaysAtRest, &give_up, names::RUNS);
    assert_caught(CommitNotAwaited, &give_up, names::KEPT);
    let twice = Scenario { checkpoints: 2, ..give_up };
    assert_caught(NumberIgnored, &twice, names::PREPARED);
    assert_caught(NumberAgain, &twice, names::PREPARED);
    assert_caught(NumberIgnored, &Scenario { failures: 1, ..twice }, names::REASON);
}

/// What is not the coordinator's is not left to it: the properties tell when others do not keep to what it counts on.
#[test]
fn bugs_of_others_are_caught() {
    let blunt = Scenario { pause: true, blunt: true, ..scenario() };
    assert!(refute(blunt).contains(&names::PAUSE));
    let unkept = Scenario { live: true, unkept: true, moves: [0, 1, 0], ..scenario() };
    assert!(refute(unkept).contains(&names::MOMENT));
}
