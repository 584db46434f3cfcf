//! The machine with hosts that answer at once: what becomes of VMs from their creation to their end.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod checkpoints;
mod identity;
mod leaders;
mod moves;
mod older;
mod restarts;
mod silence;
mod stops;
#[path = "../support/mod.rs"]
mod support;
mod sweep;
mod unfit;

use orchestrator::decide::{
    Answer, Ask, Call, Choice, Effect, Failure, HostStanding, Input, Objects, Orchestrator,
    Reached, Refusal, Request, Settings, Stored, Ticket, Time, Write,
};
use scheduler::fragmentation::Mix;
use scheduler::policy::{Consolidation, FragBff, Spread};
use state::{Name, RunStrategy, Term, Uid, VmDesired, VmState};
use std::collections::{BTreeMap, VecDeque};
use support::{Host, desired, end_what_has_left, has_room, judged, name, secret, share_files};

struct Cluster {
    machine: Orchestrator,
    store: BTreeMap<String, Stored>,
    hosts: BTreeMap<Name, Host>,
    /// Those that do not answer.
    silent: Vec<Name>,
    /// Those that say how they are, and answer nothing else.
    stuck: Vec<Name>,
    /// A host of which the answers to orders to run a slice are lost.
    unheard: Option<Name>,
    /// Another one leads by now.
    is_deposed: bool,
    now: Time,
    answers: Vec<Result<Answer, Refusal>>,
    calls: Vec<(Name, Call)>,
    /// After so many calls of a move nobody answers any more.
    held: Option<usize>,
    made: usize,
    /// Nobody looks at all of the store after each step: long histories.
    is_unchecked: bool,
}

fn is_of_move(call: &Call) -> bool {
    matches!(
        call,
        Call::Resize { .. }
            | Call::Reserve { .. }
            | Call::Ensure { .. }
            | Call::Join { .. }
            | Call::Bring { .. }
            | Call::Where { .. }
            | Call::End { .. }
    )
}

fn settings() -> Settings {
    let policy = FragBff {
        spread: Spread::MinNodes,
        consolidation: Consolidation::MinNodes,
        mix: Mix::azure(),
    };
    Settings::new(Choice::Split(policy))
}

impl Cluster {
    fn new(hosts: &[(&str, u16)]) -> Self {
        let machine =
            Orchestrator::recover(settings(), Term(1), Time::default(), Objects::default());
        let mut it = Self {
            machine,
            store: BTreeMap::new(),
            hosts: BTreeMap::new(),
            silent: Vec::new(),
            stuck: Vec::new(),
            unheard: None,
            is_deposed: false,
            now: Time::default(),
            answers: Vec::new(),
            calls: Vec::new(),
            held: None,
            made: 0,
            is_unchecked: false,
        };
        for (host, cores) in hosts {
            it.hosts.insert(name(host), Host::named(host, *cores, 65536));
            let agent = format!("https://{host}:7000");
            it.ask(Ask::Register { name: name(host), agent }).expect("a host");
        }
        it.pass(1);
        it
    }

    fn step(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for effect in self.machine.step(self.now, input) {
                match effect {
                    Effect::Commit(writes) => self.commit(writes),
                    Effect::Call { call, host, what } => {
                        self.calls.push((host.clone(), (*what).clone()));
                        if self.stuck.contains(&host) && *what != Call::Look {
                            continue;
                        }
                        let is_held =
                            is_of_move(&what) && self.held.is_some_and(|held| self.made >= held);
                        self.made += usize::from(is_of_move(&what));
                        let result = match self.hosts.get_mut(&host) {
                            Some(it) if !self.silent.contains(&host) && !is_held => {
                                it.call(self.machine.term(), &what)
                            }
                            _ => Err(Failure::Unreachable("silent".to_owned())),
                        };
                        let is_unheard = matches!(*what, Call::Ensure { .. })
                            && self.unheard.as_ref() == Some(&host);
                        let lost = Err(Failure::Unreachable("no answer".to_owned()));
                        let result = if is_unheard { lost } else { result };
                        let result = judged(!self.is_deposed, result);
                        end_what_has_left(&mut self.hosts);
                        share_files(&mut self.hosts, &host);
                        assert!(has_room(&self.hosts), "after {what:?} on {host}");
                        inputs.push_back(Input::Answered { call, result });
                    }
                    Effect::Answer { result, .. } => self.answers.push(result),
                    Effect::StandDown => {}
                }
            }
        }
        if self.is_unchecked {
            return;
        }
        // What is in the store is what the machine has.
        let known: BTreeMap<String, Stored> =
            self.machine.objects().all().map(|one| (one.key(), one)).collect();
        assert_eq!(self.store, known);
        self.store.values().for_each(|one| drop(one.to_form().expect("a form")));
    }

    fn commit(&mut self, writes: Vec<Write>) {
        assert!(writes.len() <= 100, "{}", writes.len());
        for write in writes {
            match write {
                Write::Put(one) => drop(self.store.insert(one.key(), *one)),
                Write::Delete(key) => {
                    assert!(self.store.remove(&key).is_some(), "{key} is not there");
                }
            }
        }
    }

    fn ask_as(&mut self, request: Option<Request>, ask: Ask) -> Result<Answer, Refusal> {
        self.step(Input::Asked { ticket: Ticket(0), request, validate_only: false, ask });
        self.answers.pop().expect("an answer")
    }

    fn ask(&mut self, ask: Ask) -> Result<Answer, Refusal> {
        self.ask_as(None, ask)
    }

    fn create(&mut self, vm: &str, vcpus: u16, run: RunStrategy) -> Name {
        self.create_as(vm, desired(vcpus, u64::from(vcpus) * 1024, run))
    }

    fn create_as(&mut self, vm: &str, desired: VmDesired) -> Name {
        let (name, uid) = (name(vm), Uid::new(u128::from(vm.as_bytes()[0])));
        let (secret, desired) = (secret(&uid), Box::new(desired));
        let ask = Ask::Create { name: name.clone(), uid, secret, desired, plan: None };
        match self.ask(ask).expect("it is created") {
            Answer::Goal(goal) => goal,
            other => panic!("{other:?}"),
        }
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now = Time { ms: self.now.ms + 1000, unix: self.now.unix + 1 };
            self.step(Input::Tick);
        }
    }

    /// A host loses its power. Slices on the others miss those that were there, and end.
    fn lose_power(&mut self, host: &Name) {
        self.silent.push(host.clone());
        let dead = self.hosts.get_mut(host).expect("a host");
        dead.reboot();
        let of: Vec<_> = dead.slices.keys().map(|it| (it.uid.clone(), it.life)).collect();
        self.pass(4);
        for slices in self.hosts.values_mut().map(|host| &mut host.slices) {
            let missing = slices.iter_mut();
            let missing = missing.filter(|(it, _)| of.contains(&(it.uid.clone(), it.life)));
            missing.for_each(|(_, slice)| {
                slice.ended.get_or_insert(Some(6));
            });
        }
    }

    fn life(&self, vm: &str) -> u64 {
        self.machine.vm(&name(vm)).expect("a VM").life
    }

    fn state(&self, vm: &str) -> VmState {
        self.machine.vm(&name(vm)).expect("a VM").observed.state
    }

    fn places(&self, vm: &str) -> Vec<(String, usize)> {
        let assignment = self.machine.assignment(&name(vm));
        let parts = assignment.map(|it| it.slices.clone()).unwrap_or_default();
        parts.iter().map(|part| (part.host.to_string(), part.vcpus.len())).collect()
    }

    /// Another leader, which has the store alone.
    fn restart(&mut self) {
        let objects = Objects::new(self.store.values().cloned());
        let term = Term(self.machine.term().0 + 1);
        self.machine = Orchestrator::recover(settings(), term, self.now, objects);
        self.pass(1);
    }

    fn bootstraps(&self) -> usize {
        let slices = self.hosts.values().flat_map(|host| host.slices.values());
        slices.filter(|slice| slice.is_bootstrap && slice.ended.is_none()).count()
    }
}

#[test]
fn vm_that_fits_no_host_runs_on_two_and_is_deleted() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    let goal = cluster.create("web", 6, RunStrategy::Always);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert_eq!(cluster.places("web").iter().map(|(_, vcpus)| vcpus).sum::<usize>(), 6);
    assert_eq!(cluster.places("web").len(), 2);
    assert!(matches!(cluster.machine.reached(&goal), Some(Reached::With(_))));
    // Room first, on both; then the companion, whose address the bootstrap is told.
    let word = |call: &Call| match call {
        Call::Reserve { .. } => Some("reserve"),
        Call::Ensure { role: orchestrator::decide::Role::Companion, .. } => Some("companion"),
        Call::Ensure { .. } => Some("bootstrap"),
        Call::Ask { .. } => Some("ask"),
        _ => None,
    };
    let words: Vec<_> = cluster.calls.iter().filter_map(|(_, call)| word(call)).collect();
    assert_eq!(words, ["reserve", "reserve", "companion", "bootstrap", "ask"]);

    let deleted = cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
    let Answer::Goal(goal) = deleted else { panic!("{deleted:?}") };
    cluster.pass(3);
    assert_eq!(cluster.machine.reached(&goal), Some(Reached::Gone));
    assert_eq!(cluster.bootstraps(), 0);
    assert!(cluster.hosts.values().all(|host| host.slices.is_empty() && host.kept.is_empty()));
    assert!(
        !cluster.store.keys().any(|key| key.starts_with("secrets/")),
        "its secret is forgotten"
    );
    let free = |host: &str| cluster.machine.host(&name(host)).unwrap().free.cores;
    assert_eq!((free("a"), free("b")), (4, 4));
}

#[test]
fn start_that_fails_is_undone_and_tried_again_with_another_life() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.hosts.get_mut(&name("b")).unwrap().is_sick = true;
    cluster.create("web", 6, RunStrategy::Always);
    assert_eq!(cluster.state("web"), VmState::Waiting);
    assert!(cluster.machine.vm(&name("web")).unwrap().observed.why.contains("NO_CAPACITY"));
    assert!(cluster.hosts.values().all(|host| host.kept.is_empty()), "room is given back");
    cluster.hosts.get_mut(&name("b")).unwrap().is_sick = false;
    cluster.pass(10);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 2);
}

#[test]
fn vm_waits_for_room_and_says_why() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    cluster.create("first", 3, RunStrategy::Always);
    cluster.create("second", 3, RunStrategy::Always);
    assert_eq!(cluster.state("second"), VmState::Waiting);
    let why = cluster.machine.why(&name("second")).unwrap();
    assert_eq!((why.fit, why.rejected.len()), (0, 1), "{why:?}");
    assert!(why.why.contains("cores"), "{why:?}");
    cluster.ask(Ask::Delete { name: name("first"), etag: None }).unwrap();
    cluster.pass(3);
    assert_eq!(cluster.state("second"), VmState::Running);
}

#[test]
fn guest_that_ends_runs_again_or_not_as_is_wanted() {
    let mut cluster = Cluster::new(&[("a", 8)]);
    for (vm, run) in [("always", RunStrategy::Always), ("once", RunStrategy::Once)] {
        cluster.create(vm, 2, run);
    }
    for slice in cluster.hosts.get_mut(&name("a")).unwrap().slices.values_mut() {
        slice.ended = Some(Some(0));
    }
    cluster.pass(3);
    assert_eq!(cluster.state("always"), VmState::Running);
    assert_eq!(cluster.machine.vm(&name("always")).unwrap().life, 2);
    assert_eq!(cluster.state("once"), VmState::Stopped);
    cluster.pass(20);
    assert_eq!(cluster.state("once"), VmState::Stopped, "it has run once");
    let run = RunStrategy::Always;
    cluster.ask(Ask::Update { name: name("once"), run, etag: None }).unwrap();
    cluster.pass(2);
    assert_eq!(cluster.state("once"), VmState::Running);
    let run = RunStrategy::Halted;
    cluster.ask(Ask::Update { name: name("once"), run, etag: None }).unwrap();
    cluster.pass(2);
    assert_eq!(cluster.state("once"), VmState::Stopped);
}

#[test]
fn vm_of_one_slice_on_a_lost_host_runs_on_or_begins_again_when_its_host_says_so() {
    for has_ended in [false, true] {
        let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
        cluster.create("web", 3, RunStrategy::Always);
        let host = name(&cluster.places("web")[0].0);
        cluster.silent.push(host.clone());
        cluster.pass(60);
        assert_eq!(cluster.machine.host(&host).unwrap().standing, HostStanding::Down);
        assert_eq!(cluster.state("web"), VmState::Lost, "nobody knows whether it is over");
        assert_eq!(cluster.bootstraps(), 1);
        if has_ended {
            cluster.hosts.get_mut(&host).unwrap().reboot();
        }
        cluster.silent.clear();
        cluster.pass(10);
        assert_eq!(cluster.state("web"), VmState::Running);
        assert_eq!(cluster.life("web"), 1 + u64::from(has_ended));
        assert_eq!(cluster.bootstraps(), 1);
    }
}

/// An agent that is stopped, or cannot be reached, ends no VM.
#[test]
fn vm_of_several_slices_runs_on_while_a_host_says_nothing() {
    for silent in [&[0][..], &[1], &[0, 1]] {
        let mut cluster = Cluster::new(&[("a", 4), ("b", 4), ("c", 4)]);
        cluster.create("web", 6, RunStrategy::Always);
        let places = cluster.places("web");
        let hosts = silent.iter().map(|at| name(&places[*at].0));
        cluster.silent.extend(hosts);
        cluster.pass(120);
        let (state, is_seen) = (cluster.state("web"), silent.len() < 2);
        assert_eq!(state, if is_seen { VmState::Running } else { VmState::Lost });
        let why = cluster.machine.why(&name("web")).unwrap().why;
        assert!(why.contains("nothing is heard of"), "{why}");
        // Another leader, that has heard nobody.
        cluster.restart();
        cluster.pass(60);
        assert_eq!(cluster.state("web"), state);
        cluster.silent.clear();
        cluster.pass(2);
        assert_eq!((cluster.state("web"), cluster.life("web")), (VmState::Running, 1));
        assert_eq!(cluster.places("web"), places);
        let why = cluster.machine.why(&name("web")).unwrap().why;
        assert!(!why.contains("nothing is heard of the agent"), "{why}");
        let ended = cluster.calls.iter().find(|(_, call)| matches!(call, Call::Fence { .. }));
        assert_eq!(ended, None);
        assert_eq!(cluster.machine.operations().count(), 1, "it was started, and nothing else");
    }
}

#[test]
fn vm_whose_host_is_silent_is_deleted_only_after_a_proof() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.create("web", 3, RunStrategy::Always);
    let host = name(&cluster.places("web")[0].0);
    cluster.silent.push(host);
    cluster.pass(30);
    cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
    cluster.pass(30);
    assert!(cluster.machine.vm(&name("web")).is_some(), "it may run");
    cluster.silent.clear();
    cluster.pass(5);
    assert!(cluster.machine.vm(&name("web")).is_none());
    assert_eq!(cluster.bootstraps(), 0);
}

#[test]
fn vm_of_several_slices_goes_on_when_all_have_missed_the_one_that_was_fenced() {
    for lost in 0..2 {
        let mut cluster = Cluster::new(&[("a", 4), ("b", 4), ("c", 4)]);
        cluster.create("web", 6, RunStrategy::Always);
        let host = name(&cluster.places("web")[lost].0);
        cluster.lose_power(&host);
        // The other one says that it has ended; ten seconds after its fence what was on the lost host is over.
        cluster.pass(8);
        assert_eq!(cluster.state("web"), VmState::Lost);
        cluster.pass(12);
        assert_eq!(cluster.state("web"), VmState::Running);
        assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 2);
        assert!(cluster.places("web").iter().all(|(it, _)| *it != host.to_string()));
        // What is left there is forgotten when the host is back.
        cluster.silent.clear();
        cluster.pass(3);
        assert!(cluster.hosts[&host].slices.is_empty());
        assert_eq!(cluster.bootstraps(), 1);
    }
}

#[test]
fn operators_word_is_a_proof() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 8)]);
    cluster.create("web", 3, RunStrategy::Always);
    let (host, other) = (cluster.places("web")[0].0.clone(), "b");
    assert_eq!(host, "a", "the best fit");
    cluster.silent.push(name(&host));
    let refused = cluster.ask(Ask::RemoveHost { name: name(&host), gone: false });
    assert_eq!(refused, Err(Refusal::HostInUse { name: name(&host), count: 1 }));
    cluster.pass(20);
    assert_eq!(cluster.state("web"), VmState::Lost);
    cluster.ask(Ask::RemoveHost { name: name(&host), gone: true }).unwrap();
    cluster.pass(10);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert_eq!(cluster.places("web"), [(other.to_owned(), 3)]);
}

#[test]
fn another_leader_goes_on_and_loses_nothing() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4)]);
    cluster.create("web", 6, RunStrategy::Always);
    cluster.create("next", 2, RunStrategy::Always);
    let (before, places) = (cluster.bootstraps(), cluster.places("web"));
    cluster.restart();
    cluster.pass(5);
    assert_eq!((cluster.bootstraps(), cluster.places("web")), (before, places));
    assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 1, "it has gone on");
    let free: u32 =
        ["a", "b"].iter().map(|host| cluster.machine.host(&name(host)).unwrap().free.cores).sum();
    assert_eq!(free, 0, "the ledger knows what runs");
}

#[test]
fn request_that_is_made_again_has_one_effect() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    let (uid, other) = (Uid::new(1), Uid::new(2));
    let ask = |vm: &str, uid: &Uid| Ask::Create {
        name: name(vm),
        uid: uid.clone(),
        secret: secret(uid),
        desired: Box::new(desired(1, 1024, RunStrategy::Always)),
        plan: None,
    };
    let request = |content: &str| Some(Request { id: Uid::new(9), content: content.to_owned() });
    let first = cluster.ask_as(request("x"), ask("web", &uid));
    // The second one is made with another uid, as whoever asks again does not know the first.
    assert_eq!(cluster.ask_as(request("x"), ask("web", &other)), first);
    assert_eq!(cluster.ask_as(request("y"), ask("db", &other)), Err(Refusal::RequestReused));
    cluster.restart();
    assert_eq!(cluster.ask_as(request("x"), ask("web", &other)), first, "another leader knows it");
    assert_eq!(cluster.machine.vms().count(), 1);
    assert_eq!(cluster.ask(ask("web", &other)), Err(Refusal::VmExists(name("web"))));
}

#[test]
fn plan_is_refused_when_the_cluster_would_decide_otherwise() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 8)]);
    let wanted = desired(3, 1024, RunStrategy::Always);
    let plan = cluster.machine.plan(&name("web"), &wanted);
    assert_eq!(plan.parts.len(), 1);
    assert_eq!(plan.parts[0].0, name("a"));
    cluster.create("other", 4, RunStrategy::Always);
    let uid = Uid::new(7);
    let secret = secret(&uid);
    let create = |token: String| Ask::Create {
        name: name("web"),
        uid: uid.clone(),
        secret: secret.clone(),
        desired: Box::new(wanted.clone()),
        plan: Some(token),
    };
    assert_eq!(cluster.ask(create(plan.token)), Err(Refusal::PlanStale));
    let again = cluster.machine.plan(&name("web"), &wanted);
    assert_eq!(again.parts[0].0, name("b"));
    cluster.ask(create(again.token)).unwrap();
    assert!(cluster.machine.plan(&name("web"), &wanted).unchanged);
}

#[test]
fn cordoned_host_takes_nothing_new() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    cluster.ask(Ask::Cordon { name: name("a"), cordoned: true }).unwrap();
    cluster.create("web", 1, RunStrategy::Always);
    assert_eq!(cluster.state("web"), VmState::Waiting);
    cluster.ask(Ask::Cordon { name: name("a"), cordoned: false }).unwrap();
    cluster.pass(1);
    assert_eq!(cluster.state("web"), VmState::Running);
    let etag = Some("other".to_owned());
    let refused = cluster.ask(Ask::Delete { name: name("web"), etag });
    assert!(matches!(refused, Err(Refusal::Etag { .. })), "{refused:?}");
}
