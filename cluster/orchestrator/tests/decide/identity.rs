//! One agent is one host, by whatever names it is registered.

use super::support::name;
use super::{Ask, Call, Cluster, Host, HostStanding, Refusal};
use state::{RunStrategy, VmState};
use std::collections::BTreeMap;

/// Another name for the agent of a.
fn doubled() -> Cluster {
    let mut cluster = Cluster::new(&[("a", 4)]);
    cluster.hosts.insert(name("b"), Host::named("a", 4, 65536));
    let agent = "unix:/run/tessera/agent.sock".to_owned();
    cluster.ask(Ask::Register { name: name("b"), agent }).unwrap();
    cluster.pass(2);
    cluster
}

fn warning(cluster: &Cluster, host: &str) -> Option<String> {
    cluster.machine.host(&name(host)).unwrap().warning
}

#[test]
fn agent_at_one_address_is_registered_once() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    let agent = "https://a:7000".to_owned();
    let refused = cluster.ask(Ask::Register { name: name("b"), agent: agent.clone() });
    assert_eq!(refused, Err(Refusal::AgentKnown { host: name("a"), agent: agent.clone() }));
    cluster.ask(Ask::Register { name: name("a"), agent }).unwrap();
}

#[test]
fn agent_with_two_names_is_one_host() {
    let mut cluster = doubled();
    let own = "its agent is that of host a: it is not used";
    for restarted in [false, true] {
        assert_eq!(cluster.machine.counts().total.cores, 4, "{restarted}");
        assert_eq!(warning(&cluster, "b").as_deref(), Some(own));
        assert_eq!(warning(&cluster, "a"), None);
        cluster.restart();
        cluster.pass(2);
    }
    cluster.create("web", 3, RunStrategy::Always);
    cluster.create("next", 3, RunStrategy::Always);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 3)]);
    assert_eq!(cluster.places("next"), [], "it has no room");
    // Its host starts anew, and either name may be heard first.
    for host in ["b", "a"] {
        cluster.hosts.get_mut(&name(host)).unwrap().reboot();
        cluster.pass(20);
        let standing = |host: &str| cluster.machine.host(&name(host)).unwrap().standing;
        assert_eq!((standing("a"), standing("b")), (HostStanding::Up, HostStanding::Down));
    }
    // The first name is given up: the second one is the host's.
    for vm in ["web", "next"] {
        cluster.ask(Ask::Delete { name: name(vm), etag: None }).unwrap();
    }
    cluster.pass(3);
    cluster.ask(Ask::RemoveHost { name: name("a"), gone: false }).unwrap();
    cluster.pass(2);
    assert_eq!(cluster.machine.host(&name("b")).unwrap().standing, HostStanding::Up);
    assert_eq!(warning(&cluster, "b").as_deref(), Some("its agent calls itself a"));
    assert_eq!(cluster.machine.host(&name("b")).unwrap().total.cores, 4);
}

/// It would confirm a fence of slices that run on: their VM would begin once more, beside them.
#[test]
fn agent_that_knows_nothing_of_what_runs_is_not_heard_until_its_host_starts_anew() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.create("web", 3, RunStrategy::Always);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 3)]);
    let before = cluster.hosts[&name("a")].clone();
    let renewed = Host { slices: BTreeMap::new(), agent: "another".to_owned(), ..before.clone() };
    cluster.hosts.insert(name("a"), renewed.clone());
    for is_restarted in [false, true] {
        cluster.pass(60);
        let life = cluster.machine.vm(&name("web")).unwrap().life;
        assert_eq!(life, 1, "{is_restarted}: slices of before may run on");
        let standing = cluster.machine.host(&name("a")).unwrap().standing;
        assert_eq!(standing, HostStanding::Down);
        assert!(warning(&cluster, "a").unwrap().contains("new journal"));
        cluster.restart();
    }
    // Nor is it believed of what its user wants: it would say that nothing runs.
    cluster.ask(Ask::Update { name: name("web"), run: RunStrategy::Halted, etag: None }).unwrap();
    cluster.pass(200);
    assert_eq!(cluster.state("web"), VmState::Stopping);
    let asked = cluster.calls.iter().filter(|(_, call)| matches!(call, Call::Fence { .. }));
    assert_eq!(asked.count(), 0);
    cluster.ask(Ask::Update { name: name("web"), run: RunStrategy::Always, etag: None }).unwrap();
    // The journal is back: the end that was begun goes on, and the VM begins once more.
    cluster.hosts.insert(name("a"), before);
    cluster.pass(200);
    assert_eq!((warning(&cluster, "a"), cluster.state("web")), (None, VmState::Running));
    assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 2);
    // Nothing of before runs on a host that has started anew.
    cluster.hosts.insert(name("a"), renewed);
    cluster.hosts.get_mut(&name("a")).unwrap().reboot();
    cluster.pass(20);
    assert_eq!(warning(&cluster, "a"), None);
    assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 3);
    assert_eq!(cluster.state("web"), VmState::Running);
}

#[test]
fn agent_of_a_host_that_was_drained_may_have_a_new_journal() {
    let mut cluster = Cluster::new(&[("a", 2), ("b", 2)]);
    cluster.create("web", 3, RunStrategy::Always);
    assert_eq!(cluster.places("web")[1].0, "b");
    cluster.hosts.insert(name("c"), Host::named("c", 2, 65536));
    let agent = "https://c:7000".to_owned();
    cluster.ask(Ask::Register { name: name("c"), agent }).unwrap();
    cluster.pass(1);
    cluster.ask(Ask::Drain { name: name("b") }).unwrap();
    cluster.pass(5);
    assert_eq!(cluster.places("web")[1].0, "c");
    cluster.hosts.get_mut(&name("b")).unwrap().agent = "another".to_owned();
    cluster.hosts.get_mut(&name("b")).unwrap().slices.clear();
    cluster.restart();
    cluster.pass(15);
    assert_eq!(cluster.machine.host(&name("b")).unwrap().standing, HostStanding::Up);
    assert_eq!(cluster.state("web"), VmState::Running);
}
