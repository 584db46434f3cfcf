//! Every interleaving of small clusters that replicate page tables.

use stateright::{Checker, Model};
use tessera_dsm_sim::models::{Scenario, replicas};

fn explore(label: &str, scenario: Scenario) {
    let name = scenario.name;
    let checker = scenario.checker().threads(2).target_state_count(3_000_000).spawn_bfs().join();
    println!(
        "{name}, {label}: {} states, depth {}",
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}

#[test]
fn publish_2() {
    explore("2 slices", replicas::publish(2, true));
    explore("2 slices, converting", replicas::publish(2, false));
}
#[test]
fn publish_3() {
    explore("3 slices", replicas::publish(3, true));
    explore("3 slices, converting", replicas::publish(3, false));
}
#[test]
fn interrupt_2() {
    explore("2 slices", replicas::publish_by_interrupt(2, true));
    explore("2 slices, converting", replicas::publish_by_interrupt(2, false));
}
#[test]
fn interrupt_3() {
    explore("3 slices", replicas::publish_by_interrupt(3, true));
    explore("3 slices, converting", replicas::publish_by_interrupt(3, false));
}
#[test]
fn chain() {
    explore("3 slices", replicas::chain());
}
#[test]
fn lock_2() {
    explore("2 slices", replicas::under_lock(2, true));
    explore("2 slices, converting", replicas::under_lock(2, false));
}
#[test]
fn lock_3() {
    explore("3 slices", replicas::under_lock(3, true));
}
#[test]
fn own_2() {
    explore("2 slices", replicas::own_entries(2));
}
#[test]
fn own_3() {
    explore("3 slices", replicas::own_entries(3));
}
#[test]
fn reuse_2() {
    explore("2 slices", replicas::reuse(2, true));
    explore("2 slices, converting", replicas::reuse(2, false));
}
#[test]
fn reuse_3() {
    explore("3 slices", replicas::reuse(3, true));
}
#[test]
fn reuse_3c() {
    explore("3 slices, converting", replicas::reuse(3, false));
}
#[test]
fn conflict_2() {
    explore("2 slices", replicas::conflict(2, true));
    explore("2 slices, converting", replicas::conflict(2, false));
}
#[test]
fn conflict_3() {
    explore("3 slices", replicas::conflict(3, true));
}
#[test]
fn conflict_3c() {
    explore("3 slices, converting", replicas::conflict(3, false));
}
#[test]
fn leave_0() {
    explore("home 0", replicas::leave_with_changes(0, true));
}
#[test]
fn leave_1() {
    explore("home 1", replicas::leave_with_changes(1, true));
}
#[test]
fn leave_1c() {
    explore("home 1, converting", replicas::leave_with_changes(1, false));
}
#[test]
fn twice_2() {
    explore("2 slices", replicas::twice(2, true));
    explore("2 slices, converting", replicas::twice(2, false));
}
#[test]
fn twice_3() {
    explore("3 slices", replicas::twice(3, true));
}
#[test]
fn twice_3c() {
    explore("3 slices, converting", replicas::twice(3, false));
}
#[test]
fn idle_2() {
    explore("2 slices", replicas::idle_root(2));
}
#[test]
fn idle_3() {
    explore("3 slices", replicas::idle_root(3));
}
