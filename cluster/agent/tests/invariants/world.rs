//! A host with an agent, and two orchestrators that ask it.

use agent::decide::{
    Agent, Asked, Effect, End, Entry, Found, Generation, Input, Journal, Manner, Operation, Order,
    PlantedBug, Process, Refusal, Reply, Request, Settings, SliceName, Term, Ticket, Token, Vm,
};
use scheduler::Resources;
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) const DEPOSED: &str = "who is deposed changes nothing";
pub(crate) const ONE_PROCESS: &str = "a slice has one process";
pub(crate) const ONE_LIFE: &str = "lives of a VM do not run together";
pub(crate) const KNOWN: &str = "the journal knows every process";
pub(crate) const FENCED: &str = "what is fenced does not run";
pub(crate) const FENCED_ENDS: &str = "what is fenced does not go on";
pub(crate) const RESERVED: &str = "what is reserved is there";
pub(crate) const CAPACITY: &str = "nothing is given twice";
pub(crate) const EXPIRES: &str = "reservations expire";
pub(crate) const UNASKED: &str = "nothing is ended unasked";

const VM: Vm = Vm(7);
const OTHER: Vm = Vm(8);
const SLICE: SliceName = SliceName { vm: VM, number: 0 };
const ALL: Resources = Resources::new(8, 8);
const LASTS: u64 = 10;

/// How often each may happen.
const DELIVERIES: [u8; 9] = [1, 1, 1, 2, 1, 1, 1, 1, 1];
const KILLS: u8 = 1;
const ENDS: u8 = 1;

#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    bug: Option<PlantedBug>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    agent: Option<Agent>,
    journal: Journal,
    now: u64,
    effects: VecDeque<Effect>,
    /// What whoever carries effects out has to tell; lost with the agent.
    news: VecDeque<Input>,
    processes: BTreeMap<Process, (Token, SliceName, Generation)>,
    next_process: u32,
    delivered: Vec<u8>,
    kills: u8,
    ends: u8,
    /// The highest term that has had an answer.
    heard: Term,
    proofs: BTreeSet<(Vm, Generation)>,
    /// Until when a reservation that was confirmed lasts.
    reserved: Option<u64>,
    /// Somebody asked for the end of the slice.
    stop_asked: bool,
    broken: BTreeSet<&'static str>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Deliver(usize),
    Carry,
    Tell,
    ProcessEnds(Process),
    Kill,
    Begin,
    Expire,
}

impl World {
    pub(crate) fn new(bug: Option<PlantedBug>) -> Self {
        Self { bug }
    }

    fn begin(self, journal: Journal, now: u64, found: &Found) -> (Agent, Vec<Effect>) {
        let settings = Settings { capacity: ALL };
        match self.bug {
            Some(bug) => Agent::with_bug(settings, journal, now, found, bug),
            None => Agent::recover(settings, journal, now, found),
        }
    }
}

/// What is asked: a VM starts, its first life is fenced by a later orchestrator, and its second one starts; another VM wants the
/// same cores.
fn requests() -> Vec<(Term, Request)> {
    let order = |cores| Order { resources: Resources::new(cores, 1), words: Vec::new() };
    let ensure = |slice, generation, cores| Request::Ensure {
        slice,
        generation: Generation(generation),
        order: order(cores),
    };
    let reserve = Request::Reserve {
        operation: Operation(1),
        slice: SLICE,
        generation: Generation(1),
        resources: Resources::new(3, 1),
        lasts: LASTS,
    };
    let resize = |cores| Request::Resize {
        slice: SLICE,
        generation: Generation(1),
        resources: Resources::new(cores, 1),
    };
    let stop = Request::Stop { slice: SLICE, generation: Generation(1), manner: Manner::Orderly };
    vec![
        (Term(1), reserve),
        (Term(1), ensure(SLICE, 1, 3)),
        (Term(1), stop),
        (Term(2), Request::Fence { vm: VM, generation: Generation(1) }),
        (Term(2), ensure(SLICE, 2, 3)),
        // It was on its way for long.
        (Term(2), ensure(SLICE, 1, 3)),
        (Term(2), Request::Remove { slice: SLICE, generation: Generation(1) }),
        (Term(2), ensure(SliceName { vm: OTHER, number: 0 }, 1, 6)),
        // There is not so much on this host.
        (Term(1), resize(9)),
    ]
}

impl State {
    fn carry(&mut self, effect: Effect) {
        match effect {
            Effect::Record(entries) => {
                entries.iter().for_each(|entry| self.journal.take(entry));
                if entries.iter().any(|entry| matches!(entry, Entry::Reserved(_, None))) {
                    self.reserved = None;
                }
            }
            Effect::Start { slice, generation, token, .. } => {
                let process = Process { id: self.next_process, began: 0 };
                self.next_process += 1;
                self.processes.insert(process, (token, slice, generation));
                self.news.push_back(Input::Started(token, process));
            }
            Effect::End { process, .. } => {
                let Some((token, slice, generation)) = self.processes.remove(&process) else {
                    return;
                };
                let lowest = self.journal.lowest.get(&slice.vm);
                let is_fenced = lowest.is_some_and(|it| generation < it.generation);
                if !is_fenced && !self.stop_asked {
                    self.broken.insert(UNASKED);
                }
                self.news.push_back(Input::Ended(token, End::Signal(9)));
            }
            Effect::Answer { ticket, result } => self.answered(ticket, &result),
        }
    }

    fn answered(&mut self, ticket: Ticket, result: &Result<Reply, Refusal>) {
        let number = usize::try_from(ticket.0).expect("a number of a request");
        let (term, request) = requests().remove(number);
        match result {
            Ok(reply) => {
                if term < self.heard {
                    self.broken.insert(DEPOSED);
                }
                if let Reply::Fenced(proof) = reply {
                    self.proofs.insert((proof.vm, proof.generation));
                }
                if let Request::Reserve { lasts, .. } = request {
                    self.reserved = Some(self.now + lasts);
                }
            }
            Err(Refusal::NoCapacity { .. }) => {
                let own = matches!(
                    request,
                    Request::Ensure { slice: SLICE, generation: Generation(1), .. }
                );
                if own && self.reserved.is_some_and(|until| until > self.now) {
                    self.broken.insert(RESERVED);
                }
            }
            Err(_) => {}
        }
        if !matches!(result, Err(Refusal::StaleTerm { .. })) {
            self.heard = self.heard.max(term);
        }
    }

    fn hear(&mut self, input: Input) {
        if let Some(agent) = &mut self.agent {
            self.effects.extend(agent.step(self.now, input));
        }
    }

    fn is_quiet(&self) -> bool {
        self.agent.is_some() && self.effects.is_empty() && self.news.is_empty()
    }

    fn runs(&self, judge: impl Fn(SliceName, Generation) -> bool) -> usize {
        self.processes.values().filter(|(_, name, generation)| judge(*name, *generation)).count()
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (agent, effects) = self.begin(Journal::default(), 0, &Found::default());
        assert!(effects.is_empty());
        vec![State {
            agent: Some(agent),
            journal: Journal::default(),
            now: 0,
            effects: VecDeque::new(),
            news: VecDeque::new(),
            processes: BTreeMap::new(),
            next_process: 1,
            delivered: vec![0; requests().len()],
            kills: 0,
            ends: 0,
            heard: Term(0),
            proofs: BTreeSet::new(),
            reserved: None,
            stop_asked: false,
            broken: BTreeSet::new(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.agent.is_none() {
            actions.push(Action::Begin);
            return;
        }
        // Effects are carried out before the next input is heard, and the agent may be killed between any two.
        if state.effects.is_empty() {
            for (number, times) in state.delivered.iter().enumerate() {
                actions.extend((*times < DELIVERIES[number]).then_some(Action::Deliver(number)));
            }
            actions.extend((!state.news.is_empty()).then_some(Action::Tell));
            actions.extend((state.now == 0).then_some(Action::Expire));
        } else {
            actions.push(Action::Carry);
        }
        actions.extend((state.kills < KILLS).then_some(Action::Kill));
        if state.ends < ENDS {
            actions.extend(state.processes.keys().copied().map(Action::ProcessEnds));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Deliver(number) => {
                next.delivered[number] += 1;
                let (term, request) = requests().remove(number);
                next.stop_asked |= matches!(request, Request::Stop { .. });
                let ticket = Ticket(u64::try_from(number).expect("a number of a request"));
                next.hear(Input::Asked(Asked { term, ticket, request }));
            }
            Action::Carry => {
                let effect = next.effects.pop_front()?;
                next.carry(effect);
            }
            Action::Tell => {
                let input = next.news.pop_front()?;
                next.hear(input);
            }
            Action::ProcessEnds(process) => {
                next.ends += 1;
                let (token, ..) = next.processes.remove(&process)?;
                next.news.push_back(Input::Ended(token, End::Status(0)));
            }
            Action::Kill => {
                next.kills += 1;
                next.agent = None;
                next.effects.clear();
                next.news.clear();
            }
            Action::Begin => {
                let all = next.processes.iter();
                let processes = all.map(|(process, (token, ..))| (*token, *process)).collect();
                let found = Found { processes, ..Found::default() };
                let (agent, effects) = self.begin(next.journal.clone(), next.now, &found);
                next.agent = Some(agent);
                next.effects.extend(effects);
            }
            Action::Expire => {
                next.now = LASTS;
                next.hear(Input::Tick);
                let agent = next.agent.as_ref()?;
                if !agent.journal().reserved.is_empty() {
                    next.broken.insert(EXPIRES);
                }
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(DEPOSED, |_, state: &State| !state.broken.contains(DEPOSED)),
            Property::always(RESERVED, |_, state: &State| !state.broken.contains(RESERVED)),
            Property::always(EXPIRES, |_, state: &State| !state.broken.contains(EXPIRES)),
            Property::always(UNASKED, |_, state: &State| !state.broken.contains(UNASKED)),
            Property::always(ONE_PROCESS, |_, state: &State| {
                state.runs(|name, _| name == SLICE) <= 1
            }),
            Property::always(ONE_LIFE, |_, state: &State| {
                let of = |number| state.runs(|name, it| name.vm == VM && it == Generation(number));
                of(1) == 0 || of(2) == 0
            }),
            Property::always(FENCED, |_, state: &State| {
                state.runs(|name, it| {
                    state.proofs.iter().any(|(vm, fenced)| *vm == name.vm && it <= *fenced)
                }) == 0
            }),
            Property::always(FENCED_ENDS, |_, state: &State| {
                let lowest = |vm| state.journal.lowest.get(&vm).map(|it| it.generation);
                !state.is_quiet()
                    || state.runs(|name, it| lowest(name.vm).is_some_and(|low| it < low)) == 0
            }),
            Property::always(KNOWN, |_, state: &State| {
                state.processes.values().all(|(token, name, _)| {
                    let slice = state.journal.slices.get(name);
                    slice.is_some_and(|slice| slice.token == *token)
                })
            }),
            Property::always(CAPACITY, |_, state: &State| {
                let slices = state.journal.slices.values().filter(|slice| slice.may_run());
                let used = slices.map(|slice| slice.order.resources);
                used.fold(Resources::NONE, Resources::plus).fits_in(ALL)
            }),
            Property::sometimes("the second life runs", |_, state: &State| {
                state.runs(|name, it| name == SLICE && it == Generation(2)) == 1
            }),
            Property::sometimes(
                "a fence is confirmed after the agent was killed",
                |_, state: &State| state.kills > 0 && !state.proofs.is_empty(),
            ),
            Property::sometimes("a slice is found again", |_, state: &State| {
                state.kills > 0 && state.is_quiet() && !state.processes.is_empty()
            }),
        ]
    }
}
