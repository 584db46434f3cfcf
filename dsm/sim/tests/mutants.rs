//! Each planted bug is found by a model, and we know by which property.

use dsm_protocol::{Access, Gfn, Message, PlantedBug};
use tessera_dsm_sim::models::{
    Scenario, epochs, home_moves, joining, leaving, names, ordinary, refute, refute_within,
    replicas,
};

#[test]
fn each_planted_bug_is_caught() {
    let stale =
        Message::Data { gfn: Gfn(0), access: Access::Write, acks: 0, held_us: 0, table: None };
    let caught: [(PlantedBug, &str, Vec<Scenario>); 12] = [
        (PlantedBug::DropInvalidation, names::WRITER_ALONE, vec![ordinary::one_page(3, 1)]),
        (PlantedBug::SkipConfirm, names::FITS, vec![replicas::publish(3, false)]),
        (PlantedBug::EarlyRecallTaken, names::FITS, vec![ordinary::one_page(3, 2)]),
        (PlantedBug::HomeCopyForgotten, names::WRITER_ALONE, vec![ordinary::many_readers(2, 2)]),
        (PlantedBug::GrantEarly, names::WRITER_ALONE, vec![ordinary::one_page(3, 1)]),
        (PlantedBug::LoseEpochCheck, names::WRITER_ALONE, vec![epochs::stale_message(stale)]),
        (
            PlantedBug::ReleaseWithoutFlush,
            names::LOADS,
            vec![replicas::publish(2, true), replicas::publish_by_interrupt(2, true)],
        ),
        (
            PlantedBug::FlushNotAcknowledged,
            names::LOADS,
            vec![replicas::publish(3, true), replicas::publish_by_interrupt(2, true)],
        ),
        (
            PlantedBug::LateRunServed,
            names::FITS,
            vec![replicas::reuse_by_who_prefetched(true, false)],
        ),
        (PlantedBug::StaleMemberKept, names::FREE, vec![replicas::reuse(2, true)]),
        (
            PlantedBug::CleanEntryShared,
            names::DIRTY,
            vec![replicas::dirty(2, false, true), replicas::dirty(2, true, true)],
        ),
        (PlantedBug::MergeLosesEntry, names::LOADS, vec![replicas::own_entries(2)]),
    ];
    for (bug, property, scenarios) in caught {
        for scenario in scenarios {
            let broken = refute(&format!("{bug:?}"), scenario.plant(bug));
            assert!(broken.contains(&property), "{bug:?} broke {broken:?}, not {property:?}");
        }
    }
}

/// It takes three conversions until it shows itself.
#[test]
fn replica_before_its_parent_is_caught() {
    let scenario = replicas::reuse_from_roots(1).plant(PlantedBug::ReplicaBeforeParent);
    let broken = refute_within("ReplicaBeforeParent", scenario, 600_000);
    assert_eq!(broken, [names::FREE]);
}

#[test]
fn each_planted_bug_of_homes_that_move_is_caught() {
    let moves = || home_moves::one_page(3, 1, &[1]);
    let tables = home_moves::with_tables("a conversion", replicas::publish(2, false), 1);
    let caught: [(PlantedBug, &str, Scenario); 6] = [
        (PlantedBug::HomeLeavesWhileBusy, names::FITS, tables),
        (PlantedBug::HomeAnswersNotAwaited, names::FITS, moves()),
        (PlantedBug::HomeQueueForgotten, names::AWAKE, moves()),
        (PlantedBug::HomeLateRunsForgotten, names::FITS, home_moves::late_runs(true)),
        (PlantedBug::HomeAskedWhileAway, names::FITS, moves()),
        (PlantedBug::HomeRequestsDropped, names::AWAKE, moves()),
    ];
    for (bug, property, scenario) in caught {
        let broken = refute(&format!("{bug:?}"), scenario.plant(bug));
        assert!(broken.contains(&property), "{bug:?} broke {broken:?}, not {property:?}");
    }
}

#[test]
fn each_planted_bug_of_slices_that_leave_is_caught() {
    let caught: [(PlantedBug, &str, Scenario); 5] = [
        (PlantedBug::LeaverTakesPages, names::FITS, leaving::one_page(2, 1, true)),
        (PlantedBug::LeaverStaysHolder, names::AWAKE, leaving::one_page(3, 1, true)),
        (PlantedBug::LeaverStaysMember, names::AWAKE, leaving::change_of_leaver(3, true)),
        (PlantedBug::LoneReplicasKept, names::AWAKE, leaving::change_of_leaver(2, true)),
        (PlantedBug::ReleaseWithoutFlush, names::LOADS, leaving::change_of_leaver(2, true)),
    ];
    for (bug, property, scenario) in caught {
        let broken = refute(&format!("{bug:?}"), scenario.plant(bug));
        assert!(broken.contains(&property), "{bug:?} broke {broken:?}, not {property:?}");
    }
}

#[test]
fn each_planted_bug_of_slices_that_join_is_caught() {
    let caught: [(PlantedBug, &str, Scenario); 5] = [
        (PlantedBug::ReplicasKeptFromNewcomer, names::AWAKE, joining::change(3, true)),
        (PlantedBug::EndedReplicaUsed, names::FITS, joining::change(3, true)),
        (PlantedBug::NewcomerNoMember, names::FITS, joining::one_page(2, 1)),
        (PlantedBug::NewcomerOwnEpoch, names::AWAKE, joining::one_page(2, 1)),
        (PlantedBug::ReleaseWithoutFlush, names::LOADS, joining::change_before(true)),
    ];
    for (bug, property, scenario) in caught {
        let broken = refute(&format!("{bug:?}"), scenario.plant(bug));
        assert!(broken.contains(&property), "{bug:?} broke {broken:?}, not {property:?}");
    }
}

/// Messages that must keep their order: models see it when they do not.
#[test]
fn recalls_and_grants_out_of_order_are_caught() {
    let of = |message: &Message| match message {
        Message::Fetch { .. } => 1,
        Message::Invalidate { .. } => 2,
        Message::Grant { .. } => 3,
        _ => 0,
    };
    let broken = refute("recalls out of order", ordinary::one_page(3, 2).stray(of));
    assert!(!broken.is_empty());
}

#[test]
fn moves_of_homes_out_of_order_are_caught() {
    let of = |message: &Message| match message {
        Message::HomeLeaves { .. } => 1,
        Message::HomeMoved { .. } => 2,
        Message::HomeAwaited { .. } => 3,
        _ => 0,
    };
    let broken = refute("homes out of order", home_moves::one_page(3, 1, &[1]).stray(of));
    assert!(!broken.is_empty());
}

#[test]
fn ends_of_conversions_out_of_order_are_caught() {
    let of = |message: &Message| match message {
        Message::Leave { .. } => 1,
        Message::Demoted { .. } => 2,
        Message::Get { .. } => 3,
        Message::Demote { .. } | Message::Confirm { .. } => 4,
        Message::Offer { .. } => 5,
        Message::Go { .. } => 6,
        _ => 0,
    };
    let broken = refute("conversions out of order", replicas::twice(3, false).stray(of));
    assert!(!broken.is_empty());
}
