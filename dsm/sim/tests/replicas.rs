//! Every interleaving of small clusters that replicate kernel page tables.

use tessera_dsm_sim::models::{full, prove, replicas};

#[test]
fn change_published_by_flag_is_seen() {
    for slices in [2, 3] {
        prove(&format!("{slices} slices"), replicas::publish(slices, true));
        prove(&format!("{slices} slices, converting"), replicas::publish(slices, false));
    }
    if full() {
        prove("4 slices, converting", replicas::publish(4, false));
    }
}

#[test]
fn change_published_by_interrupt_is_seen() {
    for slices in [2, 3] {
        prove(&format!("{slices} slices"), replicas::publish_by_interrupt(slices, true));
        prove(
            &format!("{slices} slices, converting"),
            replicas::publish_by_interrupt(slices, false),
        );
    }
}

#[test]
fn prefetched_table_is_given_up_like_any_other() {
    for (kind, write) in [("for reading", false), ("for writing", true)] {
        prove(&format!("3 slices, {kind}"), replicas::reuse_of_prefetched(write, true));
        prove(
            &format!("3 slices, {kind}, converting"),
            replicas::reuse_of_prefetched(write, false),
        );
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
    prove("2 slices", replicas::under_lock(2, true));
    prove("2 slices, converting", replicas::under_lock(2, false));
    prove("3 slices", replicas::under_lock(3, true));
    if full() {
        prove("3 slices, converting", replicas::under_lock(3, false));
    }
}

#[test]
fn entries_of_different_slices_merge() {
    prove("2 slices", replicas::own_entries(2));
    prove("3 slices", replicas::own_entries(3));
}

#[test]
fn table_page_reused_as_data_is_coherent() {
    for slices in [2, 3] {
        prove(&format!("{slices} slices"), replicas::reuse(slices, true));
        prove(&format!("{slices} slices, converting"), replicas::reuse(slices, false));
    }
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
    prove("2 slices", replicas::conflict(2, true));
    prove("2 slices, converting", replicas::conflict(2, false));
    prove("3 slices", replicas::conflict(3, true));
    if full() {
        prove("3 slices, converting", replicas::conflict(3, false));
    }
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
    prove("2 slices", replicas::twice(2, true));
    prove("2 slices, converting", replicas::twice(2, false));
    prove("3 slices", replicas::twice(3, true));
    if full() {
        prove("3 slices, converting", replicas::twice(3, false));
    }
}

#[test]
fn page_written_through_a_replica_is_dirty() {
    for (before, start) in [(false, "new"), (true, "made clean")] {
        for slices in [2, 3] {
            let name = |then| format!("{slices} slices, {start}{then}");
            prove(&name(""), replicas::dirty(slices, before, true));
            prove(&name(", converting"), replicas::dirty(slices, before, false));
        }
    }
}

#[test]
fn root_no_longer_used_becomes_data() {
    prove("2 slices", replicas::idle_root(2));
    prove("3 slices", replicas::idle_root(3));
}
