//! Somebody goes back to a copy of the store, from before a VM began, began anew, or moved.

use super::support::name;
use super::{Ask, Call, Cluster, Stored};
use state::{RunStrategy, VmState};
use std::collections::BTreeMap;

type Copy = BTreeMap<String, Stored>;

impl Cluster {
    fn cordon(&mut self, host: &str, cordoned: bool) {
        self.ask(Ask::Cordon { name: name(host), cordoned }).unwrap();
    }

    fn go_back_to(&mut self, copy: Copy) {
        self.store = copy;
        self.calls.clear();
        self.restart();
    }

    /// It runs once, in a life that the store does not know.
    fn assert_left_alone(&mut self, life: u64) {
        self.pass(60);
        assert_eq!((self.state("web"), self.bootstraps()), (VmState::Waiting, 1));
        let slices = self.hosts.values().flat_map(|host| &host.slices);
        let mut lives = slices.filter(|(_, it)| it.ended.is_none()).map(|(target, _)| target.life);
        assert!(lives.all(|it| it == life));
        let why = self.machine.why(&name("web")).unwrap().why;
        assert!(why.contains("older copy"), "{why}");
    }

    fn end_all(&mut self, status: Option<u32>) {
        for slice in self.hosts.values_mut().flat_map(|host| host.slices.values_mut()) {
            slice.ended.get_or_insert(status);
        }
    }
}

#[test]
fn vm_that_began_after_the_copy_does_not_begin_twice() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.cordon("a", true);
    cluster.cordon("b", true);
    cluster.create("web", 3, RunStrategy::Always);
    assert_eq!(cluster.state("web"), VmState::Waiting);
    let copy = cluster.store.clone();
    cluster.cordon("a", false);
    cluster.pass(2);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 3)]);
    cluster.go_back_to(copy);
    cluster.cordon("b", false);
    cluster.assert_left_alone(1);
    // Its guest ends: the next life is none that a host has known.
    cluster.end_all(Some(0));
    cluster.pass(3);
    assert_eq!((cluster.state("web"), cluster.life("web")), (VmState::Running, 2));
    assert_eq!((cluster.places("web"), cluster.bootstraps()), (vec![("b".to_owned(), 3)], 1));
}

#[test]
fn vm_that_began_anew_elsewhere_after_the_copy_runs_on() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.cordon("b", true);
    cluster.create("web", 3, RunStrategy::Always);
    let copy = cluster.store.clone();
    cluster.cordon("a", true);
    cluster.cordon("b", false);
    for life in 2..5 {
        cluster.end_all(Some(0));
        cluster.pass(100);
        assert_eq!((cluster.state("web"), cluster.life("web")), (VmState::Running, life));
        assert_eq!(cluster.places("web"), [("b".to_owned(), 3)]);
    }
    cluster.go_back_to(copy);
    cluster.assert_left_alone(4);
    assert_eq!(cluster.life("web"), 2, "the store has tried nothing since");
    cluster.end_all(Some(0));
    cluster.pass(3);
    assert_eq!((cluster.state("web"), cluster.life("web")), (VmState::Running, 5));
}

/// It runs on where it is. Once it begins anew, its slices are over wherever they are.
#[test]
fn vm_that_has_moved_after_the_copy_is_fenced_where_it_went() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.create("web", 6, RunStrategy::Always);
    let mut copy = cluster.store.clone();
    let agent = "https://c:7000".to_owned();
    cluster.hosts.insert(name("c"), super::Host::named("c", 4, 65536));
    cluster.ask(Ask::Register { name: name("c"), agent }).unwrap();
    cluster.pass(1);
    let left = name(&cluster.places("web")[1].0);
    cluster.ask(Ask::Drain { name: left.clone() }).unwrap();
    cluster.pass(20);
    assert!(cluster.places("web").iter().any(|(host, _)| host == "c"));
    cluster.cordon(left.as_str(), false);
    let is_host = |(key, _): &(&String, &Stored)| key.starts_with("hosts/");
    copy.extend(cluster.store.iter().filter(is_host).map(|(key, it)| (key.clone(), it.clone())));
    cluster.go_back_to(copy);
    cluster.pass(30);
    assert_eq!(
        (cluster.state("web"), cluster.life("web"), cluster.bootstraps()),
        (VmState::Running, 1, 1)
    );
    let first = name(&cluster.places("web")[0].0);
    let slices = cluster.hosts.get_mut(&first).unwrap().slices.values_mut();
    slices.for_each(|slice| slice.ended = Some(Some(6)));
    for _ in 0..30 {
        cluster.pass(1);
        assert!(cluster.bootstraps() <= 1);
    }
    let is_fence = |(host, call): &&(_, Call)| {
        *host == name("c") && matches!(call, Call::Fence { life: 1, .. })
    };
    assert_eq!(cluster.calls.iter().filter(is_fence).count(), 1);
    assert_eq!((cluster.state("web"), cluster.life("web")), (VmState::Running, 2));
}

#[test]
fn nothing_begins_before_all_hosts_have_said_what_they_have() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.cordon("a", true);
    cluster.create("web", 3, RunStrategy::Always);
    cluster.end_all(Some(0));
    cluster.ask(Ask::Update { name: name("web"), run: RunStrategy::Halted, etag: None }).unwrap();
    cluster.pass(3);
    cluster.cordon("a", false);
    let run = RunStrategy::Always;
    cluster.silent.push(name("b"));
    cluster.restart();
    cluster.ask(Ask::Update { name: name("web"), run, etag: None }).unwrap();
    cluster.pass(5);
    assert_eq!(cluster.state("web"), VmState::Waiting);
    assert!(cluster.machine.why(&name("web")).unwrap().why.contains("host b has not said"));
    // It is lost, and is waited for no more.
    cluster.pass(10);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 3)]);
}
