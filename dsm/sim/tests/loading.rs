//! Memory whose contents come while the guests run: no slice ever sees anything else, and no store is lost.

use tessera_dsm_sim::mapping::{PlantedBug, Setup, run};

fn setup(seed: u64) -> Setup {
    Setup { loads: true, ..Setup::of(seed) }
}

#[test]
fn memory_that_comes_later_is_what_it_was() {
    let (mut loaded, mut on_demand, mut saves, mut snapshots, mut moved, mut left) =
        (0, 0, 0, 0, 0, 0);
    for seed in 1..101 {
        let which = seed % 5;
        let setup = Setup {
            snapshots: which == 1,
            moves: which == 2,
            leaves: which == 3,
            save_restore: which == 4,
            ..setup(seed)
        };
        let report = run(setup).unwrap_or_else(|failure| panic!("{failure}"));
        loaded += report.loaded;
        on_demand += report.on_demand;
        saves += report.saves;
        snapshots += report.snapshots;
        moved += report.moved_pages;
        left += report.left;
    }
    println!(
        "{loaded} loaded, {on_demand} on demand; {saves} saves, {snapshots} snapshots, {moved} moved, {left} left"
    );
    assert!(on_demand > 50 && loaded - on_demand > 15, "{on_demand} of {loaded}");
    assert!(saves > 0 && snapshots > 0 && moved > 0 && left > 0);
}

#[test]
fn each_planted_bug_is_found() {
    for bug in [PlantedBug::GivenUnloaded, PlantedBug::LoadedOverStores] {
        let caught = (1..=200).find_map(|seed| {
            let setup = Setup { planted: Some(bug), ..setup(seed) };
            run(setup).err().map(|failure| (seed, failure))
        });
        let (seed, failure) = caught.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {seed}: {:.160}", failure.to_string());
    }
}
