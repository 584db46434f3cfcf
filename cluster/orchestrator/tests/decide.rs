//! The machine with hosts that answer at once: what becomes of VMs from their creation to their end.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use orchestrator::decide::{
    Answer, Ask, Call, Choice, Effect, Failure, HostStanding, Input, Objects, Orchestrator,
    Reached, Refusal, Request, Settings, Stored, Ticket, Time, Write,
};
use scheduler::fragmentation::Mix;
use scheduler::policy::{Consolidation, FragBff, Spread};
use state::{Name, RunStrategy, Term, Uid, Verb, VmState};
use std::collections::{BTreeMap, VecDeque};
use support::{Host, Mood, desired, end_what_has_left, has_room, name, secret};

struct Cluster {
    machine: Orchestrator,
    store: BTreeMap<String, Stored>,
    hosts: BTreeMap<Name, Host>,
    /// Those that do not answer.
    silent: Vec<Name>,
    now: Time,
    answers: Vec<Result<Answer, Refusal>>,
    calls: Vec<(Name, Call)>,
    /// After so many calls of a move nobody answers any more.
    held: Option<usize>,
    made: usize,
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
            now: Time::default(),
            answers: Vec::new(),
            calls: Vec::new(),
            held: None,
            made: 0,
        };
        for (host, cores) in hosts {
            it.hosts.insert(name(host), Host::new(*cores, 65536));
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
                        let is_held =
                            is_of_move(&what) && self.held.is_some_and(|held| self.made >= held);
                        self.made += usize::from(is_of_move(&what));
                        let result = match self.hosts.get_mut(&host) {
                            Some(it) if !self.silent.contains(&host) && !is_held => {
                                it.call(self.machine.term(), &what)
                            }
                            _ => Err(Failure::Unreachable("silent".to_owned())),
                        };
                        end_what_has_left(&mut self.hosts);
                        assert!(has_room(&self.hosts), "after {what:?} on {host}");
                        inputs.push_back(Input::Answered { call, result });
                    }
                    Effect::Answer { result, .. } => self.answers.push(result),
                    Effect::StandDown => {}
                }
            }
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
        let (name, uid) = (name(vm), Uid::new(u128::from(vm.as_bytes()[0])));
        let secret = secret(&uid);
        let desired = Box::new(desired(vcpus, u64::from(vcpus) * 1024, run));
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
fn vm_of_a_lost_host_begins_again_only_after_a_proof() {
    let mut cluster = Cluster::new(&[("a", 4), ("b", 4), ("c", 8)]);
    // On c there is no room for it yet.
    cluster.create("big", 8, RunStrategy::Always);
    assert_eq!(cluster.places("big"), [("c".to_owned(), 8)]);
    cluster.create("web", 6, RunStrategy::Always);
    cluster.silent.push(name("b"));
    cluster.pass(30);
    assert_eq!(cluster.machine.host(&name("b")).unwrap().standing, HostStanding::Down);
    assert_eq!(cluster.state("web"), VmState::Lost, "nobody has proven that it is over on b");
    assert_eq!(cluster.bootstraps(), 2 - usize::from(cluster.places("web")[0].0 == "a"));
    // It comes back, and its slices are fenced before anything new runs.
    cluster.silent.clear();
    cluster.pass(10);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 2);
    assert_eq!(cluster.bootstraps(), 2);
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

#[test]
fn deposed_leader_stands_down() {
    let mut cluster = Cluster::new(&[("a", 4)]);
    cluster.hosts.get_mut(&name("a")).unwrap().term = Term(9);
    cluster.create("web", 1, RunStrategy::Always);
    assert_eq!(cluster.ask(Ask::Delete { name: name("web"), etag: None }), Err(Refusal::Deposed));
    assert_eq!(cluster.bootstraps(), 0);
}

/// A VM of 4 vCPUs on a (3) and b (1), beside another one that had kept it from a alone and ends now.
fn split(cluster: &mut Cluster) {
    cluster.create("other", 3, RunStrategy::Always);
    cluster.create("web", 4, RunStrategy::Always);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 3), ("b".to_owned(), 1)]);
    cluster.ask(Ask::Delete { name: name("other"), etag: None }).unwrap();
}

fn cores(cluster: &Cluster, host: &str) -> u16 {
    let slices = cluster.hosts[&name(host)].slices.values();
    slices.filter(|slice| slice.ended.is_none()).map(|slice| slice.cores).sum()
}

fn free(cluster: &Cluster, host: &str) -> u32 {
    cluster.machine.host(&name(host)).unwrap().free.cores
}

fn why(cluster: &Cluster, vm: &str) -> String {
    cluster.machine.why(&name(vm)).unwrap().why
}

#[test]
fn slices_come_together_when_room_is_free() {
    let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
    split(&mut cluster);
    cluster.pass(4);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 4)]);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 1, "it has run on");
    assert!(why(&cluster, "web").contains("fewer hosts"), "{}", why(&cluster, "web"));
    assert_eq!((cores(&cluster, "a"), cores(&cluster, "b")), (4, 0));
    assert_eq!((free(&cluster, "a"), free(&cluster, "b")), (2, 2));
    // Room first, then the VM, and what the slice had is free when its process has ended.
    let word = |call: &Call| match call {
        Call::Resize { .. } => Some("resize"),
        Call::Bring { slice: 1, to: 0, .. } => Some("bring"),
        Call::Where { .. } => Some("where"),
        Call::End { .. } => Some("end"),
        _ => None,
    };
    let words: Vec<_> = cluster.calls.iter().filter_map(|(_, call)| word(call)).collect();
    assert_eq!(words, ["resize", "bring", "where", "end"]);
    cluster.restart();
    cluster.pass(3);
    assert_eq!(cluster.state("web"), VmState::Running, "another leader knows where it is");
    assert_eq!((free(&cluster, "a"), free(&cluster, "b")), (2, 2));

    // The host that it has left is lost. Nothing of it runs there, so another life does not wait for it.
    cluster.silent.push(name("b"));
    cluster.pass(15);
    for slice in cluster.hosts.get_mut(&name("a")).unwrap().slices.values_mut() {
        slice.ended.get_or_insert(Some(1));
    }
    cluster.pass(5);
    assert_eq!(cluster.machine.host(&name("b")).unwrap().standing, HostStanding::Down);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 2);
    cluster.silent.clear();
    cluster.pass(3);
    assert_eq!(cores(&cluster, "b"), 0);

    // What is left of the slice on b is forgotten with the VM.
    cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
    cluster.pass(3);
    assert!(cluster.hosts.values().all(|host| host.slices.is_empty()), "{:?}", cluster.hosts);
}

#[test]
fn move_that_the_vm_refuses_is_undone_and_said() {
    let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
    cluster.hosts.get_mut(&name("a")).unwrap().mood = Mood::Refuses;
    split(&mut cluster);
    cluster.pass(60);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 3), ("b".to_owned(), 1)]);
    assert_eq!(cluster.state("web"), VmState::Running);
    assert!(why(&cluster, "web").contains("it has stayed where it was: no"), "and why");
    assert!(why(&cluster, "web").contains("slice 0 stays on a"), "{}", why(&cluster, "web"));
    assert_eq!((cores(&cluster, "a"), cores(&cluster, "b")), (3, 1), "room is given back");
    assert_eq!((free(&cluster, "a"), free(&cluster, "b")), (3, 1));
    // As often as a VM moves in an hour, and not each second.
    let tries = |(_, call): &&(Name, Call)| matches!(call, Call::Bring { .. });
    assert_eq!(cluster.calls.iter().filter(tries).count(), 8);
}

#[test]
fn move_that_was_done_in_part_goes_on() {
    let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
    cluster.hosts.get_mut(&name("a")).unwrap().mood = Mood::Partly;
    split(&mut cluster);
    cluster.pass(6);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 4)]);
    assert_eq!((cores(&cluster, "a"), cores(&cluster, "b")), (4, 0));
}

#[test]
fn move_is_not_made_where_its_host_has_no_room() {
    let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
    split(&mut cluster);
    cluster.pass(1);
    let mut sick = Cluster::new(&[("a", 6), ("b", 2)]);
    sick.create("other", 3, RunStrategy::Always);
    sick.create("web", 4, RunStrategy::Always);
    sick.hosts.get_mut(&name("a")).unwrap().is_sick = true;
    sick.ask(Ask::Delete { name: name("other"), etag: None }).unwrap();
    sick.pass(3);
    assert_eq!(sick.places("web").len(), 2);
    assert!(!sick.calls.iter().any(|(_, call)| matches!(call, Call::Bring { .. })));
    assert!(why(&sick, "web").contains("NO_CAPACITY"), "{}", why(&sick, "web"));
}

/// At each call of a move: the leader is dropped there, and another one goes on; or the VM is to end, or a host of it is lost.
#[test]
fn move_goes_on_or_is_over_whatever_happens_at_each_of_its_steps() {
    for (step, end) in
        (0..=4).flat_map(|step| ["restart", "delete", "halt", "lose"].map(|end| (step, end)))
    {
        for lost in ["a", "b"] {
            let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
            split(&mut cluster);
            (cluster.held, cluster.made) = (Some(step), 0);
            cluster.pass(1);
            let verb = cluster.machine.going_on(&name("web")).map(|it| it.verb);
            assert_eq!(verb, Some(Verb::Move), "{step} {end}");
            match end {
                "restart" => cluster.restart(),
                "delete" => {
                    cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
                }
                "halt" => {
                    let run = RunStrategy::Halted;
                    cluster.ask(Ask::Update { name: name("web"), run, etag: None }).unwrap();
                }
                _ => {
                    cluster.silent.push(name(lost));
                    cluster.pass(30);
                }
            }
            cluster.silent.clear();
            cluster.held = None;
            cluster.pass(30);
            let (a, b) = (cores(&cluster, "a"), cores(&cluster, "b"));
            match end {
                "delete" | "halt" => assert_eq!((a, b), (0, 0), "{step} {end}"),
                "restart" => {
                    assert_eq!(cluster.places("web"), [("a".to_owned(), 4)], "{step}");
                    assert_eq!((a, b), (4, 0), "{step}");
                }
                _ => {
                    assert_eq!(cluster.state("web"), VmState::Running, "{step} {lost}");
                    assert_eq!((cluster.bootstraps(), a + b), (1, 4), "{step} {lost}");
                }
            }
            let ledger = free(&cluster, "a") + free(&cluster, "b");
            assert_eq!(ledger, 8 - u32::from(a + b), "{step} {end} {lost}");
        }
    }
}

#[test]
fn drained_host_gives_away_what_can_move_and_says_what_stays() {
    let mut cluster = Cluster::new(&[("a", 5), ("b", 3)]);
    cluster.create("other", 3, RunStrategy::Always);
    cluster.create("web", 4, RunStrategy::Always);
    assert_eq!(cluster.places("other"), [("b".to_owned(), 3)], "the best fit");
    assert_eq!(cluster.places("web"), [("a".to_owned(), 4)]);
    cluster.ask(Ask::Drain { name: name("b") }).unwrap();
    cluster.pass(3);
    let stays = cluster.machine.what_stays(&name("b"));
    assert!(stays[0].1.contains("its first slice stays"), "{stays:?}");
    assert!(why(&cluster, "other").contains("slice 0 stays on b"), "{}", why(&cluster, "other"));
    assert!(!cluster.calls.iter().any(|(_, call)| matches!(call, Call::Resize { .. })));
    assert_eq!(cluster.machine.what_stays(&name("a")), [], "nobody drains it");

    let mut cluster = Cluster::new(&[("a", 6), ("b", 2)]);
    cluster.create("other", 3, RunStrategy::Always);
    cluster.create("web", 4, RunStrategy::Always);
    cluster.ask(Ask::Drain { name: name("b") }).unwrap();
    cluster.pass(3);
    let stays = cluster.machine.what_stays(&name("b"));
    assert_eq!(stays, [(name("web"), "no other host has room for slice 1".to_owned())]);
    cluster.restart();
    assert!(cluster.machine.host(&name("b")).unwrap().host.desired.draining);
    cluster.ask(Ask::Delete { name: name("other"), etag: None }).unwrap();
    cluster.pass(4);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 4)]);
    assert_eq!(cluster.machine.host(&name("b")).unwrap().vms, []);
    cluster.ask(Ask::Cordon { name: name("b"), cordoned: false }).unwrap();
    cluster.create("next", 2, RunStrategy::Always);
    assert_eq!(cluster.state("next"), VmState::Running);
}

/// Whatever comes together at one moment: what it writes at once is bounded (`commit` looks).
#[test]
fn commits_of_many_vms_are_bounded() {
    let hosts: Vec<(String, u16)> = (0..40).map(|number| (format!("h{number}"), 5)).collect();
    let hosts: Vec<(&str, u16)> = hosts.iter().map(|(host, cores)| (&host[..], *cores)).collect();
    let mut cluster = Cluster::new(&hosts);
    let create = |cluster: &mut Cluster, number: u16, vcpus: u16| {
        let (name, uid) = (name(&format!("v{number}")), Uid::new(u128::from(number)));
        let (secret, run) = (secret(&uid), RunStrategy::Always);
        let desired = Box::new(desired(vcpus, u64::from(vcpus) * 1024, run));
        cluster.ask(Ask::Create { name, uid, secret, desired, plan: None }).unwrap();
    };
    (0..40).for_each(|number| create(&mut cluster, number, 3));
    // Two cores of each host are left: these are on two hosts.
    (40..66).for_each(|number| create(&mut cluster, number, 3));
    // All at once: hosts are lost, and come back; VMs of before end.
    cluster.silent = cluster.hosts.keys().take(20).cloned().collect();
    cluster.pass(15);
    cluster.silent.clear();
    cluster.pass(30);
    for number in 0..40 {
        let vm = name(&format!("v{number}"));
        cluster.ask(Ask::Delete { name: vm, etag: None }).unwrap();
    }
    cluster.pass(60);
    cluster.restart();
    cluster.pass(60);
    let running = cluster.machine.standing().running;
    assert_eq!(running, 26);
    let moved = cluster.calls.iter().filter(|(_, call)| matches!(call, Call::Bring { .. }));
    assert!(moved.count() > 0, "some have come together");
}

/// A VM of 3 vCPUs on a (2) and b (1); then there is c, and b is drained.
fn drained() -> Cluster {
    let mut cluster = Cluster::new(&[("a", 2), ("b", 2)]);
    cluster.create("web", 3, RunStrategy::Always);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
    cluster.hosts.insert(name("c"), Host::new(2, 65536));
    let agent = "https://c:7000".to_owned();
    cluster.ask(Ask::Register { name: name("c"), agent }).unwrap();
    cluster.pass(1);
    cluster
}

#[test]
fn slice_of_a_drained_host_goes_to_one_where_its_vm_has_none() {
    let mut cluster = drained();
    cluster.ask(Ask::Drain { name: name("b") }).unwrap();
    cluster.pass(4);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 2), ("c".to_owned(), 1)]);
    assert_eq!(cluster.machine.vm(&name("web")).unwrap().life, 1, "it has run on");
    assert_eq!(["a", "b", "c"].map(|host| cores(&cluster, host)), [2, 0, 1]);
    assert_eq!(["a", "b", "c"].map(|host| free(&cluster, host)), [0, 2, 1]);
    // Back, as one more slice: its number was never there before.
    cluster.ask(Ask::Cordon { name: name("b"), cordoned: false }).unwrap();
    cluster.ask(Ask::Drain { name: name("c") }).unwrap();
    cluster.pass(4);
    assert_eq!(cluster.places("web"), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
    cluster.restart();
    cluster.pass(3);
    assert_eq!(cluster.state("web"), VmState::Running);
    cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
    cluster.pass(3);
    assert!(cluster.hosts.values().all(|host| host.slices.is_empty()), "{:?}", cluster.hosts);
}

#[test]
fn newcomer_that_cannot_join_is_ended_and_its_room_given_back() {
    for mood in [Mood::RefusesToJoin, Mood::Refuses] {
        let mut cluster = drained();
        cluster.hosts.get_mut(&name("a")).unwrap().mood = mood;
        cluster.ask(Ask::Drain { name: name("b") }).unwrap();
        cluster.pass(40);
        assert_eq!(cluster.places("web"), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!(["a", "b", "c"].map(|host| cores(&cluster, host)), [2, 1, 0], "{mood:?}");
        assert_eq!(["a", "b", "c"].map(|host| free(&cluster, host)), [0, 1, 2]);
        assert!(cluster.hosts.values().all(|host| host.kept.is_empty()));
        assert!(why(&cluster, "web").contains("it has stayed where it was"));
        cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
        cluster.pass(3);
        assert!(cluster.hosts.values().all(|host| host.slices.is_empty()), "{mood:?}");
    }
}

#[test]
fn newcomer_joins_or_is_over_whatever_happens_at_each_step() {
    let ends = ["restart", "delete", "lose a", "lose b", "lose c"];
    for (step, end) in (0..=6).flat_map(|step| ends.map(|end| (step, end))) {
        let mut cluster = drained();
        (cluster.held, cluster.made) = (Some(step), 0);
        cluster.ask(Ask::Drain { name: name("b") }).unwrap();
        cluster.pass(1);
        match end {
            "restart" => cluster.restart(),
            "delete" => {
                cluster.ask(Ask::Delete { name: name("web"), etag: None }).unwrap();
            }
            _ => {
                cluster.silent.push(name(&end[5..]));
                cluster.pass(30);
            }
        }
        cluster.silent.clear();
        cluster.held = None;
        cluster.pass(60);
        let used: u16 = ["a", "b", "c"].map(|host| cores(&cluster, host)).iter().sum();
        let free: u32 = ["a", "b", "c"].map(|host| free(&cluster, host)).iter().sum();
        assert_eq!(free, 6 - u32::from(used), "{step} {end}");
        if end == "delete" {
            assert_eq!(used, 0, "{step}");
            continue;
        }
        assert_eq!((cluster.state("web"), used), (VmState::Running, 3), "{step} {end}");
        assert_eq!(cluster.bootstraps(), 1, "{step} {end}");
        assert!(cluster.places("web").iter().all(|(host, _)| host != "b"), "{step} {end}");
    }
}
