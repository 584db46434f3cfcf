//! What is left on hosts of what is over.

use super::support::{Running, name};
use super::{Call, Cluster};
use orchestrator::decide::Target;
use state::{Name, RunStrategy, Uid};

/// A slice of an earlier life of `web` runs on b.
fn stale(cluster: &mut Cluster, slice: u16) -> Target {
    let uid: Uid = cluster.machine.vm(&name("web")).unwrap().uid.clone();
    let target = Target { uid, slice, life: 0 };
    let running =
        Running { is_bootstrap: false, ended: None, cores: 1, guest: None, restore: None };
    cluster.hosts.get_mut(&name("b")).unwrap().slices.insert(target.clone(), running);
    target
}

fn asked_of_b(cluster: &Cluster) -> usize {
    let of_b = |(host, call): &&(Name, Call)| *host == name("b") && *call != Call::Look;
    cluster.calls.iter().filter(of_b).count()
}

#[test]
fn host_is_asked_once_at_a_time_to_end_what_is_over() {
    let mut cluster = Cluster::new(&[("a", 2), ("b", 4)]);
    cluster.create("web", 2, RunStrategy::Always);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 2)]);
    stale(&mut cluster, 5);
    cluster.stuck.push(name("b"));
    cluster.pass(20);
    assert_eq!(asked_of_b(&cluster), 1, "{:?}", cluster.calls);
    // Of many no more than some are asked for at a time.
    (6..100).for_each(|slice| drop(stale(&mut cluster, slice)));
    cluster.pass(20);
    assert!(asked_of_b(&cluster) <= 8, "{}", asked_of_b(&cluster));
}

#[test]
fn what_is_over_is_ended_and_forgotten_by_one_call() {
    let mut cluster = Cluster::new(&[("a", 2), ("b", 4)]);
    cluster.create("web", 2, RunStrategy::Always);
    let target = stale(&mut cluster, 5);
    cluster.pass(2);
    assert!(cluster.hosts[&name("b")].slices.is_empty());
    let calls: Vec<_> = cluster.calls.iter().filter(|(host, _)| *host == name("b")).collect();
    let removed = Call::Remove { targets: vec![target] };
    assert_eq!(calls.iter().filter(|(_, call)| *call != Call::Look).count(), 1);
    assert!(calls.iter().any(|(_, call)| *call == removed));
}
