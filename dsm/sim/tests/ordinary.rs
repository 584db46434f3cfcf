//! Every interleaving of small clusters with ordinary pages.

use stateright::{Checker, Model};
use tessera_dsm_sim::models::{Scenario, ordinary};

fn explore(label: &str, scenario: Scenario) {
    let name = scenario.name;
    let checker = scenario.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}, {label}: {} states, depth {}",
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}

#[test]
fn one_page_on_two_slices_stays_coherent() {
    explore("2 slices, 3 faults", ordinary::one_page(2, 3));
    explore("2 slices, 3 faults, unordered", ordinary::one_page(2, 3).unordered());
}

#[test]
fn one_page_on_three_slices_stays_coherent() {
    explore("3 slices, 2 faults", ordinary::one_page(3, 2));
    explore("3 slices, 2 faults, unordered", ordinary::one_page(3, 2).unordered());
}

#[test]
fn one_page_on_four_slices_stays_coherent() {
    explore("4 slices, 1 fault", ordinary::one_page(4, 1));
    explore("4 slices, 1 fault, unordered", ordinary::one_page(4, 1).unordered());
}
