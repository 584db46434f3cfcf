//! VMs are written down, and go on from that when a slice is lost.

use super::support::{Mood, POLICY, desired, name};
use super::{Ask, Call, Cluster};
use orchestrator::decide::{Restore, Target};
use state::{CheckpointPolicy, RunStrategy, Term, VmDesired, VmState};
use std::collections::BTreeSet;

fn wanted(run: RunStrategy, keep: u32) -> VmDesired {
    let checkpoint = Some(CheckpointPolicy { keep, ..POLICY });
    VmDesired { checkpoint, ..desired(2, 1024, run) }
}

fn cluster(keep: u32) -> Cluster {
    let mut cluster = Cluster::new(&[("a", 2), ("b", 2)]);
    cluster.create_as("vm", wanted(RunStrategy::Always, keep));
    assert_eq!(cluster.places("vm"), [("a".to_owned(), 2)]);
    cluster
}

fn folders(cluster: &Cluster) -> Vec<String> {
    let vm = name("vm");
    cluster.machine.checkpoints(&vm).map(|it| it.path.clone()).collect()
}

fn files(cluster: &Cluster) -> BTreeSet<String> {
    cluster.hosts[&name("a")].files.clone()
}

/// A slice of the life that runs ends, as if it were killed.
fn lose(cluster: &mut Cluster) {
    let running = cluster.hosts.values_mut().flat_map(|host| host.slices.values_mut());
    let slice = running.into_iter().find(|slice| slice.ended.is_none());
    slice.expect("a slice that runs").ended = Some(Some(6));
}

/// What each bootstrap that was asked for was to go on from.
fn restores(cluster: &Cluster) -> Vec<Option<Restore>> {
    let slices = cluster.hosts.values().flat_map(|host| &host.slices);
    let mut all: Vec<(&Target, Option<Restore>)> =
        slices.map(|(target, slice)| (target, slice.restore.clone())).collect();
    all.sort_by_key(|(target, _)| target.life);
    all.into_iter().map(|(_, restore)| restore).collect()
}

fn from(folder: &str, lazy: bool) -> Option<Restore> {
    Some(Restore { folder: folder.to_owned(), lazy })
}

#[test]
fn vm_is_written_down_every_so_often_and_the_last_ones_are_kept() {
    let mut cluster = cluster(2);
    cluster.pass(9);
    assert_eq!(folders(&cluster).len(), 0);
    cluster.pass(35);
    let kept = folders(&cluster);
    assert_eq!(kept.len(), 2);
    assert_eq!(files(&cluster), kept.iter().cloned().collect(), "nothing else is there");
    let asked = cluster.calls.iter().filter(|(_, it)| matches!(it, Call::WriteDown { .. }));
    assert_eq!(asked.count(), 4);
    assert_eq!(cluster.hosts[&name("a")].released, [1], "what is told of it is told once");
    assert_eq!(cluster.state("vm"), VmState::Running);
    // Another leader knows them, and waits as long.
    cluster.restart();
    assert_eq!(folders(&cluster), kept);
    cluster.pass(10);
    assert_eq!(folders(&cluster)[0], kept[1]);
}

#[test]
fn vm_that_lost_a_slice_goes_on_from_the_newest() {
    let mut cluster = cluster(2);
    cluster.pass(25);
    let kept = folders(&cluster);
    lose(&mut cluster);
    cluster.pass(2);
    assert_eq!(cluster.state("vm"), VmState::Running);
    let vm = cluster.machine.vm(&name("vm")).unwrap();
    assert_eq!((vm.life, vm.observed.goes_on.is_some()), (2, true));
    assert!(vm.observed.why.contains("checkpoint"), "{}", vm.observed.why);
    assert_eq!(restores(&cluster).last(), Some(&from(&kept[1], true)));
    // It is written down again, as before.
    cluster.pass(11);
    assert_eq!(folders(&cluster).len(), 2);
    assert_ne!(folders(&cluster)[1], kept[1]);
    assert_eq!(cluster.machine.vm(&name("vm")).unwrap().observed.goes_on, None);
}

#[test]
fn one_that_cannot_be_gone_on_from_is_tried_twice_and_then_the_one_before() {
    let mut cluster = cluster(2);
    cluster.pass(25);
    let kept = folders(&cluster);
    let spoil = |cluster: &mut Cluster, folder: &str| {
        let hosts = cluster.hosts.values_mut();
        hosts.for_each(|host| {
            host.spoiled.insert(folder.to_owned());
        });
    };
    spoil(&mut cluster, &kept[1]);
    lose(&mut cluster);
    // Between two tries it rests.
    let mut tried: Vec<Option<Restore>> = Vec::new();
    let note = |cluster: &mut Cluster, tried: &mut Vec<Option<Restore>>| {
        for _ in 0..40 {
            cluster.pass(1);
            let ensured = cluster.calls.drain(..).filter_map(|(_, call)| match call {
                Call::Ensure {
                    role: orchestrator::decide::Role::Bootstrap { restore, .. },
                    ..
                } => Some(restore),
                _ => None,
            });
            tried.extend(ensured);
        }
    };
    cluster.calls.clear();
    note(&mut cluster, &mut tried);
    assert_eq!(tried, [from(&kept[1], true), from(&kept[1], false), from(&kept[0], true)]);
    assert_eq!(cluster.state("vm"), VmState::Running);
    // None can be gone on from: the newest again, with longer rests, and never anew.
    folders(&cluster).iter().for_each(|folder| spoil(&mut cluster, folder));
    lose(&mut cluster);
    tried.clear();
    note(&mut cluster, &mut tried);
    assert!((3..7).contains(&tried.len()), "{tried:?}");
    assert!(tried.iter().all(Option::is_some), "{tried:?}");
    let hosts = cluster.hosts.values_mut();
    hosts.for_each(|host| host.spoiled.clear());
    cluster.pass(300);
    assert_eq!(cluster.state("vm"), VmState::Running);
    assert_eq!(cluster.machine.vm(&name("vm")).unwrap().observed.goes_on, None, "written since");
}

/// Ends all slices of the life that runs, the first with this status and the others as companions do.
fn end(cluster: &mut Cluster, status: u32) {
    for slice in cluster.hosts.values_mut().flat_map(|host| host.slices.values_mut()) {
        let own = if slice.is_bootstrap { status } else { 0 };
        slice.ended.get_or_insert(Some(own));
    }
}

#[test]
fn end_that_was_wanted_is_not_undone() {
    // Its guest shuts down, resets itself, or panics; somebody stops it at its socket.
    for status in [0, 3, 4, 8] {
        let mut cluster = cluster(1);
        cluster.pass(15);
        assert_eq!(folders(&cluster).len(), 1);
        end(&mut cluster, status);
        cluster.pass(2);
        assert_eq!(cluster.state("vm"), VmState::Running);
        assert_eq!(restores(&cluster).last(), Some(&None), "{status}");
        // What was written before is history, also when a slice is lost then. It has ended soon twice, and rests.
        lose(&mut cluster);
        cluster.pass(8);
        assert_eq!(cluster.state("vm"), VmState::Running);
        assert_eq!(restores(&cluster).last(), Some(&None), "{status}");
    }
}

#[test]
fn companion_that_ends_with_its_vm_is_not_lost() {
    for first in ["a", "b"] {
        let mut cluster = Cluster::new(&[("a", 2), ("b", 2)]);
        let checkpoint = Some(POLICY);
        let run = RunStrategy::RerunOnFailure;
        cluster.create_as("vm", VmDesired { checkpoint, ..desired(3, 1024, run) });
        cluster.pass(15);
        end(&mut cluster, 0);
        // One of them says so a while before the other.
        cluster.silent.push(name(first));
        cluster.pass(3);
        cluster.silent.clear();
        cluster.pass(3);
        assert_eq!(cluster.state("vm"), VmState::Stopped, "{first}");
    }
}

#[test]
fn vm_that_is_lost_again_and_again_rests() {
    let mut cluster = cluster(2);
    cluster.pass(25);
    let before = cluster.machine.vm(&name("vm")).unwrap().life;
    for _ in 0..60 {
        let mut running = cluster.hosts.values_mut().flat_map(|host| host.slices.values_mut());
        if let Some(slice) = running.find(|slice| slice.ended.is_none()) {
            slice.ended = Some(Some(6));
        }
        cluster.pass(1);
    }
    let lives = cluster.machine.vm(&name("vm")).unwrap().life - before;
    assert!((3..8).contains(&lives), "{lives} lives in a minute");
}

#[test]
fn move_waits_for_a_checkpoint_and_a_checkpoint_for_a_move() {
    let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
    cluster.create("other", 3, RunStrategy::Always);
    let checkpoint = Some(POLICY);
    cluster.create_as("vm", VmDesired { checkpoint, ..desired(4, 4096, RunStrategy::Always) });
    assert_eq!(cluster.places("vm").len(), 2);
    // The VM is written down and its host does not answer meanwhile.
    cluster.pass(9);
    let coordinator = name(&cluster.places("vm")[0].0);
    cluster.silent.push(coordinator);
    cluster.pass(2);
    cluster.ask(Ask::Delete { name: name("other"), etag: None }).unwrap();
    cluster.pass(2);
    cluster.silent.clear();
    cluster.pass(100);
    assert_eq!(cluster.places("vm").len(), 1, "no budget was used up");
    assert_eq!(cluster.state("vm"), VmState::Running);
}

#[test]
fn vm_that_runs_once_goes_on_if_it_can() {
    let mut cluster = Cluster::new(&[("a", 2)]);
    cluster.create_as("vm", wanted(RunStrategy::Once, 1));
    lose(&mut cluster);
    cluster.pass(2);
    assert_eq!(cluster.state("vm"), VmState::Stopped, "nothing was written of it");
    let mut cluster = Cluster::new(&[("a", 2)]);
    cluster.create_as("vm", wanted(RunStrategy::Once, 1));
    cluster.pass(12);
    lose(&mut cluster);
    cluster.pass(2);
    assert_eq!(cluster.state("vm"), VmState::Running);
}

#[test]
fn what_cannot_be_written_is_said_and_what_it_left_is_deleted_later() {
    let mut cluster = cluster(1);
    cluster.hosts.get_mut(&name("a")).unwrap().mood = Mood::CannotWrite;
    cluster.pass(11);
    assert_eq!((folders(&cluster).len(), files(&cluster).len()), (0, 1));
    let failed = cluster.machine.operations().last().unwrap();
    let why = format!("{:?}", failed.result);
    assert!(why.contains("no space is left"), "{why}");
    assert_eq!(cluster.state("vm"), VmState::Running);
    cluster.hosts.get_mut(&name("a")).unwrap().mood = Mood::Willing;
    cluster.pass(10);
    assert_eq!((folders(&cluster).len(), files(&cluster).len()), (1, 1));
}

#[test]
fn what_the_only_checkpoint_has_left_is_deleted_with_the_vm() {
    // One host whose folder is not mounted decides nothing; if all refuse, somebody has to see to it.
    for (refuse, left) in [(&[][..], 0), (&["a"], 0), (&["a", "b"], 1)] {
        let mut cluster = cluster(1);
        cluster.hosts.get_mut(&name("a")).unwrap().mood = Mood::CannotWrite;
        cluster.pass(11);
        assert_eq!((folders(&cluster).len(), files(&cluster).len()), (0, 1));
        for host in refuse {
            cluster.hosts.get_mut(&name(host)).unwrap().mood = Mood::CannotDelete;
        }
        cluster.ask(Ask::Delete { name: name("vm"), etag: None }).unwrap();
        cluster.pass(5);
        assert!(cluster.machine.vm(&name("vm")).is_none(), "{refuse:?}");
        assert_eq!(files(&cluster).len(), left, "{refuse:?}");
    }
}

/// They have the guest's memory, and one host whose folder is not mounted knows nothing of them.
#[test]
fn checkpoints_are_given_up_only_when_every_host_has_refused() {
    for is_foreign in [false, true] {
        let mut cluster = cluster(1);
        cluster.pass(11);
        assert_eq!((folders(&cluster).len(), files(&cluster).len()), (1, 1));
        let other = Term(if is_foreign { 99 } else { 0 });
        cluster.hosts.get_mut(&name("b")).unwrap().term = other;
        cluster.silent.extend((!is_foreign).then(|| name("b")));
        cluster.pass(15);
        cluster.hosts.get_mut(&name("a")).unwrap().mood = Mood::CannotDelete;
        cluster.ask(Ask::Delete { name: name("vm"), etag: None }).unwrap();
        cluster.pass(60);
        assert_eq!((folders(&cluster).len(), files(&cluster).len()), (1, 1), "{is_foreign}");
        let why = &cluster.machine.vm(&name("vm")).unwrap().observed.why;
        assert!(why.contains("waits for host b"), "{why}");
        // Another leader waits too.
        cluster.restart();
        cluster.pass(60);
        assert_eq!(folders(&cluster).len(), 1);
        cluster.silent.clear();
        cluster.hosts.get_mut(&name("b")).unwrap().term = Term(0);
        cluster.pass(5);
        assert!(cluster.machine.vm(&name("vm")).is_none());
        assert_eq!((folders(&cluster).len(), files(&cluster).len()), (0, 0), "{is_foreign}");
    }
}

#[test]
fn vm_of_a_host_that_is_gone_goes_without_a_host() {
    for is_recorded in [false, true] {
        let mut cluster = Cluster::new(&[("a", 2)]);
        cluster.create_as("vm", wanted(RunStrategy::Always, 1));
        let mood = if is_recorded { Mood::Willing } else { Mood::CannotWrite };
        cluster.hosts.get_mut(&name("a")).unwrap().mood = mood;
        cluster.pass(11);
        assert_eq!((folders(&cluster).len(), files(&cluster).len()), (is_recorded.into(), 1));
        cluster.silent.push(name("a"));
        cluster.pass(15);
        cluster.ask(Ask::Delete { name: name("vm"), etag: None }).unwrap();
        cluster.pass(5);
        cluster.ask(Ask::RemoveHost { name: name("a"), gone: true }).unwrap();
        cluster.pass(15);
        let Some(vm) = cluster.machine.vm(&name("vm")) else {
            assert!(!is_recorded, "its checkpoint is there, and is not known any more");
            continue;
        };
        assert!(is_recorded && vm.observed.why.contains("none is registered"), "{vm:?}");
        // What is recorded waits for a host.
        cluster.silent.clear();
        let agent = "https://a:7000".to_owned();
        cluster.ask(Ask::Register { name: name("a"), agent }).unwrap();
        cluster.pass(5);
        assert!(cluster.machine.vm(&name("vm")).is_none());
        assert_eq!(files(&cluster).len(), 0);
    }
}

#[test]
fn checkpoints_of_a_vm_that_is_deleted_are_deleted_some_at_a_time() {
    let mut cluster = cluster(100);
    cluster.pass(1005);
    assert!(folders(&cluster).len() > 90);
    cluster.ask(Ask::Delete { name: name("vm"), etag: None }).unwrap();
    cluster.pass(95);
    assert!(cluster.machine.vm(&name("vm")).is_none());
    assert_eq!((folders(&cluster).len(), files(&cluster).len()), (0, 0));
}

#[test]
fn surplus_is_deleted_some_at_a_time() {
    let mut cluster = cluster(1);
    cluster.hosts.get_mut(&name("a")).unwrap().mood = Mood::CannotDelete;
    cluster.pass(905);
    assert!(folders(&cluster).len() > 80);
    cluster.hosts.get_mut(&name("a")).unwrap().mood = Mood::Willing;
    cluster.pass(15);
    assert_eq!(folders(&cluster).len(), 1);
    assert_eq!(files(&cluster), folders(&cluster).into_iter().collect());
}
