//! What must always hold of an agent and the processes of its host, in every order of requests, ends of processes, and deaths of the agent
//! itself between any two effects: proved by a model. Each planted bug is found by what it breaks.
//!
//! ```text
//!   requests of two terms, each perhaps twice ──> agent ──> effects, one after another ──> journal, processes
//!                                                   ^              X killed between any two
//!                                                   └── begins again from the journal, and from the processes that are there
//! ```

mod world;

use agent::decide::PlantedBug;
use model_check::{prove, refute};
use world::World;

#[test]
fn rules_hold_in_every_order() {
    prove("agent", World::new(None));
}

/// What each bug breaks.
const BUGS: [(PlantedBug, &str); 15] = [
    (PlantedBug::TermIgnored, world::DEPOSED),
    (PlantedBug::TermNotRecorded, world::DEPOSED),
    (PlantedBug::StartedTwice, world::ONE_PROCESS),
    (PlantedBug::StartedFirst, world::KNOWN),
    (PlantedBug::FenceIgnored, world::FENCED),
    (PlantedBug::FenceNotRecorded, world::FENCED),
    (PlantedBug::FencedEarly, world::FENCED),
    (PlantedBug::FenceMissesStarts, world::FENCED),
    (PlantedBug::LivesOverlap, world::ONE_LIFE),
    (PlantedBug::ReservationIgnored, world::RESERVED),
    (PlantedBug::NeverExpires, world::EXPIRES),
    (PlantedBug::StartForgotten, world::UNASKED),
    (PlantedBug::FenceNotResumed, world::FENCED_ENDS),
    (PlantedBug::RunningRemoved, world::KNOWN),
    (PlantedBug::ResizeUnchecked, world::CAPACITY),
];

#[test]
fn planted_bugs_are_found() {
    for (bug, rule) in BUGS {
        let broken = refute(&format!("{bug:?}"), World::new(Some(bug)), 400_000);
        assert!(broken.contains(&rule), "{bug:?} breaks {broken:?}, and not {rule:?}");
    }
}
