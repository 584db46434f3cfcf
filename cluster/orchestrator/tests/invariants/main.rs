//! What must always hold of an orchestrator, its store and its hosts, in every order of calls, with calls that fail or are answered
//! to nobody, hosts that cannot be reached, and the death of the leader between any two effects. Each planted bug is found by what it
//! breaks.
//!
//! ```text
//!   users ──> machine ──> effects, one after another ──> store
//!                ^              X killed between any two └──> calls, delivered in any order, by a dead leader's too
//!                └── another one begins from the store, with a higher term
//! ```

#[path = "../support/mod.rs"]
mod support;
mod world;

use model_check::{prove, refute};
use orchestrator::decide::PlantedBug;
use world::{Kind, World};

/// One after another: each has its memory.
#[test]
fn rules_hold_in_every_order() {
    let moves = [
        Kind::MoveRefused,
        Kind::MovedPartly,
        Kind::Moves,
        Kind::JoinRefused,
        Kind::JoinCutOff,
        Kind::Joins,
    ];
    for kind in [
        Kind::Twice,
        Kind::SickHost,
        Kind::TwoHosts,
        Kind::OneHost,
        Kind::WrittenDown,
        Kind::LostHost,
        Kind::Stalls,
        Kind::Foreign,
        Kind::OlderStore,
        Kind::NewJournal,
        Kind::GoesAway,
    ]
    .into_iter()
    .chain(moves)
    {
        prove(&format!("orchestrator: {kind:?}"), World::new(kind, None));
    }
}

/// Where each bug is found, and what it breaks.
const BUGS: [(PlantedBug, Kind, &str); 26] = [
    (PlantedBug::CalledFirst, Kind::Twice, world::CONFIRMED),
    (PlantedBug::FenceSkipped, Kind::OneHost, world::OVER),
    (PlantedBug::SilenceIsProof, Kind::OneHost, world::ONE_BOOTSTRAP),
    (PlantedBug::RoomKept, Kind::SickHost, world::ROOM),
    (PlantedBug::UndoForgotten, Kind::OneHost, world::OVER),
    (PlantedBug::TwoBootstraps, Kind::TwoHosts, world::ONE_BOOTSTRAP),
    (PlantedBug::RequestForgotten, Kind::Twice, world::SAME_ANSWER),
    (PlantedBug::OperationForgotten, Kind::OneHost, world::GOES_ON),
    (PlantedBug::DeposedGoesOn, Kind::OneHost, world::DEPOSED),
    (PlantedBug::MovedUnreserved, Kind::Moves, world::TAKEN),
    (PlantedBug::MoveKeepsRoom, Kind::MoveRefused, world::SETTLED),
    (PlantedBug::PartlyUndone, Kind::MovedPartly, world::TAKEN),
    (PlantedBug::FormerForgotten, Kind::Moves, world::OVER),
    (PlantedBug::SweptAgain, Kind::JoinCutOff, world::ASKED_ONCE),
    (PlantedBug::StrayLeft, Kind::JoinCutOff, world::NO_STRAY),
    (PlantedBug::LeaseIgnored, Kind::LostHost, world::OVER),
    (PlantedBug::LeaverIsMissed, Kind::LostHost, world::OVER),
    (PlantedBug::SilenceIsLoss, Kind::LostHost, world::OUTLIVES),
    (PlantedBug::DeafnessCounted, Kind::Stalls, world::STAYS),
    (PlantedBug::ForeignAsked, Kind::Foreign, world::LEFT_ALONE),
    (PlantedBug::OlderStoreBelieved, Kind::OlderStore, world::ONE_BOOTSTRAP),
    (PlantedBug::NewJournalBelieved, Kind::NewJournal, world::OVER),
    (PlantedBug::RecordedFirst, Kind::WrittenDown, world::WRITTEN),
    (PlantedBug::NewestDiscarded, Kind::WrittenDown, world::WRITTEN),
    (PlantedBug::RefusalDecides, Kind::GoesAway, world::LEFT_NOTHING),
    (PlantedBug::LossBeginsAnew, Kind::WrittenDown, world::GOES_ON_FROM),
];

#[test]
fn planted_bugs_are_found() {
    for (bug, kind, rule) in BUGS {
        let broken = refute(&format!("{bug:?}"), World::new(kind, Some(bug)), 150_000);
        assert!(broken.contains(&rule), "{bug:?} breaks {broken:?}, and not {rule:?}");
    }
}
