//! Bounded runs of the simulator of whole engines: seeds that once failed, fresh ones, and planted bugs.

use tessera_dsm_sim::mapping::{PlantedBug, Setup, run};

/// A planted bug is to be found within so many seeds.
const SEEDS: u64 = 2_000;

fn runs_clean(setup: Setup) {
    match run(setup) {
        Ok(report) => println!("seed={} {report}", setup.seed),
        Err(failure) => panic!("{failure}"),
    }
}

/// 410: a page of a chunk that came for writing and was taken before it was mapped woke nobody.
#[test]
fn seeds_that_failed_once_run_clean() {
    [410].into_iter().for_each(|seed| runs_clean(Setup::of(seed)));
}

#[test]
fn fresh_seeds_run_clean() {
    (1..201).for_each(|seed| runs_clean(Setup::of(seed)));
}

#[test]
fn fresh_seeds_run_clean_while_homes_move() {
    let (mut moved, mut pulled, mut grants) = (0, 0, 0);
    for seed in 1..101 {
        let setup = Setup { moves: true, save_restore: seed % 4 == 0, ..Setup::of(seed) };
        let report = run(setup).unwrap_or_else(|failure| panic!("{failure}"));
        (moved, pulled) = (moved + report.moved_pages, pulled + report.pulled);
        grants += report.exclusive_grants;
    }
    println!("{moved} homes moved, {pulled} pages pulled, {grants} chunks granted");
    assert!(moved > 1000 && pulled > 1000 && grants > 0, "{moved}, {pulled}, {grants}");
}

#[test]
fn fresh_seeds_run_clean_while_slices_leave() {
    let (mut left, mut alone) = (0, 0);
    for seed in 1..101 {
        let setup = Setup {
            leaves: true,
            moves: seed % 3 == 0,
            save_restore: seed % 4 == 0,
            ..Setup::of(seed)
        };
        let report = run(setup).unwrap_or_else(|failure| panic!("{failure}"));
        left += report.left;
        alone += u64::from(report.left + 1 == u64::from(report.slices));
    }
    println!("{left} slices left, {alone} times one was left");
    assert!(left > 30 && alone > 10, "{left} slices left, {alone} alone");
}

#[test]
fn fresh_seeds_run_clean_while_slices_join() {
    let (mut joined, mut left) = (0, 0);
    for seed in 1..101 {
        let setup = Setup {
            joins: true,
            leaves: seed % 2 == 0,
            moves: seed % 3 == 0,
            save_restore: seed % 4 == 0,
            ..Setup::of(seed)
        };
        let report = run(setup).unwrap_or_else(|failure| panic!("{failure}"));
        (joined, left) = (joined + report.joined, left + report.left);
    }
    println!("{joined} slices joined, {left} left");
    assert!(joined > 100 && left > 30, "{joined} slices joined, {left} left");
}

#[test]
fn slice_that_goes_on_as_if_alone_is_found() {
    let caught = (1..100).find_map(|seed| {
        let planted = Some(PlantedBug::LoneForEver);
        run(Setup { joins: true, leaves: true, planted, ..Setup::of(seed) }).err()
    });
    println!("{:.160}", caught.expect("it is found").to_string());
}

#[test]
fn run_is_a_function_of_its_seed() {
    assert_eq!(run(Setup::of(7)).unwrap(), run(Setup::of(7)).unwrap());
}

/// The seeds are enough to make chunks do all that they can.
#[test]
fn chunks_become_shared_private_again_granted_and_huge() {
    let mut seen = [false; 4];
    let found = (1..SEEDS).find(|seed| {
        let report = run(Setup::of(*seed)).unwrap();
        let now = [report.shared, report.private_again, report.exclusive_grants, report.collapsed];
        seen.iter_mut().zip(now).for_each(|(seen, now)| *seen |= now > 0);
        seen == [true; 4]
    });
    assert!(found.is_some(), "shared, private again, granted, huge: {seen:?}");
}

/// What each bug breaks is said beside it.
#[test]
fn each_planted_bug_is_found() {
    for bug in [
        PlantedBug::RunOverParts,
        PlantedBug::TakenLate,
        PlantedBug::GivenUnwatched,
        PlantedBug::StagedPagesLost,
        PlantedBug::WaiterForgotten,
        PlantedBug::NeverAnswered,
    ] {
        let caught = (1..=SEEDS).find_map(|seed| {
            let setup = Setup { planted: Some(bug), ..Setup::of(seed) };
            run(setup).err().map(|failure| (seed, failure))
        });
        let (seed, failure) = caught.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {seed}: {:.160}", failure.to_string());
    }
}

#[test]
fn engines_are_saved_and_go_on_as_new_ones() {
    let reports = (1..16).map(|seed| {
        let setup = Setup { save_restore: true, ..Setup::of(seed) };
        run(setup).unwrap_or_else(|failure| panic!("{failure}"))
    });
    let saves: u64 = reports.map(|report| report.saves).sum();
    println!("{saves} saves");
    assert!(saves >= 40, "too little was saved: {saves}");
}

#[test]
fn page_of_another_slice_that_is_left_after_a_restore_is_found() {
    let caught = (1..100).find_map(|seed| {
        let planted = Some(PlantedBug::RestoredPagesLeft);
        run(Setup { save_restore: true, planted, ..Setup::of(seed) }).err()
    });
    println!("{:.160}", caught.expect("it is found").to_string());
}

#[test]
fn run_that_is_saved_is_a_function_of_its_seed() {
    let setup = Setup { save_restore: true, ..Setup::of(7) };
    assert_eq!(run(setup).unwrap(), run(setup).unwrap());
}
