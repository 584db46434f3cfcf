//! Nodes that are brought to rest, saved, and go on as new ones: no load notices it, and forms that lack something are
//! found.

use dsm_protocol::PlantedBug;
use tessera_dsm_sim::simulator::{Failure, Report, Setup, Workload, run_saved};

fn setup(seed: u64, workload: Workload) -> Setup {
    let slices = Setup::slices_of(seed);
    Setup {
        seed,
        slices,
        steps: 120,
        workload: Some(workload),
        moves: false,
        leaves: false,
        joins: false,
        planted: None,
    }
}

fn runs_clean(setup: Setup) -> Report {
    run_saved(setup).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn loads_after_restoring_give_the_last_store() {
    for workload in Workload::ALL {
        let reports = (1..=20).map(|seed| runs_clean(setup(seed, workload)));
        let (mut saves, mut replicas) = (0, 0);
        for report in reports {
            saves += report.saves;
            replicas += report.saved_replicas;
        }
        println!("{workload}: {saves} saves, {replicas} replicas saved");
        let tables = matches!(workload, Workload::Tables | Workload::Conflicts);
        assert!(saves >= 20 && (replicas >= 20 || !tables), "too little was saved");
    }
}

#[test]
fn homes_that_have_moved_are_saved_where_they_are() {
    for workload in [Workload::Uniform, Workload::Tables] {
        let mut moves = 0;
        for seed in 1..=12 {
            let report = runs_clean(Setup { moves: true, ..setup(seed, workload) });
            moves += report.moves;
        }
        assert!(moves > 20, "{workload}: too few moves, {moves}");
    }
}

#[test]
fn slices_that_have_left_are_in_no_form() {
    for workload in [Workload::Uniform, Workload::Tables] {
        let (mut left, mut saves) = (0, 0);
        for seed in 1..=12 {
            let report = runs_clean(Setup { leaves: true, ..setup(seed, workload) });
            left += report.left;
            saves += report.saves;
        }
        assert!(left > 6 && saves > 20, "{workload}: {left} slices left, {saves} saves");
    }
}

#[test]
fn slices_that_have_joined_are_saved() {
    for workload in [Workload::Uniform, Workload::Tables] {
        let (mut joined, mut saves) = (0, 0);
        for seed in 1..=12 {
            let leaves = seed % 2 == 0;
            let report = runs_clean(Setup { joins: true, leaves, ..setup(seed, workload) });
            (joined, saves) = (joined + report.joined, saves + report.saves);
        }
        assert!(joined > 6 && saves > 20, "{workload}: {joined} slices joined, {saves} saves");
    }
}

#[test]
fn newcomer_whose_messages_are_not_counted_is_found() {
    let failures = (1..20).find_map(|seed| {
        let planted = Some(PlantedBug::NewcomerNotCounted);
        run_saved(Setup { joins: true, planted, ..setup(seed, Workload::Hot) }).err()
    });
    let failure = failures.expect("it is found").to_string();
    assert!(failure.contains("messages to"), "{failure}");
}

/// The first failure with a planted bug, and the seed of it.
fn caught(bug: PlantedBug, workload: Workload) -> Failure {
    let mut failures = (1..100).filter_map(|seed| {
        let setup = Setup { slices: 4, planted: Some(bug), ..setup(seed, workload) };
        run_saved(setup).err()
    });
    failures.next().unwrap_or_else(|| panic!("{bug:?} is not caught"))
}

#[test]
fn holder_that_a_home_forgets_is_found_before_anything_is_restored() {
    let failure = caught(PlantedBug::SavedHolderForgotten, Workload::Producer).to_string();
    assert!(failure.contains("not held as the directory") || failure.contains("do not agree"));
}

#[test]
fn twins_that_are_not_restored_are_found() {
    let failure = caught(PlantedBug::RestoredTwinForgotten, Workload::Tables);
    println!("{failure}");
}

/// A flush that is left out when nodes come to rest would lose changes of tables.
#[test]
fn node_with_changes_that_were_not_flushed_is_not_saved() {
    let mut failures = (1..100).filter_map(|seed| {
        let planted = Some(PlantedBug::ReleaseWithoutFlush);
        run_saved(Setup { slices: 4, planted, ..setup(seed, Workload::Tables) }).err()
    });
    let refused = failures.any(|failure| failure.to_string().contains("were not flushed"));
    assert!(refused, "a replica that differs from its twin is saved");
}
