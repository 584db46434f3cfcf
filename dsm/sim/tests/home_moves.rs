//! Every interleaving of small clusters in which homes of pages move.

use tessera_dsm_sim::models::{full, home_moves, prove, replicas};

#[test]
fn page_stays_coherent_while_its_home_moves() {
    prove("2 slices, 2 faults each", home_moves::one_page(2, 2, &[1]));
    prove("2 slices, 2 faults each, and back", home_moves::one_page(2, 2, &[1, 0]));
    prove("3 slices, 1 fault each", home_moves::one_page(3, 1, &[1]));
    if full() {
        prove("3 slices, 1 fault each, onwards", home_moves::one_page(3, 1, &[1, 2]));
        prove("3 slices, 2 faults each", home_moves::one_page(3, 2, &[1]));
    }
}

#[test]
fn home_without_vcpus_moves_to_another_without() {
    prove("2 slices and two homes, 1 fault each", home_moves::between_homes(2, 1));
    if full() {
        prove("2 slices and two homes, 2 faults each", home_moves::between_homes(2, 2));
    }
}

#[test]
fn home_moves_to_where_its_neighbours_are() {
    prove("2 slices, 1 fault each", home_moves::beside_another(1));
}

#[test]
fn run_that_meets_a_moving_home_is_answered_once() {
    prove("2 slices and a home, to a slice", home_moves::run_ahead(false, 1, 2));
    if full() {
        prove("2 slices and a home, to who asked", home_moves::run_ahead(true, 1, 1));
    }
}

#[test]
fn hold_windows_and_pins_outlast_a_move() {
    let window = home_moves::one_page(2, 2, &[1]).hold(1);
    prove("2 slices, 2 faults each, hold window", window);
    if full() {
        prove("3 slices, 1 fault each", home_moves::pins(1));
        prove("writer, 2 readers and a home", home_moves::many_readers(2, 1));
    }
}

#[test]
fn tables_become_replicas_and_end_while_their_home_moves() {
    for converted in [true, false] {
        let label = if converted { "2 slices" } else { "2 slices, converting" };
        let of = |name, scenario| prove(label, home_moves::with_tables(name, scenario, 1));
        of("a change is published while a home moves", replicas::publish(2, converted));
        of("a table becomes data while its home moves", replicas::reuse(2, converted));
        of("a table leaves and comes back while its home moves", replicas::twice(2, converted));
        of("two slices change one entry while its home moves", replicas::conflict(2, converted));
        of("tables under a lock while their home moves", replicas::under_lock(2, converted));
    }
    let of = |name, scenario| prove("3 slices", home_moves::with_tables(name, scenario, 1));
    of("a change is published while a home moves", replicas::publish(3, false));
    of("a table becomes data while its home moves", replicas::reuse(3, true));
    if full() {
        of("a table leaves and comes back while its home moves", replicas::twice(3, true));
        let ahead = replicas::reuse_of_prefetched(true, true);
        of("a table asked for ahead and a home that moves", ahead);
        let ending = replicas::leave_with_changes(0, true);
        of("a change meets the end of its table while its home moves", ending);
    }
}

#[test]
fn late_run_reaches_the_next_home_and_is_skipped_there() {
    prove("3 slices, for writing", home_moves::late_runs(true));
    if full() {
        prove("3 slices, for reading", home_moves::late_runs(false));
    }
}
