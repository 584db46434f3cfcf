//! Every order of what may happen in small clusters; each planted bug is found.

use crate::scenario::{Scenario, settings, spec};
use crate::world::names;
use scheduler::cost::Prices;
use scheduler::fragmentation::Mix;
use scheduler::policy::{Bff, Consolidation, FragBff, Lifetime, Room, Spread, When};
use scheduler::{Class, Limits, PlantedBug, Resources, Settings};

fn mix() -> Mix {
    Mix::new([1, 2, 4].map(|cores| (Resources::new(cores, cores), 1)).to_vec())
}

fn fragbff(spread: Spread, consolidation: Consolidation) -> FragBff {
    FragBff { spread, consolidation, mix: mix() }
}

/// Two hosts of three cores. Two VMs of two leave a core on each, over which a third is split.
fn scenario() -> Scenario<FragBff> {
    Scenario {
        policy: fragbff(Spread::MinNodes, Consolidation::MinNodes),
        settings: settings(),
        hosts: vec![Resources::new(3, 3); 2],
        specs: [2, 2, 2].map(|cores| spec(cores, Class::Default)).to_vec(),
        ends: 2,
        failures: 1,
        ticks: 3,
        drains: 0,
        expected: &["split", "moved", "hand-back"],
        planted: None,
        sought: None,
    }
}

#[test]
fn vms_are_split_and_come_together() {
    scenario().prove("fewest nodes");
    // A hole of three is of use, and two of two are not.
    let policy = FragBff {
        mix: Mix::new([1, 3].map(|cores| (Resources::new(cores, cores), 1)).to_vec()),
        ..fragbff(Spread::MaxNodes, Consolidation::MinFragmentation)
    };
    Scenario { policy, ..scenario() }.prove("most nodes, least fragmentation");
}

#[test]
fn vms_wait_their_turn() {
    let specs = vec![
        spec(2, Class::Shared),
        spec(3, Class::Shared),
        spec(1, Class::Default),
        spec(1, Class::Default),
    ];
    let hosts = vec![Resources::new(3, 3)];
    let queue = Scenario { specs, hosts, ticks: 4, expected: &["waits", "aged"], ..scenario() };
    queue.clone().prove("a queue");
    let strict = Settings { discipline: scheduler::Discipline::Strict, ..settings() };
    Scenario { settings: strict, ..queue.clone() }.prove("a strict queue");
    let bff = Scenario {
        policy: Bff,
        settings: queue.settings,
        hosts: queue.hosts,
        specs: queue.specs,
        ends: queue.ends,
        failures: queue.failures,
        ticks: queue.ticks,
        drains: queue.drains,
        expected: queue.expected,
        planted: None,
        sought: None,
    };
    bff.prove("a queue, best fit");
}

#[test]
fn hosts_are_drained() {
    let specs = [1, 2].map(|cores| spec(cores, Class::Default)).to_vec();
    let expected = &["moved"];
    Scenario { specs, drains: 1, ends: 1, ticks: 2, expected, ..scenario() }.prove("drained hosts");
}

fn ours() -> Scenario<Lifetime> {
    let Scenario { settings, hosts, specs, ends, failures, expected, .. } = scenario();
    let prices = Prices { risk_us: 0, disturbance_us: 0, ..Prices::default() };
    let room = Some(Room { when: When::Waited(1), ..Room::EAGER });
    let policy = Lifetime { prices, next_chance: 0, room, ..Lifetime::azure() };
    let (ticks, drains, planted, sought) = (3, 0, None, None);
    Scenario {
        policy,
        settings,
        hosts,
        specs,
        ends,
        failures,
        ticks,
        drains,
        expected,
        planted,
        sought,
    }
}

#[test]
fn our_policy_keeps_the_rules_too() {
    ours().prove("by age and stall");
}

/// A VM of one core is on each of two hosts of three, and one moves aside for a third VM that wants a whole host.
#[test]
fn others_move_aside() {
    let specs = [2, 1, 2, 3].map(|cores| spec(cores, Class::Shared)).to_vec();
    let hosts = vec![Resources::new(3, 3); 2];
    let expected = &["waits", "moved"];
    let (ends, failures) = (1, 1);
    let eager = Scenario { specs, hosts, ends, failures, expected, ..ours() };
    eager.clone().prove("others move aside");
    // As it is without being told otherwise: once nobody may pass the third one.
    let policy = Lifetime { room: Lifetime::azure().room, ..eager.policy.clone() };
    let expected = &["waits", "aged", "moved"];
    Scenario { policy, expected, ..eager }.prove("others move aside for the first");
}

#[test]
fn memory_that_is_forgotten_is_found() {
    // The cores are on one host, and the memory is on the other.
    let hosts = vec![Resources::new(3, 1), Resources::new(1, 4)];
    let specs = vec![spec(2, Class::Default)];
    let model = Scenario { hosts, specs, ticks: 0, ..scenario() };
    model.assert_caught(PlantedBug::SurplusForgotten, names::SUM);
}

#[test]
fn eviction_is_found() {
    let specs = vec![spec(3, Class::Shared), spec(3, Class::Shared)];
    let hosts = vec![Resources::new(3, 3)];
    let model = Scenario { specs, hosts, ..scenario() };
    model.assert_caught(PlantedBug::YoungestEvicted, names::KEEPS);
}

/// One VM more, which comes while the split one moves.
fn with_another() -> Scenario<FragBff> {
    let specs = [2, 2, 2, 1].map(|cores| spec(cores, Class::Default)).to_vec();
    Scenario { specs, failures: 0, ticks: 0, ends: 1, ..scenario() }
}

#[test]
fn source_that_is_released_first_is_found() {
    with_another().assert_caught(PlantedBug::SourceReleasedFirst, names::ROOM);
}

#[test]
fn destination_that_is_not_reserved_is_found() {
    let specs = [2, 2, 2, 2].map(|cores| spec(cores, Class::Default)).to_vec();
    let model = Scenario { specs, ..with_another() };
    model.assert_caught(PlantedBug::DestinationNotReserved, names::ROOM);
}

#[test]
fn reservation_that_never_expires_is_found() {
    scenario().assert_caught(PlantedBug::NeverExpires, names::EXPIRES);
}

#[test]
fn move_that_goes_on_after_its_reservation_is_found() {
    let specs = [2, 2, 2, 2].map(|cores| spec(cores, Class::Default)).to_vec();
    let model = Scenario { specs, ticks: 2, ..with_another() };
    model.assert_caught(PlantedBug::ReadyAfterExpiry, names::ROOM);
}

#[test]
fn move_that_is_given_up_after_its_flip_is_found() {
    let model = Scenario { ticks: 0, ends: 1, ..scenario() };
    model.assert_caught(PlantedBug::AbortedAfterFlip, names::BACK);
}

#[test]
fn move_that_gives_up_its_source_is_found() {
    let model = Scenario { ticks: 0, ends: 1, ..scenario() };
    model.assert_caught(PlantedBug::AbortReleasesSource, names::SUM);
}

#[test]
fn long_pause_is_found() {
    let settings = Settings { pause_max_us: 1, ..settings() };
    let model = Scenario { settings, ticks: 0, ends: 1, ..scenario() };
    model.assert_caught(PlantedBug::PauseNotBounded, names::PAUSE);
}

fn with_limits(limits: Limits) -> Scenario<FragBff> {
    let settings = Settings { limits, ..settings() };
    Scenario { settings, ticks: 1, ends: 1, drains: 2, failures: 0, ..scenario() }
}

#[test]
fn too_many_moves_of_a_host_are_found() {
    let limits = Limits { moves_per_host: 1, ..settings().limits };
    with_limits(limits).assert_caught(PlantedBug::HostBudgetIgnored, names::BUDGET);
}

#[test]
fn too_many_moves_of_a_vm_are_found() {
    let limits = Limits { moves_per_vm: 1, ..settings().limits };
    with_limits(limits).assert_caught(PlantedBug::VmBudgetIgnored, names::BUDGET);
}

/// A slice that could not leave a drained host, and is to leave it still.
#[test]
fn move_that_is_tried_at_once_is_found() {
    let model =
        Scenario { ends: 0, failures: 2, drains: 1, ticks: 2, ..with_limits(settings().limits) };
    model.assert_caught(PlantedBug::TriedAtOnce, names::RESTS);
}

#[test]
fn reservation_that_is_left_behind_is_found() {
    let model = Scenario { ticks: 0, ..scenario() };
    model.assert_caught(PlantedBug::ReservationLeftBehind, names::LEDGER);
}

#[test]
fn passing_the_oldest_is_found() {
    let specs = vec![spec(2, Class::Shared), spec(3, Class::Shared), spec(1, Class::Default)];
    let hosts = vec![Resources::new(3, 3)];
    let model = Scenario { specs, hosts, ..scenario() };
    model.assert_caught(PlantedBug::AgeIgnored, names::ORDER);
}

#[test]
fn forgotten_start_is_found() {
    scenario().assert_caught(PlantedBug::FailedStartForgotten, names::KNOWN);
}

#[test]
fn start_that_comes_too_late_is_found() {
    scenario().assert_caught(PlantedBug::StartedLate, names::KNOWN);
}

/// A slice goes from the first host to the third when the first is drained, and could go back when it is not any more.
#[test]
fn way_back_is_found() {
    let hosts = [3, 3, 1].map(|cores| Resources::new(cores, cores)).to_vec();
    let model = Scenario { hosts, ends: 1, failures: 0, ticks: 1, drains: 1, ..ours() };
    model.assert_caught(PlantedBug::MovesBack, names::RETURN);
}
