//! Runs a model and prints its size.

use super::scenario::Scenario;
use stateright::{Checker, Expectation, Model};

/// How far a mutant is explored.
const MUTANT_STATES: usize = 300_000;

/// True when the larger sizes are wanted too: `TESSERA_MODELS=full`.
#[must_use]
pub fn full() -> bool {
    std::env::var_os("TESSERA_MODELS").is_some_and(|value| value == "full")
}

/// Tries every interleaving and prints how many states there are.
///
/// # Panics
/// When a property does not hold, with the shortest way there.
pub fn prove(label: &str, scenario: Scenario) {
    let name = scenario.name;
    let checker = scenario.checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("model: {name}, {label}: {states} states, depth {}", checker.max_depth());
    checker.assert_properties();
}

/// Looks for a counterexample and returns the properties that it breaks.
#[must_use]
pub fn refute(label: &str, scenario: Scenario) -> Vec<&'static str> {
    let name = scenario.name;
    // A broken protocol may have endlessly many states.
    let checker =
        scenario.checker().threads(2).target_state_count(MUTANT_STATES).spawn_bfs().join();
    let always: Vec<&'static str> = (checker.model().properties().iter())
        .filter(|property| matches!(property.expectation, Expectation::Always))
        .map(|property| property.name)
        .collect();
    let found = checker.discoveries();
    let broken: Vec<_> = always.into_iter().filter(|name| found.contains_key(name)).collect();
    for property in &broken {
        let steps = found[property].clone().into_actions().len();
        println!("mutant: {name}, {label}: \"{property}\" broken after {steps} steps");
    }
    broken
}
