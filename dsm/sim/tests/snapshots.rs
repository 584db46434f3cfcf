//! Snapshots that are read while guests run: each slice gives what it had, as it was.

use tessera_dsm_sim::mapping::{PlantedBug, Setup, run};

fn setup(seed: u64) -> Setup {
    Setup { snapshots: true, ..Setup::of(seed) }
}

/// 271: a page of zeros that was passed, and stored to since, was copied as if it were of the snapshot.
#[test]
fn seeds_that_failed_once_run_clean() {
    for seed in [53, 271] {
        run(setup(seed)).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn snapshots_are_what_memory_was() {
    let (mut snapshots, mut private, mut moved, mut upkeep) = (0, 0, 0, 0);
    for seed in 1..101 {
        let setup = Setup { moves: seed % 3 == 0, ..setup(seed) };
        let report = run(setup).unwrap_or_else(|failure| panic!("{failure}"));
        snapshots += report.snapshots;
        private += report.private_again + report.exclusive_grants;
        moved += report.moved_pages;
        upkeep += report.upkeep;
    }
    println!(
        "{snapshots} snapshots, {private} chunks became private, {moved} homes moved, {upkeep} times protected again"
    );
    assert!(snapshots > 500 && private > 0 && moved > 100, "{snapshots}, {private}, {moved}");
    assert!(upkeep > 0, "no slice waited for another one for long enough");
}

#[test]
fn each_planted_bug_is_found() {
    for bug in [PlantedBug::StoredUnkept, PlantedBug::TakenUnkept, PlantedBug::WrittenUnprotected] {
        let caught = (1..=200).find_map(|seed| {
            let setup = Setup { planted: Some(bug), ..setup(seed) };
            run(setup).err().map(|failure| (seed, failure))
        });
        let (seed, failure) = caught.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {seed}: {:.160}", failure.to_string());
    }
}
