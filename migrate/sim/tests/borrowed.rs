//! Borrowed vCPUs go and come by the rule, whatever windows follow each other, and each planted bug is found.

use migrate::borrowed::PlantedBug;
use tessera_migrate_sim::borrowed::{Scenario, names, prove, refute};

#[test]
fn vcpus_go_and_come_by_the_rule() {
    prove("from home", Scenario::default());
    prove("from their slices", Scenario { away: true, ..Scenario::default() });
}

#[test]
fn planted_bugs_are_caught() {
    for (bug, name) in [
        (PlantedBug::OneWindow, names::ROW),
        (PlantedBug::Unsettled, names::ROW),
        (PlantedBug::HoldOffIgnored, names::HOLD_OFF),
        (PlantedBug::TriesForgotten, names::DOUBLES),
        (PlantedBug::PayForgotten, names::DOUBLES),
    ] {
        let found = refute(Scenario { planted: Some(bug), ..Scenario::default() });
        assert!(found.contains(&name), "{bug:?}: {found:?}");
    }
}
