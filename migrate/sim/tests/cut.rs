//! A cut is whole in every interleaving, and each planted bug is found.

use migrate::cut::PlantedBug;
use tessera_migrate_sim::cut::{Scenario, names, prove, refute};
use tessera_migrate_sim::full;

fn scenario() -> Scenario {
    Scenario { cuts: 1, ..Scenario::default() }
}

#[test]
fn interrupts_and_calls_have_come_at_a_cut() {
    prove("interrupts", Scenario { interrupts: [1; 3], ..scenario() });
    prove("a call of each role", Scenario { calls: [1, 1, 0], ..scenario() });
    prove(
        "an interrupt and a call",
        Scenario { interrupts: [0, 0, 1], calls: [0, 1, 0], ..scenario() },
    );
    if full() {
        prove("both", Scenario { interrupts: [1; 3], calls: [1, 1, 0], ..scenario() });
    }
}

#[test]
fn change_that_a_queue_causes_is_made_everywhere_at_a_cut() {
    prove("a broken ring", Scenario { broken: [0, 1, 0], ..scenario() });
    prove(
        "one of the first slice",
        Scenario { broken: [1, 0, 0], interrupts: [0, 1, 0], ..scenario() },
    );
    if full() {
        prove("two broken rings", Scenario { broken: [1, 0, 1], ..scenario() });
    }
}

#[test]
fn cut_may_be_given_up_at_any_time_and_the_next_one_is_whole() {
    let twice = Scenario { cuts: 2, give_up: true, ..Scenario::default() };
    prove("given up", Scenario { interrupts: [0, 1, 0], ..twice.clone() });
    prove("given up, with a broken ring", Scenario { broken: [0, 0, 1], ..twice });
}

#[test]
fn slice_that_leaves_is_a_member_for_all_or_for_none() {
    let leaves = Scenario { cuts: 2, leave: true, ..Scenario::default() };
    prove("a slice leaves", Scenario { interrupts: [1, 1, 0], ..leaves.clone() });
    prove("a slice leaves after a call", Scenario { calls: [0, 1, 0], ..leaves.clone() });
    prove("a slice that is needed stays", Scenario { needed: true, ..leaves.clone() });
    prove("given up while a slice leaves", Scenario { give_up: true, ..leaves });
}

#[test]
fn slice_that_joins_is_a_member_for_all_or_for_none_and_has_begun() {
    let joins = Scenario { cuts: 2, join: true, ..Scenario::default() };
    prove("a slice joins", Scenario { interrupts: [0, 1, 1], ..joins.clone() });
    prove("a slice joins and calls", Scenario { calls: [0, 1, 1], ..joins.clone() });
    prove("a slice joins beside a change", Scenario { broken: [1, 0, 0], ..joins.clone() });
    prove("a slice that one cannot have", Scenario { refused: true, ..joins.clone() });
    prove("given up while a slice joins", Scenario { give_up: true, ..joins.clone() });
    prove("a slice joins and leaves", Scenario { leave: true, ..joins.clone() });
    prove("a slice joins, and another one coordinates", Scenario { hand_over: true, ..joins });
}

#[test]
fn slice_that_comes_to_coordinate_is_asked_by_all_and_no_other_is() {
    let hands_over = Scenario { cuts: 1, hand_over: true, ..Scenario::default() };
    prove("hand over, a call of each", Scenario { calls: [1, 1, 0], ..hands_over.clone() });
    prove(
        "hand over, a call and a broken ring",
        Scenario { calls: [0, 0, 1], broken: [1, 0, 0], ..hands_over.clone() },
    );
    let unable = Scenario { unable: true, calls: [0, 1, 0], ..hands_over.clone() };
    prove("hand over to one that cannot", unable);
    let twice = Scenario { cuts: 2, ..hands_over };
    prove("hand over, and the next cut", Scenario { calls: [0, 1, 0], ..twice.clone() });
    prove("hand over, given up", Scenario { give_up: true, ..twice.clone() });
    prove("hand over, and a slice leaves", Scenario { leave: true, ..twice });
}

#[test]
fn device_is_open_at_one_host_and_where_all_ask_for_it() {
    let moves = Scenario { cuts: 1, move_device: true, ..Scenario::default() };
    prove("a device moves", Scenario { calls: [0, 1, 0], ..moves.clone() });
    let stays = Scenario { unopenable: true, interrupts: [0, 1, 0], ..moves.clone() };
    prove("a device cannot be opened elsewhere", stays);
    let twice = Scenario { cuts: 2, ..moves };
    prove("given up while a device moves", Scenario { give_up: true, ..twice.clone() });
    prove("a device moves, and its slice leaves", Scenario { leave: true, ..twice.clone() });
    prove("a device moves, and another slice coordinates", Scenario { hand_over: true, ..twice });
}

#[test]
fn checkpoint_is_captured_by_all_slices_at_rest() {
    let captures = Scenario { cuts: 2, capture: true, ..Scenario::default() };
    prove("a checkpoint", Scenario { interrupts: [0, 1, 1], ..captures.clone() });
    prove("a checkpoint, and a call", Scenario { calls: [0, 1, 0], ..captures.clone() });
    prove("no room for a checkpoint", Scenario { full: true, ..captures.clone() });
    prove("a checkpoint that is given up", Scenario { give_up: true, ..captures.clone() });
    prove("a checkpoint, and a slice leaves", Scenario { leave: true, ..captures });
}

#[test]
fn restored_vm_goes_on_when_all_slices_have_begun() {
    let begins = Scenario { restored: true, cuts: 1, ..Scenario::default() };
    prove("restored", Scenario { interrupts: [1, 1, 0], ..begins.clone() });
    prove("restored, and a call", Scenario { calls: [0, 0, 1], ..begins.clone() });
    prove("restored, and given up", Scenario { give_up: true, ..begins.clone() });
    prove("restored, and captured", Scenario { capture: true, ..begins.clone() });
    prove("restored, and another slice coordinates", Scenario { hand_over: true, ..begins });
}

#[track_caller]
fn assert_caught(bug: PlantedBug, scenario: &Scenario, property: &str) {
    let broken = refute(Scenario { planted: Some(bug), ..scenario.clone() });
    assert!(broken.contains(&property), "{bug:?} broke {broken:?}, not {property:?}");
}

#[test]
fn planted_bugs_are_caught() {
    use PlantedBug::*;
    let busy = Scenario { interrupts: [1; 3], ..scenario() };
    assert_caught(NotCompared, &busy, names::WHOLE);
    let broken = Scenario { broken: [1, 0, 0], ..scenario() };
    assert_caught(DevicesAtOnce, &broken, names::ENDS);
    let calls = Scenario { calls: [0, 1, 0], ..scenario() };
    assert_caught(NotAllTaken, &calls, names::ENDS);
    assert_caught(NotAwaited, &scenario(), names::RUNS);
    let leaves = Scenario { leave: true, ..scenario() };
    let needed = Scenario { needed: true, ..leaves.clone() };
    assert_caught(NobodyAsked, &needed, names::NEEDED);
    assert_caught(GoesOnHalfParted, &Scenario { give_up: true, ..leaves }, names::SAME);
    let joins = Scenario { join: true, ..scenario() };
    assert_caught(NewcomerAtOnce, &joins, names::REACHED);
    assert_caught(NobodyAsked, &Scenario { refused: true, ..joins.clone() }, names::READY);
    assert_caught(GoesOnHalfParted, &Scenario { give_up: true, ..joins }, names::SAME);
    let hands_over = Scenario { hand_over: true, calls: [1, 0, 1], ..scenario() };
    assert_caught(HandedOverEarly, &hands_over, names::ONE_COORDINATOR);
    let twice = Scenario { cuts: 2, calls: [0; 3], ..hands_over };
    assert_caught(BeginsUntold, &twice, names::AT_REST);
    let moves = Scenario { move_device: true, ..scenario() };
    assert_caught(OpensUnclosed, &moves, names::ONE_OWNER);
    assert_caught(AllGoOnAtOnce, &Scenario { give_up: true, ..moves }, names::ONE_OWNER);
    let captures = Scenario { capture: true, ..scenario() };
    assert_caught(NotAllTaken, &captures, names::CAPTURED);
    let begins = Scenario { restored: true, ..scenario() };
    assert_caught(NotAllTaken, &begins, names::BEGUN);
    assert_caught(GoesOnUnbegun, &Scenario { give_up: true, ..begins }, names::BEGUN);
}
