//! Every interleaving of small clusters that a slice leaves.

use tessera_dsm_sim::models::{full, leaving, prove};

#[test]
fn page_stays_coherent_when_its_home_leaves() {
    prove("2 slices, 2 faults each, the home", leaving::one_page(2, 2, false));
    prove("2 slices, 2 faults each", leaving::one_page(2, 2, true));
    prove("3 slices, 1 fault each", leaving::one_page(3, 1, true));
    if full() {
        prove("3 slices, 1 fault each, the home", leaving::one_page(3, 1, false));
    }
}

#[test]
fn page_stays_coherent_when_a_slice_leaves_within_a_hold_window() {
    prove("2 slices, 1 fault each, hold window", leaving::one_page(2, 1, false).hold(1));
}

#[test]
fn reader_among_many_leaves() {
    if full() {
        prove("writer, 2 readers and a home", leaving::many_readers(2, 1));
    }
}

#[test]
fn changes_of_tables_outlive_the_slice_that_made_them() {
    for converted in [true, false] {
        let label = if converted { "2 slices" } else { "2 slices, converting" };
        prove(label, leaving::change_of_leaver(2, converted));
        prove(label, leaving::reuse(2, converted));
    }
    prove("3 slices", leaving::change_of_leaver(3, true));
    if full() {
        prove("3 slices", leaving::reuse(3, true));
    }
}
