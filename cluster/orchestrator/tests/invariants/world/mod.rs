//! A store, two hosts, and leaders one after another.

mod begin;
mod losses;
mod model;

use super::support::{
    Host, Mood, POLICY, desired, end_what_has_left, has_room, judged, name, secret, share_files,
};
use model_check::full;
use orchestrator::decide::{
    Answer, Ask, Call, CallId, Choice, Effect, Failure, Input, Objects, Orchestrator, PlantedBug,
    Refusal, Request, Settings, Stored, Target, Ticket, Time, Write,
};
use scheduler::fragmentation::Mix;
use scheduler::policy::{Consolidation, FragBff, Spread};
use state::{
    Assignment, Checkpoint, Name, OperationResult, RunStrategy, Term, Uid, Verb, VmDesired, VmState,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) const ONE_BOOTSTRAP: &str = "a VM has one bootstrap that runs";
pub(crate) const OVER: &str = "a life that is over does not run";
pub(crate) const CONFIRMED: &str = "a VM that was confirmed is known";
pub(crate) const ROOM: &str = "room is given back";
pub(crate) const GOES_ON: &str = "what has begun goes on";
pub(crate) const SAME_ANSWER: &str = "a request made again has its answer";
pub(crate) const DEPOSED: &str = "who is deposed does nothing more";
pub(crate) const TAKEN: &str = "parts of a VM are where room is kept for them";
pub(crate) const SETTLED: &str = "a VM is where it is said to be, with no more room than it needs";
pub(crate) const WRITTEN: &str = "the newest checkpoint that is recorded is there";
pub(crate) const GOES_ON_FROM: &str = "a VM that has lost a slice goes on from what was written";
pub(crate) const ASKED_ONCE: &str = "a host is asked for one thing once at a time";
pub(crate) const NO_STRAY: &str = "what is no part of its VM is ended where it is found";
pub(crate) const STAYS: &str = "a VM whose hosts answer stays, however long commits take";
pub(crate) const OUTLIVES: &str = "a VM outlives the silence of a host";
pub(crate) const LEFT_ALONE: &str = "a host that obeys another one is asked nothing but how it is";
pub(crate) const BOUNDED: &str = "a commit is one that a store takes";
pub(crate) const LEFT_NOTHING: &str =
    "a VM that is no more has left nothing that a host could have deleted";
pub(crate) const FORMS: &str = "what is written can be read";

/// Deaths, lost calls, lost answers and hosts that are cut off, all together.
const FAULTS: u8 = 1;

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The VM fits on either host.
    OneHost,
    /// It does, and is asked for twice.
    Twice,
    /// It needs both.
    TwoHosts,
    /// It needs both, and one refuses.
    SickHost,
    /// It is on both, and comes to one.
    Moves,
    /// The same, but the VM refuses to.
    MoveRefused,
    /// The same, but the VM brings a part only, and fails.
    MovedPartly,
    /// It is on two hosts, one of which is drained, and a third one has room.
    Joins,
    /// The same, but nobody can join.
    JoinRefused,
    /// Nobody can join, and the host of the newcomer is cut off for a while.
    JoinCutOff,
    /// It has been written down once, and is so again; then a slice is lost.
    WrittenDown,
    /// It runs on two hosts, one of which says nothing any more. Slices of a host may die then; or a slice has left before,
    /// and the VM may be deleted.
    LostHost,
    /// It runs on two hosts, which answer, and commits take longer than a host's lease.
    Stalls,
    /// It fits on either host, and one of them obeys another orchestrator.
    Foreign,
    /// It runs, and begins anew on the other host; somebody goes back to a copy of the store.
    OlderStore,
    /// It runs on two hosts, and an agent loses its journal; it may be deleted then.
    NewJournal,
    /// It has been written down and is deleted. Its host cannot delete what was written, and the other one may be cut off for a while.
    GoesAway,
}

impl Kind {
    fn is_move(self) -> bool {
        matches!(self, Self::Moves | Self::MoveRefused | Self::MovedPartly) || self.joins()
    }

    fn joins(self) -> bool {
        matches!(self, Self::Joins | Self::JoinRefused | Self::JoinCutOff)
    }
}

/// What a store takes at once.
const CHANGES_MAX: usize = 100;

#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    kind: Kind,
    bug: Option<PlantedBug>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    store: BTreeMap<String, Stored>,
    term: Term,
    machine: Option<Orchestrator>,
    effects: VecDeque<Effect>,
    /// Hosts take their time to say how they are.
    looks_take_time: bool,
    stalls: u8,
    /// What its leader waits for.
    network: BTreeMap<CallId, (Name, Call)>,
    /// Calls of leaders that are dead.
    late: Vec<(Term, Name, Call)>,
    hosts: BTreeMap<Name, Host>,
    silent: Option<Name>,
    ticks: u8,
    faults: u8,
    asked: u8,
    /// What was answered to the first request.
    first: Option<Answer>,
    /// Milliseconds before it began.
    before: u64,
    /// Since which tick slices of a life miss another one.
    alone: BTreeMap<u64, u8>,
    /// A copy of the store that somebody may go back to.
    copy: Option<BTreeMap<String, Stored>>,
    /// Somebody has.
    is_old: bool,
    /// A slice was lost in this life, of which something was written down before.
    lost: Option<u64>,
    /// Slices of a host have died.
    has_died: bool,
    /// A slice has left.
    has_left: bool,
    /// What is no part of its VM, and ran when hosts were asked last how they are.
    strays: BTreeSet<Target>,
    /// A late call, or a host that was lost, may keep room for what is over: it expires.
    is_room_in_doubt: bool,
    broken: BTreeSet<&'static str>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Ask,
    Carry,
    Deliver(CallId),
    /// It is done, and the answer is lost.
    LoseAnswer(CallId),
    /// It is not done.
    LoseCall(CallId),
    DeliverLate(usize),
    Tick,
    Kill,
    Begin,
    Partition(Name),
    Heal,
    /// Another one has led meanwhile, and has reached a host.
    Depose,
    /// A slice is killed.
    Lose,
    /// What runs on a host is killed, or all of the host is.
    Die(Name),
    /// Somebody has a slice leave, and does not tell the orchestrator.
    Leave,
    /// What the leader does takes long.
    Stall,
    /// The store is its older copy, and another leader begins.
    GoBack,
    /// An agent has lost its journal, and is heard.
    LoseJournal(Name),
}

fn settings() -> Settings {
    let (spread, consolidation) = (Spread::MinNodes, Consolidation::MinNodes);
    let policy = FragBff { spread, consolidation, mix: Mix::azure() };
    Settings {
        lease_ms: 1500,
        listens_ms: 1000,
        // Nothing is tried again before time passes, which bounds how often.
        retry_ms: 500,
        step_ms: 1500,
        silence_ms: 1500,
        shutdown_ms: 0,
        again_ms: 500,
        ..Settings::new(Choice::Split(policy))
    }
}

impl World {
    pub(crate) fn new(kind: Kind, bug: Option<PlantedBug>) -> Self {
        Self { kind, bug }
    }

    fn ticks(self) -> u8 {
        match self.kind {
            Kind::OneHost => 3,
            Kind::TwoHosts | Kind::SickHost | Kind::Foreign => 2,
            Kind::Twice => 0,
            // With one more they are half of all states, and take as long as all others: `./x check --full`.
            Kind::Moves | Kind::MoveRefused | Kind::MovedPartly => 2 + u8::from(full()),
            Kind::Joins | Kind::JoinRefused => 1 + u8::from(full()),
            Kind::JoinCutOff => 3,
            Kind::WrittenDown => 2,
            Kind::LostHost => 5,
            Kind::Stalls | Kind::NewJournal | Kind::GoesAway => 3,
            Kind::OlderStore => 4,
        }
    }

    /// Whether the model begins in the middle.
    fn is_begun(self) -> bool {
        self.kind.is_move()
            || matches!(
                self.kind,
                Kind::WrittenDown
                    | Kind::LostHost
                    | Kind::Stalls
                    | Kind::OlderStore
                    | Kind::NewJournal
                    | Kind::GoesAway
            )
    }

    /// Whether nobody asks for anything.
    fn is_left_to_itself(self) -> bool {
        matches!(self.kind, Kind::JoinCutOff | Kind::Stalls | Kind::OlderStore)
    }

    fn begin(self, store: &BTreeMap<String, Stored>, term: Term, now: Time) -> Orchestrator {
        let objects = Objects::new(store.values().cloned());
        match self.bug {
            Some(bug) => Orchestrator::recover_with(settings(), term, now, objects, bug),
            None => Orchestrator::recover(settings(), term, now, objects),
        }
    }

    fn ask(self, number: u8) -> Option<(Option<Request>, Ask)> {
        let fits = matches!(self.kind, Kind::OneHost | Kind::Twice | Kind::Foreign);
        let vcpus = if fits { 2 } else { 3 };
        // Whoever asks again does not know what was chosen at first.
        let create = |uid: u128| {
            let (uid, desired) = (Uid::new(uid), desired(vcpus, 1024, RunStrategy::Always));
            let (secret, desired) = (secret(&uid), Box::new(desired));
            let request = Request { id: Uid::new(9), content: "create".to_owned() };
            (Some(request), Ask::Create { name: name("vm"), uid, secret, desired, plan: None })
        };
        let delete = || Some((None, Ask::Delete { name: name("vm"), etag: None }));
        match number {
            _ if self.is_left_to_itself() => None,
            0 if self.is_begun() => delete(),
            _ if self.is_begun() => None,
            0 => Some(create(1)),
            1 if self.kind == Kind::Twice => Some(create(2)),
            1 => delete(),
            _ => None,
        }
    }
}

impl State {
    fn now(&self) -> Time {
        Time { ms: self.before + u64::from(self.ticks) * 1000, unix: 0 }
    }

    fn hear(&mut self, input: Input) {
        let now = self.now();
        if let Some(machine) = &mut self.machine {
            let effects = machine.step(now, input);
            let is_asked = |effect: &Effect| match effect {
                Effect::Call { host, what, .. } => {
                    **what != Call::Look && machine.foreign(host).is_some()
                }
                _ => false,
            };
            if effects.iter().any(is_asked) {
                self.broken.insert(LEFT_ALONE);
            }
            self.effects.extend(effects);
        }
    }

    fn carry(&mut self, effect: Effect) {
        match effect {
            Effect::Commit(writes) => self.commit(writes),
            Effect::Call { call, host, what } if *what == Call::Look && !self.looks_take_time => {
                // How a host is is asked so often that one order is enough.
                let result = self.reach(&host, &what);
                self.news(call, result);
            }
            Effect::Call { call, host, what } => {
                self.network.insert(call, (host, *what));
            }
            Effect::Answer { ticket, result } => self.told(ticket, result),
            Effect::StandDown => self.drop_machine(),
        }
    }

    fn news(&mut self, call: CallId, result: Result<orchestrator::decide::Reply, Failure>) {
        let is_deposed = result == Err(Failure::Deposed);
        let before = self.effects.len();
        self.hear(Input::Answered { call, result });
        let more = self.effects.iter().skip(before);
        let goes_on =
            { more }.any(|effect| matches!(effect, Effect::Call { .. } | Effect::Commit(_)));
        let is_there = self.machine.is_some();
        if is_deposed && is_there {
            // One more moment must not wake it either.
            let (now, machine) = (self.now(), &mut self.machine);
            let ticked = machine.as_mut().map(|it| it.step(now, Input::Tick)).unwrap_or_default();
            if goes_on || !ticked.is_empty() {
                self.broken.insert(DEPOSED);
            }
        }
    }

    fn commit(&mut self, writes: Vec<Write>) {
        if writes.len() > CHANGES_MAX {
            self.broken.insert(BOUNDED);
        }
        if self.machine.as_ref().is_none_or(|machine| machine.term() < self.term) {
            // The store refuses a deposed leader, which is dropped then.
            return self.drop_machine();
        }
        for write in writes {
            match write {
                Write::Put(one) => {
                    let form = one.to_form();
                    let read = form.ok().and_then(|form| Stored::from_form(&one.key(), &form).ok());
                    if read != Some(Some((*one).clone())) {
                        self.broken.insert(FORMS);
                    }
                    self.store.insert(one.key(), *one);
                }
                Write::Delete(key) => drop(self.store.remove(&key)),
            }
        }
    }

    fn told(&mut self, ticket: Ticket, result: Result<Answer, Refusal>) {
        match (ticket.0, result) {
            (0, Ok(answer)) => self.first = Some(answer),
            (2, result) => {
                let other = |first: &Answer| result.as_ref() != Ok(first);
                let is_told = result != Err(Refusal::Deposed);
                if is_told && self.first.as_ref().is_some_and(other) {
                    self.broken.insert(SAME_ANSWER);
                }
            }
            _ => {}
        }
    }

    fn drop_machine(&mut self) {
        let Some(machine) = self.machine.take() else { return };
        self.strays.clear();
        let calls = std::mem::take(&mut self.network);
        self.late.extend(calls.into_values().map(|(host, call)| (machine.term(), host, call)));
        self.effects.clear();
    }

    fn reach(&mut self, host: &Name, call: &Call) -> Result<orchestrator::decide::Reply, Failure> {
        let term = self.machine.as_ref().map_or(Term(0), Orchestrator::term);
        let leads = term == self.term;
        let it = self.hosts.get_mut(host).filter(|_| self.silent.as_ref() != Some(host));
        let result = it.map_or_else(
            || Err(Failure::Unreachable("silent".to_owned())),
            |it| it.call(term, call),
        );
        self.after_call(host);
        judged(leads, result)
    }

    fn after_call(&mut self, host: &Name) {
        end_what_has_left(&mut self.hosts);
        share_files(&mut self.hosts, host);
        if !has_room(&self.hosts) {
            self.broken.insert(TAKEN);
        }
    }

    fn checkpoints(&self) -> impl DoubleEndedIterator<Item = &Checkpoint> {
        self.store
            .values()
            .filter_map(|one| if let Stored::Checkpoint(it) = one { Some(it) } else { None })
    }

    fn placements(&self) -> impl Iterator<Item = &Assignment> {
        self.store
            .values()
            .filter_map(|one| if let Stored::Assignment(it) = one { Some(it) } else { None })
    }

    /// What the life after the one that was lost goes on from.
    fn goes_on_from_what_was_written(&self) -> bool {
        let slices = self.hosts.values().flat_map(|host| &host.slices);
        let later = slices.filter(|(target, slice)| {
            slice.is_bootstrap && self.lost.is_some_and(|lost| target.life > lost)
        });
        { later }.all(|(_, slice)| slice.restore.is_some())
    }

    /// Whether what is written down of a VM that runs is so.
    fn is_settled(&self) -> bool {
        let assignments: Vec<&Assignment> = self.placements().collect();
        let Some(vm) = self.vm().filter(|vm| vm.observed.state == VmState::Running) else {
            return true;
        };
        let [one] = &assignments[..] else { return false };
        one.numbered().all(|(slice, part)| {
            let target = Target { uid: vm.uid.clone(), slice, life: vm.life };
            let host = &self.hosts[&part.host];
            let here = host.slices.get(&target).or_else(|| host.unknown.get(&target));
            let cores = usize::from(here.map_or(0, |slice| slice.cores));
            let hosts = self.hosts.values();
            let guests = hosts.flat_map(|host| host.slices.values().chain(host.unknown.values()));
            let mut places = guests.filter_map(|it| it.guest.as_ref()).flat_map(|it| &it.places);
            let place = places.find(|place| place.slice == slice);
            cores == part.vcpus.len() && place.is_some_and(|it| it.vcpus == part.vcpus)
        })
    }

    fn is_quiet(&self) -> bool {
        self.machine.is_some() && self.effects.is_empty() && self.network.is_empty()
    }

    fn operations(&self) -> impl Iterator<Item = &state::Operation> {
        self.store.values().filter_map(|one| match one {
            Stored::Operation(it) if it.result.is_none() => Some(it),
            _ => None,
        })
    }

    fn vm(&self) -> Option<&state::Vm> {
        self.store.values().find_map(|one| if let Stored::Vm(vm) = one { Some(vm) } else { None })
    }

    fn running(&self) -> impl Iterator<Item = (u64, bool)> {
        let slices = self.hosts.values().flat_map(|host| host.slices.iter().chain(&host.unknown));
        let runs = slices.filter(|(_, slice)| slice.ended.is_none());
        runs.map(|(target, slice)| (target.life, slice.is_bootstrap))
    }
}
