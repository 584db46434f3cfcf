//! A VM that is lost goes on from its newest checkpoint, once, in every order of events, and each planted bug is found.

use migrate::supervise::PlantedBug;
use tessera_migrate_sim::full;
use tessera_migrate_sim::supervise::{Scenario, names, prove, refute};

fn scenario() -> Scenario {
    Scenario { losses: 2, writes: 2, ..Scenario::default() }
}

#[test]
fn lost_vm_goes_on_from_its_newest_checkpoint() {
    prove("losses", scenario());
    prove("three checkpoints", Scenario { writes: 3, ..scenario() });
    prove("from one that was given", Scenario { given: true, ..scenario() });
    prove("checkpoints that fail", Scenario { failures: 2, ..scenario() });
    let increments = Scenario { increments: true, writes: 4, losses: 1, ..scenario() };
    prove("increments", increments.clone());
    prove("increments that fail", Scenario { failures: 2, losses: 1, ..increments });
    let many = Scenario { losses: 5, ..scenario() };
    prove("many losses", many.clone());
    if full() {
        prove("many losses and checkpoints", Scenario { writes: 4, failures: 1, ..many });
    }
}

#[test]
fn next_supervisor_goes_on_where_the_former_one_has_ended() {
    let former = |count| Scenario { former: Some(count), ..scenario() };
    prove("a former supervisor", former(2));
    prove("a former supervisor without checkpoints", former(0));
    prove("a former supervisor, damages", Scenario { damages: 2, ..former(2) });
    prove("a former supervisor, ended", Scenario { ends: true, writes: 1, ..former(1) });
    prove("a former supervisor, from one that was given", Scenario { given: true, ..former(1) });
}

#[test]
fn who_waits_for_a_late_checkpoint_is_told() {
    let late = Scenario { lates: 3, failures: 1, ..scenario() };
    prove("late checkpoints", late.clone());
    prove("late checkpoints, stopped from outside", Scenario { halts: true, lates: 2, ..late });
}

#[test]
fn damaged_checkpoint_is_passed_over() {
    let damage = Scenario { damages: 1, ..scenario() };
    prove("one is damaged", damage.clone());
    prove("two are damaged", Scenario { damages: 2, ..damage.clone() });
    prove("the one that was given is damaged", Scenario { given: true, ..damage.clone() });
    let increments = Scenario { increments: true, writes: 3, ..damage };
    prove("an increment is damaged", increments.clone());
    let lazy = |scenario| Scenario { lazy: true, ..scenario };
    prove("memory is read later", lazy(scenario()));
    prove("memory is read later, two are damaged", lazy(Scenario { damages: 2, ..scenario() }));
    prove("memory is read later, an increment is damaged", lazy(increments));
}

#[test]
fn vm_goes_on_where_hosts_answer() {
    let silent = Scenario { silences: 4, ..scenario() };
    prove("hosts are silent", silent.clone());
    prove("a spare", Scenario { spare: true, ..silent.clone() });
    prove("what is left", Scenario { folds: true, ..silent.clone() });
    prove("a spare, or what is left", Scenario { spare: true, folds: true, ..silent });
}

#[test]
fn end_on_purpose_is_an_end() {
    let ends = Scenario { ends: true, ..scenario() };
    prove("ended on purpose", ends.clone());
    prove("panics are losses", Scenario { on_panic: true, ..ends.clone() });
    prove("stopped from outside", Scenario { halts: true, ..ends });
}

#[test]
fn vm_that_was_restored_elsewhere_goes_on_there() {
    let taken = Scenario { takeovers: 1, losses: 3, ..scenario() };
    prove("restored elsewhere", taken.clone());
    prove("restored elsewhere, ended", Scenario { ends: true, losses: 2, ..taken.clone() });
    prove("restored elsewhere, given", Scenario { given: true, ..taken.clone() });
    prove("restored elsewhere, former", Scenario { former: Some(1), ..taken });
}

#[track_caller]
fn assert_caught(bug: PlantedBug, scenario: &Scenario, property: &str) {
    let broken = refute(Scenario { planted: Some(bug), ..scenario.clone() });
    assert!(broken.contains(&property), "{bug:?} broke {broken:?}, not {property:?}");
}

#[test]
fn planted_bugs_are_caught() {
    use PlantedBug::*;
    assert_caught(WaitsForNothing, &scenario(), names::ONE);
    assert_caught(WaitsOneLease, &scenario(), names::ONE);
    assert_caught(RunsUnfenced, &scenario(), names::ONE);
    assert_caught(BeginsUnfenced, &scenario(), names::ONE);
    let ends = Scenario { ends: true, ..scenario() };
    assert_caught(EndForgotten, &ends, names::WANTED);
    assert_caught(StopForgotten, &ends, names::WANTED);
    assert_caught(TakesBack, &ends, names::WANTED);
    let taken = Scenario { takeovers: 1, ..scenario() };
    assert_caught(LifeForgotten, &taken, names::GONE);
    assert_caught(TriesForgotten, &taken, names::OWN);
    assert_caught(OldestFirst, &scenario(), names::NEWEST);
    assert_caught(PendingForgotten, &scenario(), names::NEWEST);
    let damage = Scenario { damages: 2, ..scenario() };
    assert_caught(DamagedAgain, &damage, names::NEWEST);
    assert_caught(BeginsAnew, &damage, names::NEWEST);
    assert_caught(DamageCounts, &Scenario { losses: 4, ..damage.clone() }, names::COUNTED);
    assert_caught(AlwaysLazy, &Scenario { lazy: true, ..damage.clone() }, names::FOUND);
    let writes = Scenario { writes: 4, ..scenario() };
    assert_caught(DeletesEarly, &writes, names::KEPT);
    assert_caught(KeepsFewer, &writes, names::KEPT);
    let increments = Scenario { increments: true, failures: 1, ..writes };
    assert_caught(DeletesBase, &increments, names::NEEDED);
    assert_caught(NeverFull, &increments, names::CHAINS);
    assert_caught(IncrementOfFormerLife, &increments, names::CHAINS);
    assert_caught(IncrementAfterFailure, &increments, names::CHAINS);
    assert_caught(NoBound, &Scenario { losses: 5, ..scenario() }, names::BOUND);
    assert_caught(RefusedCounts, &Scenario { losses: 5, ..scenario() }, names::COUNTED);
    let former = Scenario { former: Some(1), ..scenario() };
    assert_caught(FormerForgotten, &former, names::ONE);
    assert_caught(EndWithoutLife, &Scenario { ends: true, ..former }, names::ENDED);
    assert_caught(LateUnsaid, &Scenario { lates: 1, ..scenario() }, names::SAID);
    let silent = Scenario { silences: 5, ..scenario() };
    assert_caught(AnswerIgnored, &silent, names::PLACES);
    assert_caught(AskedOnce, &silent, names::GOES_ON);
}
