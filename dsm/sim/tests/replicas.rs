//! Every interleaving of small clusters that replicate kernel page tables.

use tessera_dsm_sim::models::{Scenario, full, prove, replicas};

/// With the table a replica already, and with the first walk to it still to come.
fn prove_both(label: &str, scenario: impl Fn(bool) -> Scenario) {
    prove(label, scenario(true));
    prove(&format!("{label}, converting"), scenario(false));
}

/// For so many slices.
fn prove_all(slices: &[u16], scenario: impl Fn(u16, bool) -> Scenario) {
    for slices in slices {
        prove_both(&format!("{slices} slices"), |converted| scenario(*slices, converted));
    }
}

/// For two slices, and for three if there is time.
fn prove_two(scenario: impl Fn(u16, bool) -> Scenario) {
    prove_all(&[2], &scenario);
    prove("3 slices", scenario(3, true));
    if full() {
        prove("3 slices, converting", scenario(3, false));
    }
}

#[test]
fn change_published_by_flag_is_seen() {
    prove_all(&[2, 3], replicas::publish);
    if full() {
        prove("4 slices, converting", replicas::publish(4, false));
    }
}

#[test]
fn change_published_by_interrupt_is_seen() {
    prove_all(&[2, 3], replicas::publish_by_interrupt);
}

#[test]
fn prefetched_table_is_given_up_like_any_other() {
    for (kind, write) in [("for reading", false), ("for writing", true)] {
        prove_both(&format!("3 slices, {kind}"), |converted| {
            replicas::reuse_of_prefetched(write, converted)
        });
    }
}

#[test]
fn prefetched_table_is_ended_by_who_asked() {
    for (kind, write) in [("for reading", false), ("for writing", true)] {
        prove(&format!("3 slices, {kind}"), replicas::reuse_by_who_prefetched(write, false));
        let label = format!("3 slices, {kind}, and again");
        prove(&label, replicas::reuse_by_who_prefetched(write, true));
    }
}

#[test]
fn change_published_through_a_third_slice_is_seen() {
    prove("3 slices", replicas::chain());
}

#[test]
fn tables_under_a_lock_are_one_memory() {
    prove_two(replicas::under_lock);
}

#[test]
fn entries_of_different_slices_merge() {
    prove("2 slices", replicas::own_entries(2));
    prove("3 slices", replicas::own_entries(3));
}

#[test]
fn table_page_reused_as_data_is_coherent() {
    prove_all(&[2, 3], replicas::reuse);
    prove("3 slices, from the roots", replicas::reuse_from_roots(1));
}

#[test]
fn table_in_conflict_reused_as_data_is_coherent() {
    prove("3 slices, home 0", replicas::reuse_in_conflict(0, true));
    prove("3 slices, home 2", replicas::reuse_in_conflict(2, true));
    if full() {
        prove("3 slices, home 2, converting", replicas::reuse_in_conflict(2, false));
    }
}

#[test]
fn conflict_ends_the_replica_and_all_agree() {
    prove_two(replicas::conflict);
}

#[test]
fn change_that_meets_the_end_of_its_table_is_seen() {
    for home in 0..2 {
        prove(&format!("3 slices, home {home}"), replicas::leave_with_changes(home, true));
    }
    if full() {
        prove("3 slices, home 1, converting", replicas::leave_with_changes(1, false));
    }
}

#[test]
fn table_that_leaves_and_comes_back_is_current() {
    prove_two(replicas::twice);
}

#[test]
fn page_written_through_a_replica_is_dirty() {
    for (before, start) in [(false, "new"), (true, "made clean")] {
        for slices in [2, 3] {
            prove_both(&format!("{slices} slices, {start}"), |converted| {
                replicas::dirty(slices, before, converted)
            });
        }
    }
}

#[test]
fn root_no_longer_used_becomes_data() {
    prove("2 slices", replicas::idle_root(2));
    prove("3 slices", replicas::idle_root(3));
}
