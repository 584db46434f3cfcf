//! Leaders: one that was kept from listening, one that begins, one that others know better than.

use super::*;
use orchestrator::decide::{CallId, Reply, Standings};

/// Long enough for every host to be lost.
const STALL_MS: u64 = 11_000;

impl Cluster {
    /// A commit takes long, or the leader's host stands still.
    fn stall(&mut self) {
        self.now.ms += STALL_MS;
        self.now.unix += STALL_MS / 1000;
    }

    fn assert_untouched(&self, vm: &str) {
        assert_eq!(self.state(vm), VmState::Running);
        assert_eq!(self.machine.vm(&name(vm)).unwrap().life, 1);
        assert_eq!(self.bootstraps(), 1);
        let ends = |call: &Call| matches!(call, Call::Fence { .. } | Call::Stop { .. });
        assert!(!self.calls.iter().any(|(_, call)| ends(call)), "{:?}", self.calls);
    }

    /// A tick whose calls are answered by whoever calls this.
    fn tick_alone(&mut self) -> Vec<(CallId, Name)> {
        let mut looks = Vec::new();
        for effect in self.machine.step(self.now, Input::Tick) {
            match effect {
                Effect::Commit(writes) => self.commit(writes),
                Effect::Call { call, host, what } if *what == Call::Look => {
                    looks.push((call, host));
                }
                other => panic!("{other:?}"),
            }
        }
        looks
    }

    fn answer_look(&mut self, call: CallId, host: &Name) {
        let report = self.hosts[host].report();
        self.step(Input::Answered { call, result: Ok(Reply::Report(report)) });
    }
}

#[test]
fn host_is_not_silent_while_the_leader_waits_for_its_store() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.create("web", 6, RunStrategy::Always);
    cluster.pass(3);
    // Time passes before answers.
    cluster.stall();
    cluster.step(Input::Tick);
    cluster.assert_untouched("web");
    // One host has answered, and the other one's answer waits behind it, each commit as long.
    cluster.pass(1);
    let looks = cluster.tick_alone();
    assert_eq!(looks.len(), 2);
    for (call, host) in looks {
        cluster.stall();
        cluster.answer_look(call, &host);
        cluster.assert_untouched("web");
    }
    // Users, each of whom has something written down.
    for cordoned in [true, false, true, false] {
        cluster.stall();
        cluster.ask(Ask::Cordon { name: name("a"), cordoned }).unwrap();
    }
    cluster.pass(1);
    cluster.assert_untouched("web");
    // Each tick for some time.
    for _ in 0..20 {
        cluster.stall();
        cluster.step(Input::Tick);
    }
    cluster.assert_untouched("web");
}

#[test]
fn silent_host_is_found_by_a_leader_that_was_kept_from_listening() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.create("web", 6, RunStrategy::Always);
    cluster.pass(1);
    cluster.silent.push(name("b"));
    cluster.stall();
    let standing = |cluster: &Cluster| cluster.machine.host(&name("b")).unwrap().standing;
    // A lease, and the tick that is after it.
    cluster.pass(10);
    assert_eq!(standing(&cluster), HostStanding::Up);
    cluster.pass(1);
    assert_eq!(standing(&cluster), HostStanding::Down);
    // Its other slice runs, and would have ended.
    assert_eq!(cluster.state("web"), VmState::Running);
}

#[test]
fn leader_that_begins_places_nothing_where_nothing_may_come() {
    for drains in [false, true] {
        let mut cluster = Cluster::new(&[("a", 4), ("b", 8)]);
        let ask = match drains {
            true => Ask::Drain { name: name("a") },
            false => Ask::Cordon { name: name("a"), cordoned: true },
        };
        cluster.ask(ask).unwrap();
        let objects = Objects::new(cluster.store.values().cloned());
        cluster.machine = Orchestrator::recover(settings(), Term(2), cluster.now, objects);
        // Before any tick; the best fit is the host that takes nothing.
        cluster.create("web", 3, RunStrategy::Always);
        assert_eq!(cluster.places("web"), [], "no host has said what runs there");
        cluster.pass(2);
        assert_eq!(cluster.places("web"), [("b".to_owned(), 3)]);
    }
}

#[test]
fn leader_that_begins_knows_what_runs_on_a_cordoned_host() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 8)]);
    cluster.create("web", 3, RunStrategy::Always);
    cluster.ask(Ask::Cordon { name: name("a"), cordoned: true }).unwrap();
    cluster.restart();
    assert_eq!(cluster.machine.host(&name("a")).unwrap().free.cores, 1);
    cluster.pass(5);
    cluster.assert_untouched("web");
}

#[test]
fn deposed_leader_stands_down() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    cluster.hosts.get_mut(&name("a")).unwrap().term = Term(9);
    cluster.is_deposed = true;
    cluster.create("web", 1, RunStrategy::Always);
    assert_eq!(cluster.ask(Ask::Delete { name: name("web"), etag: None }), Err(Refusal::Deposed));
    assert_eq!(cluster.bootstraps(), 0);
}

#[test]
fn host_of_another_cluster_is_left_alone_and_others_go_on() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 8)]);
    cluster.hosts.get_mut(&name("a")).unwrap().term = Term(99);
    cluster.pass(1);
    assert_eq!(cluster.machine.host(&name("a")).unwrap().standing, HostStanding::Foreign);
    assert_eq!(cluster.machine.standing().hosts, Standings { all: 2, up: 1, foreign: 1 });
    cluster.calls.clear();
    cluster.create("web", 3, RunStrategy::Always);
    cluster.pass(30);
    assert_eq!(cluster.places("web"), [("b".to_owned(), 3)]);
    cluster.assert_untouched("web");
    let asked = |(host, call): &(Name, Call)| *host == name("a") && *call != Call::Look;
    assert!(!cluster.calls.iter().any(asked), "{:?}", cluster.calls);
    // Its agent begins anew, and the host is used.
    cluster.hosts.get_mut(&name("a")).unwrap().term = Term(0);
    cluster.pass(1);
    cluster.create("next", 4, RunStrategy::Always);
    assert_eq!(cluster.places("next"), [("a".to_owned(), 4)]);
}

#[test]
fn start_on_a_host_that_comes_to_obey_another_one_is_made_elsewhere() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 8)]);
    // Since the leader has looked last.
    cluster.hosts.get_mut(&name("a")).unwrap().term = Term(99);
    cluster.create("web", 3, RunStrategy::Always);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 3)]);
    cluster.pass(10);
    assert_eq!(cluster.places("web"), [("b".to_owned(), 3)]);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert_eq!(cluster.bootstraps(), 1);
}

#[test]
fn vm_on_a_host_that_comes_to_obey_another_one_runs_on() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.create("web", 6, RunStrategy::Always);
    cluster.hosts.get_mut(&name("b")).unwrap().term = Term(99);
    cluster.pass(30);
    cluster.assert_untouched("web");
    // It is deleted where it can be, and waits for the rest as for a host that is lost.
    cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
    cluster.pass(30);
    assert!(cluster.machine.vm(&name("web")).is_none(), "its other slice was fenced long ago");
    assert!(cluster.hosts[&name("a")].slices.is_empty());
}

#[test]
fn next_leader_knows_what_vms_have_of_a_host_that_has_less_by_now() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.create("web", 7, RunStrategy::Always);
    let places = cluster.places("web");
    let host = places.iter().find(|(_, cores)| *cores == 4).unwrap().0.clone();
    let other = places.iter().find(|(_, cores)| *cores == 3).unwrap().0.clone();
    cluster.hosts.get_mut(&name(&host)).unwrap().cores = 3;
    cluster.pass(2);
    cluster.restart();
    let free =
        |cluster: &Cluster, host: &str| cluster.machine.host(&name(host)).unwrap().free.cores;
    assert_eq!((free(&cluster, &host), free(&cluster, &other)), (0, 1), "it is where it was");
    assert_eq!(cluster.state("web"), VmState::Running);
    // When nothing is there, it has what its agent says.
    cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
    cluster.pass(5);
    assert_eq!((free(&cluster, &host), free(&cluster, &other)), (3, 4));
}
