//! Two leaders that do one request over a network that loses answers and holds commits back, in every order; each planted bug is found.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

mod world;

use model_check::{prove, refute};
use store::PlantedBug;
use world::{Scenario, names};

/// Two leaders, each with two tries.
fn scenario() -> Scenario {
    Scenario { ticks: 3, tries: 2, strays: 1, bytes_max: 1 << 20, together: false, planted: None }
}

/// Two tasks of one leader, and room for what one of them does.
fn full() -> Scenario {
    Scenario { bytes_max: 120, together: true, ..scenario() }
}

#[test]
fn every_order_keeps_the_rules() {
    prove("two leaders", scenario());
    prove("two tasks of one leader", Scenario { together: true, ..scenario() });
    prove("a full store", full());
}

fn assert_caught(scenario: Scenario, bug: PlantedBug, rule: &str) {
    let label = format!("{bug:?}");
    let planted = Some(bug);
    let broken = refute(&label, Scenario { planted, ..scenario }, 3_000_000);
    assert!(broken.contains(&rule), "{label}: {broken:?}");
}

#[test]
fn term_that_is_not_compared_is_found() {
    assert_caught(scenario(), PlantedBug::TermNotCompared, names::FENCED);
}

#[test]
fn deposed_leader_that_is_accepted_is_found() {
    assert_caught(scenario(), PlantedBug::DeposedAccepted, names::FENCED);
}

#[test]
fn term_that_does_not_grow_is_found() {
    assert_caught(scenario(), PlantedBug::TermNotAdvanced, names::TERMS);
}

#[test]
fn comparison_that_is_left_out_is_found() {
    let tasks = Scenario { together: true, ..scenario() };
    assert_caught(tasks, PlantedBug::OneCompared, names::CHAIN);
}

#[test]
fn half_a_transaction_is_found() {
    assert_caught(full(), PlantedBug::HalfWritten, names::WHOLE);
}

#[test]
fn unknown_result_that_is_taken_for_a_failure_is_found() {
    assert_caught(scenario(), PlantedBug::UnknownIsFailure, names::NEVER);
}

#[test]
fn late_commit_that_nobody_prevents_is_found() {
    assert_caught(scenario(), PlantedBug::NotVoided, names::NEVER);
}
