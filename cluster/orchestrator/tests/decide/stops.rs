//! Lives that end while a host is silent: whose end proves that the others end too.

use super::support::name;
use super::{Ask, Call, Cluster};
use orchestrator::decide::HostStanding;
use state::{Name, RunStrategy, VmState};

/// A VM on two of three hosts; those of its slices 0 and 1.
fn split() -> (Cluster, [Name; 2]) {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4), ("c", 4)]);
    cluster.create("web", 6, RunStrategy::Always);
    let places = cluster.places("web");
    assert_eq!(places.len(), 2);
    let hosts = [0, 1].map(|slice| name(&places[slice].0));
    (cluster, hosts)
}

/// The slice of a host ends.
fn end(cluster: &mut Cluster, host: &Name, status: Option<u32>) {
    let slices = cluster.hosts.get_mut(host).unwrap().slices.values_mut();
    for slice in slices {
        slice.ended.get_or_insert(status);
    }
}

fn life(cluster: &Cluster) -> u64 {
    cluster.life("web")
}

fn is_fenced(cluster: &Cluster, host: &Name) -> bool {
    let mut calls = cluster.calls.iter();
    calls.any(|(asked, call)| asked == host && matches!(call, Call::Fence { .. }))
}

/// Somebody has a slice leave at the VM's own socket. The VM goes on without it, and misses nobody when it is fenced.
#[test]
fn slice_that_has_left_is_no_proof_that_the_other_one_stops() {
    for left in [1, 0] {
        let (mut cluster, hosts) = split();
        let (leaver, stays) = (&hosts[left], &hosts[1 - left]);
        if left == 1 {
            end(&mut cluster, leaver, Some(0));
            cluster.pass(3);
            assert_eq!(cluster.state("web"), VmState::Running, "the first slice runs");
            cluster.silent.push(stays.clone());
            cluster.pass(60);
            assert_eq!(cluster.state("web"), VmState::Lost, "who says something has left");
            assert!(!is_fenced(&cluster, leaver));
            let run = RunStrategy::Halted;
            cluster.ask(Ask::Update { name: name("web"), run, etag: None }).unwrap();
        } else {
            // Its end is taken for the VM's, so the other host is silent before.
            cluster.silent.push(stays.clone());
            cluster.pass(1);
            end(&mut cluster, leaver, Some(0));
        }
        cluster.pass(120);
        assert_eq!(cluster.machine.host(stays).unwrap().standing, HostStanding::Down);
        assert!(is_fenced(&cluster, leaver), "{left}");
        assert_eq!(cluster.state("web"), VmState::Stopping, "{left}: it may run on {stays}");
        assert_eq!(life(&cluster), 1, "{left}");
        // Its host is waited for, and says that it is over.
        cluster.silent.clear();
        cluster.pass(20);
        let ended = if left == 1 { VmState::Stopped } else { VmState::Running };
        assert_eq!((cluster.state("web"), life(&cluster)), (ended, 2), "{left}");
        assert_eq!(cluster.bootstraps(), 1 - left, "{left}");
    }
}

/// It has lost the others, as they have lost it; or nobody saw how it ended, and it ran until then.
#[test]
fn slice_that_was_lost_is_a_proof_that_the_others_stop() {
    for status in [Some(5), Some(6), Some(8), None] {
        let (mut cluster, [first, other]) = split();
        cluster.silent.push(first.clone());
        cluster.pass(3);
        end(&mut cluster, &other, status);
        cluster.pass(30);
        assert_eq!((cluster.state("web"), life(&cluster)), (VmState::Running, 2), "{status:?}");
        assert!(cluster.places("web").iter().all(|(host, _)| *host != first.to_string()));
    }
}

/// Both hosts are silent for long, and one of them comes back.
#[test]
fn slice_that_ended_in_a_silence_is_no_proof_and_one_that_runs_needs_none() {
    for (has_ended, state) in [(true, VmState::Lost), (false, VmState::Running)] {
        let (mut cluster, hosts) = split();
        cluster.silent.extend(hosts.clone());
        cluster.pass(20);
        assert_eq!(cluster.state("web"), VmState::Lost);
        let [first, other] = hosts;
        if has_ended {
            // It may have left, and the VM may have gone on for as long as nobody listened.
            end(&mut cluster, &other, None);
        }
        cluster.silent.retain(|host| *host == first);
        cluster.pass(60);
        assert_eq!(is_fenced(&cluster, &other), has_ended);
        assert_eq!((cluster.state("web"), life(&cluster)), (state, 1));
    }
}

/// Before the first slice's host was heard of since it runs. Found by the model.
#[test]
fn slice_that_leaves_at_once_is_no_loss() {
    let (mut cluster, [first, other]) = split();
    cluster.silent.push(first);
    end(&mut cluster, &other, Some(0));
    cluster.pass(60);
    assert_eq!((cluster.state("web"), life(&cluster)), (VmState::Lost, 1));
    assert!(!is_fenced(&cluster, &other));
    cluster.silent.clear();
    cluster.pass(2);
    assert_eq!((cluster.state("web"), life(&cluster)), (VmState::Running, 1));
}
