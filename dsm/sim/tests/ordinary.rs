//! Every interleaving of small clusters with ordinary pages.

use tessera_dsm_sim::models::{epochs, full, lost, ordinary, prove};

#[test]
fn one_page_on_two_slices_stays_coherent() {
    prove("2 slices, 3 faults each", ordinary::one_page(2, 3));
}

#[test]
fn one_page_on_three_slices_stays_coherent() {
    prove("3 slices, 2 faults each", ordinary::one_page(3, 2));
    if full() {
        prove("3 slices, 3 faults each", ordinary::one_page(3, 3));
    }
}

#[test]
fn one_page_on_four_slices_stays_coherent() {
    prove("4 slices, 1 fault each", ordinary::one_page(4, 1));
}

#[test]
fn two_pages_with_two_homes_stay_coherent() {
    prove("2 slices, 2 faults each", ordinary::two_pages(2));
}

#[test]
fn home_without_vcpus_keeps_pages_coherent() {
    prove("2 slices and a home, 2 faults each", ordinary::memory_only_home(2, 2));
    if full() {
        prove("4 slices and a home, 1 fault each", ordinary::memory_only_home(4, 1));
        prove("3 slices and a home, 2 faults each", ordinary::memory_only_home(3, 2));
    }
}

#[test]
fn home_takes_a_copy_of_a_page_that_many_read() {
    prove("writer, 3 readers and a home", ordinary::many_readers(3, 1));
    prove("writer, 2 readers and a home, twice", ordinary::many_readers(2, 2));
    if full() {
        prove("writer, 3 readers and a home, twice", ordinary::many_readers(3, 2));
    }
}

#[test]
fn two_vcpus_of_a_slice_wake_and_stay_coherent() {
    prove("2 slices of 2 vCPUs, 1 fault each", ordinary::two_vcpus_each(1));
    if full() {
        prove("2 slices of 2 vCPUs, 2 faults each", ordinary::two_vcpus_each(2));
    }
}

#[test]
fn hold_window_defers_and_ends() {
    prove("2 slices, 3 faults each, hold window", ordinary::one_page(2, 3).hold(1));
    prove("3 slices, 1 fault each, hold window", ordinary::one_page(3, 1).hold(1));
    prove("2 slices, 3 faults each, busy window", ordinary::one_page(2, 3).hold(1).busy());
    // Long enough to be told in microseconds: windows grow.
    let contended = ordinary::one_page(2, 3).hold(1_000_000).busy();
    prove("2 slices, 3 faults each, contended window", contended);
    if full() {
        prove("2 slices, 5 faults each, hold window", ordinary::one_page(2, 5).hold(1));
    }
}

#[test]
fn prefetched_pages_stay_coherent() {
    prove("2 slices and a home, 1 fault", ordinary::run_ahead(false, 1));
    prove("2 slices and a home, 1 fault, for writing", ordinary::run_ahead(true, 1));
    if full() {
        prove("2 slices and a home, 2 faults", ordinary::run_ahead(false, 2));
    }
}

#[test]
fn upgrades_asked_for_ahead_stay_coherent() {
    prove("2 slices and a home, 1 fault", ordinary::upgrade_ahead(1));
    prove("2 slices and a home, 1 fault, hold window", ordinary::upgrade_ahead(1).hold(1));
    if full() {
        prove("2 slices and a home, 2 faults", ordinary::upgrade_ahead(2));
    }
}

#[test]
fn pinned_page_stays_and_is_given_up_later() {
    prove("3 slices, 1 fault each", ordinary::pins(1));
}

#[test]
fn message_of_another_epoch_is_refused() {
    for message in epochs::harmful() {
        let label = format!("3 slices, {}", epochs::kind(&message));
        prove(&label, epochs::stale_message(message));
    }
}

#[test]
fn lost_slice_leaves_no_stale_copy() {
    prove("2 slices, 2 faults each", lost::any_slice(2, 2));
    prove("3 slices, 1 fault each", lost::any_slice(3, 1));
    if full() {
        prove("3 slices, 2 faults each", lost::any_slice(3, 2));
    }
}
