//! Every interleaving of small clusters that a slice joins.

use tessera_dsm_sim::models::{full, joining, prove};

#[test]
fn page_stays_coherent_when_a_slice_joins() {
    prove("1 slice, 2 faults each", joining::one_page(2, 2));
    prove("2 slices, 1 fault each", joining::one_page(3, 1));
    prove("1 slice, 1 fault each, hold window", joining::one_page(2, 1).hold(1));
}

#[test]
fn page_stays_coherent_when_its_home_moves_and_a_slice_joins() {
    prove("1 slice, 2 faults each, to the newcomer", joining::one_page_moves(2, 2, 1));
    prove("2 slices, 1 fault each", joining::one_page_moves(3, 1, 1));
    prove("2 slices, 1 fault each, to the newcomer", joining::one_page_moves(3, 1, 2));
    prove("1 slice, 2 faults each", joining::joins_and_leaves(2, 2));
}

#[test]
fn reader_joins_many() {
    prove("writer, reader and a home", joining::many_readers(2, 1));
}

#[test]
fn changes_of_tables_reach_a_slice_that_joins() {
    for converted in [true, false] {
        let label = |slices| {
            let rest = if converted { "" } else { ", converting" };
            format!("{slices}{rest}")
        };
        prove(&label("1 slice"), joining::change(2, converted));
        prove(&label("1 slice"), joining::reuse(2, converted));
        prove(&label("2 slices"), joining::change_before(converted));
    }
    prove("2 slices", joining::change(3, true));
    prove("2 slices", joining::reuse(3, true));
}

#[test]
fn tables_end_as_replicas_when_a_slice_joins() {
    prove("2 slices", joining::conflict(true));
    prove("2 slices, for reading", joining::run_ahead(false, false));
    prove("2 slices, for writing", joining::run_ahead(true, false));
    if full() {
        prove("2 slices, for reading, all walk", joining::run_ahead(false, true));
        prove("2 slices, for writing, all walk", joining::run_ahead(true, true));
    }
}
