//! How models are checked: every interleaving of a small cluster, by the crate stateright.
//!
//! A crate with a model (`dsm/sim`, `migrate/sim`) says what may happen and what must hold. This crate explores it, and
//! prints how large it is.

#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, Model};

/// The checker's threads. Several tests with models run at once.
const THREADS: usize = 2;

/// True when the larger sizes are wanted too: `TESSERA_MODELS=full`.
#[must_use]
pub fn full() -> bool {
    std::env::var_os("TESSERA_MODELS").is_some_and(|value| value == "full")
}

/// Tries every interleaving and prints how many states there are.
///
/// # Panics
/// When a property does not hold, with the shortest way there.
pub fn prove<M>(label: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = model.checker().threads(THREADS).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("model: {label}: {states} states, depth {}", checker.max_depth());
    checker.assert_properties();
}

/// Looks for a counterexample in the first `states` states, because a broken protocol may have endlessly many. Returns
/// the properties that it breaks, and prints how many steps that takes.
#[must_use]
pub fn refute<M>(label: &str, model: M, states: usize) -> Vec<&'static str>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + PartialEq,
{
    let checker = model.checker().threads(THREADS).target_state_count(states).spawn_bfs().join();
    let always: Vec<&'static str> = (checker.model().properties().iter())
        .filter(|property| matches!(property.expectation, Expectation::Always))
        .map(|property| property.name)
        .collect();
    let found = checker.discoveries();
    let broken: Vec<_> = always.into_iter().filter(|name| found.contains_key(name)).collect();
    for property in &broken {
        let steps = found[property].clone().into_actions().len();
        println!("mutant: {label}: \"{property}\" broken after {steps} steps");
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use stateright::Property;

    /// Counts up by one, to its end if it has one.
    #[derive(Clone, Copy)]
    struct Counter {
        end: u32,
        /// What it must never reach.
        forbidden: u32,
    }

    impl Model for Counter {
        type State = u32;
        type Action = u32;

        fn init_states(&self) -> Vec<u32> {
            vec![0]
        }

        fn actions(&self, state: &u32, actions: &mut Vec<u32>) {
            actions.extend((*state < self.end).then_some(1));
        }

        fn next_state(&self, state: &u32, step: u32) -> Option<u32> {
            Some(state + step)
        }

        fn properties(&self) -> Vec<Property<Self>> {
            vec![
                Property::always("allowed", |model, state| *state != model.forbidden),
                Property::sometimes("counts", |_, state| *state == 1),
            ]
        }
    }

    #[test]
    fn model_that_holds_is_proved_and_not_refuted() {
        let model = Counter { end: 9, forbidden: 10 };

        prove("counter", model);
        assert!(refute("counter", model, 1000).is_empty());
    }

    #[test]
    #[should_panic(expected = "allowed")]
    fn model_that_breaks_a_property_is_not_proved() {
        prove("counter", Counter { end: 9, forbidden: 5 });
    }

    /// "counts" is discovered too, and is no break: that is what it is for.
    #[test]
    fn broken_properties_are_named_even_if_there_is_no_end() {
        assert_eq!(refute("counter", Counter { end: u32::MAX, forbidden: 5 }, 1000), ["allowed"]);
    }
}
