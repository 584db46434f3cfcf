//! Hosts that say nothing while something is done to their VMs. Found by a reader who tried to break it.

use super::support::{POLICY, desired, name};
use super::{Ask, Call, Cluster, HostStanding, Name, Objects, Orchestrator, Settings, settings};
use state::{RunStrategy, Term, Verb, VmDesired, VmState};

/// A VM on a (3) and b (1), which comes together on a when another one ends. It has not ended yet.
fn beside_another() -> Cluster {
    let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
    cluster.create("other", 3, RunStrategy::Always);
    cluster.create("web", 4, RunStrategy::Always);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 3), ("b".to_owned(), 1)]);
    cluster
}

fn verb(cluster: &Cluster) -> Option<Verb> {
    cluster.machine.going_on(&name("web")).map(|operation| operation.verb)
}

fn delete(cluster: &mut Cluster, vm: &str) {
    cluster.ask(Ask::Delete { name: name(vm), etag: None }).unwrap();
}

#[test]
fn vm_of_which_nothing_is_heard_in_a_move_is_shown_lost_and_moves_on_later() {
    let mut cluster = beside_another();
    delete(&mut cluster, "other");
    (cluster.held, cluster.made) = (Some(1), 0);
    cluster.pass(1);
    assert_eq!(verb(&cluster), Some(Verb::Move));
    cluster.silent.extend(["a", "b"].map(name));
    cluster.held = None;
    cluster.pass(60);
    assert_eq!((cluster.state("web"), verb(&cluster)), (VmState::Lost, Some(Verb::Move)));
    cluster.silent.clear();
    cluster.pass(10);
    assert_eq!((cluster.state("web"), cluster.life("web")), (VmState::Running, 1));
    assert_eq!(cluster.places("web"), [("a".to_owned(), 4)]);
}

#[test]
fn vm_that_is_gone_in_a_move_begins_again_by_the_operators_word() {
    let mut cluster = Cluster::new(&[("a", 6), ("b", 2), ("c", 8)]);
    cluster.ask(Ask::Cordon { name: name("c"), cordoned: true }).unwrap();
    cluster.create("other", 3, RunStrategy::Always);
    cluster.create("web", 4, RunStrategy::Always);
    delete(&mut cluster, "other");
    (cluster.held, cluster.made) = (Some(1), 0);
    cluster.pass(1);
    cluster.silent.extend(["a", "b"].map(name));
    cluster.pass(30);
    cluster.ask(Ask::Cordon { name: name("c"), cordoned: false }).unwrap();
    for host in ["a", "b"] {
        cluster.ask(Ask::RemoveHost { name: name(host), gone: true }).unwrap();
    }
    cluster.held = None;
    cluster.pass(30);
    assert_eq!((cluster.state("web"), cluster.life("web")), (VmState::Running, 2));
    assert_eq!(cluster.places("web"), [("c".to_owned(), 4)]);
}

#[test]
fn nothing_moves_away_from_a_host_that_is_silent_or_is_asked_of_one() {
    for silent in ["b", "a"] {
        let mut cluster = beside_another();
        cluster.silent.push(name(silent));
        cluster.pass(15);
        delete(&mut cluster, "other");
        cluster.pass(120);
        assert_eq!(verb(&cluster), None, "{silent}");
        assert_eq!(cluster.state("web"), VmState::Running);
        // Nothing of the number of its moves was used up.
        cluster.silent.clear();
        cluster.pass(130);
        assert_eq!(cluster.places("web"), [("a".to_owned(), 4)], "{silent}");
    }
}

#[test]
fn moves_that_wait_for_a_silent_host_take_no_place_of_others() {
    let mut cluster = Cluster::new(&[("a", 6), ("b", 2), ("c", 6), ("d", 2)]);
    cluster.machine = {
        let objects = Objects::new(cluster.store.values().cloned());
        let one = Settings { moves_max: 1, ..settings() };
        Orchestrator::recover(one, Term(2), cluster.now, objects)
    };
    cluster.pass(1);
    let takes = |cluster: &mut Cluster, host: &str, cordoned: bool| {
        cluster.ask(Ask::Cordon { name: name(host), cordoned: !cordoned }).unwrap();
    };
    ["c", "d"].iter().for_each(|host| takes(&mut cluster, host, false));
    ["one", "web"].iter().for_each(|vm| drop(cluster.create(vm, 4, RunStrategy::Always)));
    ["c", "d"].iter().for_each(|host| takes(&mut cluster, host, true));
    ["two", "next"].iter().for_each(|vm| drop(cluster.create(vm, 4, RunStrategy::Always)));
    let split = |cluster: &Cluster, vm| cluster.places(vm).len();
    assert_eq!((split(&cluster, "web"), split(&cluster, "next")), (2, 2));
    // The first move stands still with its source.
    let source = name(&cluster.places("web")[1].0);
    delete(&mut cluster, "one");
    (cluster.held, cluster.made) = (Some(1), 0);
    cluster.pass(1);
    assert_eq!(verb(&cluster), Some(Verb::Move));
    cluster.silent.push(source);
    cluster.held = None;
    cluster.pass(15);
    delete(&mut cluster, "two");
    cluster.pass(30);
    assert_eq!(split(&cluster, "next"), 1);
}

/// The host that has refused it may be the only one left when its turn comes.
#[test]
fn vm_that_waits_goes_where_it_could_not_start_if_nothing_else_is_left() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.hosts.get_mut(&name("a")).unwrap().is_sick = true;
    // Nobody passes it once it has waited for so long.
    cluster.create("big", 30, RunStrategy::Always);
    cluster.pass(597);
    cluster.create("web", 3, RunStrategy::Always);
    cluster.pass(10);
    cluster.ask(Ask::Cordon { name: name("b"), cordoned: true }).unwrap();
    cluster.hosts.get_mut(&name("a")).unwrap().is_sick = false;
    delete(&mut cluster, "big");
    cluster.pass(30);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 3)]);
}

/// What it avoided at its start is no matter of its moves.
#[test]
fn slice_goes_to_a_host_that_could_not_start_it() {
    let mut cluster = Cluster::new(&[("a", 2), ("b", 2), ("c", 2)]);
    cluster.hosts.get_mut(&name("a")).unwrap().is_sick = true;
    cluster.create("web", 3, RunStrategy::Always);
    cluster.pass(10);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert!(cluster.places("web").iter().all(|(host, _)| host != "a"));
    cluster.hosts.get_mut(&name("a")).unwrap().is_sick = false;
    let leaves = cluster.places("web")[1].0.clone();
    cluster.ask(Ask::Drain { name: name(&leaves) }).unwrap();
    cluster.pass(60);
    assert_eq!(cluster.places("web")[1].0, "a");
}

/// Of a slice whose host has forgotten it (another journal, say) nobody else would say that it is gone.
#[test]
fn slice_that_is_not_there_any_more_is_found_after_a_leader_that_died_in_a_checkpoint() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    let wanted = desired(1, 1024, RunStrategy::Always);
    cluster.create_as("web", VmDesired { checkpoint: Some(POLICY), ..wanted });
    cluster.stuck.push(name("a"));
    cluster.pass(11);
    assert_eq!(verb(&cluster), Some(Verb::Checkpoint));
    cluster.stuck.clear();
    cluster.restart();
    cluster.pass(3);
    assert_eq!(verb(&cluster), None);
    cluster.hosts.get_mut(&name("a")).unwrap().slices.clear();
    cluster.pass(30);
    assert_eq!((cluster.state("web"), cluster.life("web")), (VmState::Running, 2));
}

#[test]
fn guest_has_its_time_to_shut_down_although_the_agent_of_its_first_host_comes_late() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.create("web", 6, RunStrategy::Always);
    let first = name(&cluster.places("web")[0].0);
    cluster.silent.push(first.clone());
    cluster.pass(15);
    let run = RunStrategy::Halted;
    cluster.ask(Ask::Update { name: name("web"), run, etag: None }).unwrap();
    cluster.pass(30);
    let is_end = |(_, call): &&(Name, Call)| matches!(call, Call::Fence { .. });
    assert_eq!(cluster.calls.iter().find(is_end), None);
    cluster.silent.clear();
    cluster.pass(5);
    let mut calls = cluster.calls.iter();
    assert!(calls.any(|(host, call)| *host == first && matches!(call, Call::Stop { .. })));
    assert_eq!(cluster.state("web"), VmState::Stopped);
}

#[test]
fn host_that_was_registered_late_has_its_time_too() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    cluster.pass(60);
    cluster.silent.push(name("b"));
    let agent = "https://b:7000".to_owned();
    cluster.ask(Ask::Register { name: name("b"), agent }).unwrap();
    let standing = |cluster: &Cluster| cluster.machine.host(&name("b")).unwrap().standing;
    assert_eq!(standing(&cluster), HostStanding::Unknown);
    cluster.pass(5);
    assert_eq!(standing(&cluster), HostStanding::Unknown);
    cluster.pass(10);
    assert_eq!(standing(&cluster), HostStanding::Down);
}

#[test]
fn vm_that_was_halted_remembers_when_it_ran() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    cluster.create("web", 1, RunStrategy::RerunOnFailure);
    let ask = |cluster: &mut Cluster, run| {
        cluster.ask(Ask::Update { name: name("web"), run, etag: None }).unwrap();
        cluster.pass(3);
        cluster.machine.vm(&name("web")).unwrap().former_run
    };
    let former = Some(RunStrategy::RerunOnFailure);
    assert_eq!(ask(&mut cluster, RunStrategy::Halted), former);
    assert_eq!(ask(&mut cluster, RunStrategy::Halted), former, "the same again");
    assert_eq!(ask(&mut cluster, RunStrategy::Always), None);
}

/// Nobody waits for an agent that is not there yet, or for an address that is wrong.
#[test]
fn host_that_was_registered_before_its_agent_is_there_holds_nobody_up() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    cluster.pass(30);
    cluster.silent.push(name("b"));
    let agent = "https://b:7000".to_owned();
    cluster.ask(Ask::Register { name: name("b"), agent }).unwrap();
    cluster.pass(1);
    cluster.create("web", 1, RunStrategy::Always);
    cluster.pass(2);
    assert_eq!(cluster.state("web"), VmState::Running);
    delete(&mut cluster, "web");
    cluster.pass(2);
    assert!(cluster.machine.vm(&name("web")).is_none());
}

/// It is known that nothing is left which could shut down.
#[test]
fn vm_whose_first_host_is_dead_is_deleted_without_a_wait_for_its_guest() {
    for is_removed in [false, true] {
        let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
        cluster.create("web", 6, RunStrategy::Always);
        let first = name(&cluster.places("web")[0].0);
        if is_removed {
            cluster.silent.push(first.clone());
            cluster.pass(15);
            cluster.ask(Ask::RemoveHost { name: first.clone(), gone: true }).unwrap();
        } else {
            cluster.lose_power(&first);
        }
        delete(&mut cluster, "web");
        cluster.pass(30);
        assert!(cluster.machine.vm(&name("web")).is_none(), "{is_removed}");
    }
}
