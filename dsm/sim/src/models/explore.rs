//! Runs a model and prints its size.

use super::scenario::Scenario;

/// How far a mutant is explored.
const MUTANT_STATES: usize = 300_000;

/// Tries every interleaving and prints how many states there are.
///
/// # Panics
/// When a property does not hold, with the shortest way there.
pub fn prove(label: &str, scenario: Scenario) {
    model_check::prove(&format!("{}, {label}", scenario.name), scenario);
}

/// Looks for a counterexample and returns the properties that it breaks.
#[must_use]
pub fn refute(label: &str, scenario: Scenario) -> Vec<&'static str> {
    refute_within(label, scenario, MUTANT_STATES)
}

/// The same in so many states.
#[must_use]
pub fn refute_within(label: &str, scenario: Scenario, states: usize) -> Vec<&'static str> {
    model_check::refute(&format!("{}, {label}", scenario.name), scenario, states)
}
