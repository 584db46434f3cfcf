//! Each planted bug is found by a model, and we know by which property.

use dsm_protocol::{Access, Gfn, Message, PlantedBug};
use tessera_dsm_sim::models::{Scenario, epochs, names, ordinary, refute, replicas};

fn assert_caught(scenario: Scenario, bug: PlantedBug, property: &str) {
    let broken = refute(&format!("{bug:?}"), scenario.plant(bug));
    assert!(broken.contains(&property), "{bug:?} broke {broken:?}, not {property:?}");
}

#[test]
fn planted_drop_invalidation_is_caught() {
    let bug = PlantedBug::DropInvalidation;
    assert_caught(ordinary::one_page(3, 1), bug, names::WRITER_ALONE);
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

#[test]
fn planted_skip_confirm_is_caught() {
    let bug = PlantedBug::SkipConfirm;
    assert_caught(replicas::publish(3, false), bug, names::FITS);
}

#[test]
fn planted_early_recall_taken_is_caught() {
    let bug = PlantedBug::EarlyRecallTaken;
    assert_caught(ordinary::one_page(3, 2), bug, names::FITS);
}

#[test]
fn planted_home_copy_forgotten_is_caught() {
    let bug = PlantedBug::HomeCopyForgotten;
    assert_caught(ordinary::many_readers(2, 2), bug, names::WRITER_ALONE);
}

#[test]
fn planted_grant_early_is_caught() {
    let bug = PlantedBug::GrantEarly;
    assert_caught(ordinary::one_page(3, 1), bug, names::WRITER_ALONE);
}

#[test]
fn planted_lose_epoch_check_is_caught() {
    let bug = PlantedBug::LoseEpochCheck;
    let stale =
        Message::Data { gfn: Gfn(0), access: Access::Write, acks: 0, held_us: 0, table: None };
    assert_caught(epochs::stale_message(stale), bug, names::WRITER_ALONE);
}

#[test]
fn planted_release_without_flush_is_caught() {
    let bug = PlantedBug::ReleaseWithoutFlush;
    assert_caught(replicas::publish(2, true), bug, names::LOADS);
    assert_caught(replicas::publish_by_interrupt(2, true), bug, names::LOADS);
}

#[test]
fn planted_flush_not_acknowledged_is_caught() {
    let bug = PlantedBug::FlushNotAcknowledged;
    assert_caught(replicas::publish(3, true), bug, names::LOADS);
    assert_caught(replicas::publish_by_interrupt(2, true), bug, names::LOADS);
}

#[test]
fn planted_late_run_served_is_caught() {
    let bug = PlantedBug::LateRunServed;
    assert_caught(replicas::reuse_by_who_prefetched(true, false), bug, names::FITS);
}

#[test]
fn planted_stale_member_kept_is_caught() {
    let bug = PlantedBug::StaleMemberKept;
    assert_caught(replicas::reuse(2, true), bug, names::FREE);
}

#[test]
fn planted_clean_entry_shared_is_caught() {
    let bug = PlantedBug::CleanEntryShared;
    assert_caught(replicas::dirty(2, false, true), bug, names::DIRTY);
    assert_caught(replicas::dirty(2, true, true), bug, names::DIRTY);
}

#[test]
fn planted_merge_loses_entry_is_caught() {
    let bug = PlantedBug::MergeLosesEntry;
    assert_caught(replicas::own_entries(2), bug, names::LOADS);
}
