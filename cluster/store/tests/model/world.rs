//! The world of two leaders: the real store (its machine), the real way to settle, and a network.
//!
//! ```text
//!   leader: idle ──campaign──> leads ── sends a try ──> waits ── answer ──> done │ not done: another try
//!                                                        └─ gives up waiting ──> settles, step by step ──> done │ never: another try
//!   network: a commit that nobody waits for is a stray: it arrives at any time, or never
//!   judge:   knows who has won when, and looks at every commit
//! ```
//! Both do the same request, as when a user asks the next leader. Each try writes an object of its own, so that it shows which happened.

use std::time::Duration;

use stateright::{Model, Property};
use store::machine::Machine;
use store::request::{Attempt, Content, RequestId, Settled, Settling, Step};
use store::{
    BootTime, Candidate, Change, CommitError, Key, Limits, PlantedBug, Revision, Term, Txn,
    decides_until,
};

/// In ticks of the model.
const LEASE: Duration = Duration::from_nanos(2);
const NOW: Revision = Revision(u64::MAX);

/// What must hold.
pub(crate) mod names {
    pub(crate) const FENCED: &str = "only who leads writes under a term";
    pub(crate) const TERMS: &str = "terms grow";
    pub(crate) const CHAIN: &str = "generations follow each other";
    pub(crate) const WHOLE: &str = "all of a try is there, or nothing";
    pub(crate) const DONE: &str = "what is done stays done";
    pub(crate) const NEVER: &str = "what is said never to happen does not";
    pub(crate) const ONCE: &str = "the request is done once";
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// What the object of a try is called.
fn effect(leader: usize, number: u8) -> Key {
    key(&format!("effects/{leader}-{number}"))
}

fn generation_key() -> Key {
    key("assignments/vm")
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Try {
    attempt: Attempt,
    number: u8,
    txn: Txn,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// Nothing is on its way; this is what it would try.
    Ready(Attempt),
    Waits(Try),
    Settles(Try, Box<Settling>),
    /// It has been told, or has told, that it is done.
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Leader {
    /// Its term, and up to when it decides.
    leads: Option<(Term, BootTime)>,
    work: Work,
    /// How many tries it has begun.
    tries: u8,
    /// Tries that it has said will never happen.
    never: Vec<u8>,
}

/// Somebody has won.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Win {
    term: Term,
    until: BootTime,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    machine: Machine,
    now: u64,
    leaders: [Leader; 2],
    /// Commits that nobody waits for.
    strays: Vec<Txn>,
    wins: Vec<Win>,
    /// Rules that a step broke.
    broken: Vec<&'static str>,
    /// What has happened, to see that it does.
    seen: Seen,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is seen or not")]
struct Seen {
    deposed: bool,
    full: bool,
    settled_never: bool,
    settled_happened: bool,
    stray_refused: bool,
    next_attempt_done: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Tick,
    Campaign(usize),
    /// Reads, and sends a try.
    Try(usize),
    /// The try arrives, and its answer comes back.
    Answered(usize),
    /// It arrives, and the answer is lost; or does not, and may come later.
    Lost {
        leader: usize,
        arrives: bool,
    },
    /// One step of settling; its answer may be lost too.
    Settle {
        leader: usize,
        lost: bool,
    },
    Stray(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) ticks: u64,
    pub(crate) tries: u8,
    /// At most so many commits are on their way.
    pub(crate) strays: usize,
    pub(crate) bytes_max: u64,
    /// The two are tasks of one leader, each with a request of its own.
    pub(crate) together: bool,
    pub(crate) planted: Option<PlantedBug>,
}

impl Scenario {
    /// The first attempt of what a leader is to do.
    fn request(&self, at: usize) -> Attempt {
        let id = if self.together { at } else { 0 };
        let id = RequestId([u8::try_from(id).unwrap(); 16]);
        Attempt::first(id, Content::of(b"place the VM"))
    }

    fn settling(&self, attempt: &Attempt) -> Settling {
        let settling = Settling::new(attempt.clone());
        match self.planted {
            Some(bug) => settling.with_bug(bug),
            None => settling,
        }
    }

    fn campaign(&self, state: &mut State, at: usize) -> Option<()> {
        let candidate =
            Candidate { name: String::new(), lease: LEASE, clock_error: Duration::ZERO };
        let now = BootTime(state.now);
        let term = state.machine.campaign(now, &candidate).ok()?;
        if state.wins.last().is_some_and(|win| win.term >= term) {
            state.broken.push(names::TERMS);
        }
        state.wins.push(Win { term, until: now.after(LEASE) });
        let leads = Some((term, decides_until(now, LEASE, Duration::ZERO)));
        state.leaders[at].leads = leads;
        if self.together {
            state.leaders[1 - at].leads = leads;
        }
        Some(())
    }

    fn begin(state: &mut State, at: usize) -> Option<()> {
        let read = state.machine.get(&generation_key(), NOW).entry;
        let leader = &mut state.leaders[at];
        let (term, until) = leader.leads?;
        let Work::Ready(attempt) = leader.work.clone() else { return None };
        if BootTime(state.now) >= until {
            return None;
        }
        leader.tries += 1;
        let number = leader.tries;
        let next = read.as_ref().map_or(1, |entry| entry.value[0] + 1);
        let txn = Txn::under(term).put(generation_key(), [next]).put(effect(at, number), [number]);
        let txn = match read {
            Some(entry) => txn.if_unchanged(generation_key(), entry.modified),
            None => txn.if_absent(generation_key()),
        };
        let txn = attempt.txn(txn, [number], 0).unwrap();
        leader.work = Work::Waits(Try { attempt, number, txn });
        Some(())
    }

    /// A commit comes to the store, and the judge looks at it.
    fn arrive(state: &mut State, txn: &Txn) -> Result<Revision, CommitError> {
        let now = BootTime(state.now);
        let before = state.machine.revision();
        let result = state.machine.commit(now, txn);
        match &result {
            Ok(revision) if *revision > before => {
                let leads = |win: &Win| Some(win.term) == txn.term && now < win.until;
                if txn.term.is_some() && !state.wins.last().is_some_and(leads) {
                    state.broken.push(names::FENCED);
                }
            }
            Ok(_) | Err(_) => {}
        }
        if matches!(result, Err(CommitError::Deposed { .. })) {
            state.seen.deposed = true;
        }
        state.seen.full |= matches!(result, Err(CommitError::Full(_)));
        result
    }

    fn answered(&self, state: &mut State, at: usize) -> Option<()> {
        let Work::Waits(tried) = state.leaders[at].work.clone() else { return None };
        let result = Self::arrive(state, &tried.txn);
        let later = tried.attempt != self.request(at);
        let leader = &mut state.leaders[at];
        match result {
            Ok(_) => {
                state.seen.next_attempt_done |= later;
                leader.work = Work::Done;
            }
            Err(CommitError::Conflict(conflict)) if conflict.key == tried.attempt.key() => {
                let settling = self.settling(&tried.attempt);
                leader.work = Work::Settles(tried, Box::new(settling));
            }
            Err(error) => {
                if matches!(error, CommitError::Deposed { .. }) {
                    leader.leads = None;
                }
                leader.never.push(tried.number);
                leader.work = Work::Ready(tried.attempt);
            }
        }
        Some(())
    }

    fn lost(&self, state: &mut State, at: usize, arrives: bool) -> Option<()> {
        let Work::Waits(tried) = state.leaders[at].work.clone() else { return None };
        if arrives {
            drop(Self::arrive(state, &tried.txn));
        } else if state.strays.len() < self.strays {
            state.strays.push(tried.txn.clone());
        } else {
            return None;
        }
        let settling = self.settling(&tried.attempt);
        state.leaders[at].work = Work::Settles(tried, Box::new(settling));
        Some(())
    }

    fn settle(&self, state: &mut State, at: usize, lost: bool) -> Option<()> {
        let Work::Settles(tried, mut settling) = state.leaders[at].work.clone() else {
            return None;
        };
        let settled = match settling.step(0) {
            Step::Read(_) if lost => return None,
            Step::Read(key) => {
                let read = state.machine.get(&key, NOW);
                settling.read(&read).unwrap()
            }
            Step::Commit(txn) if lost => {
                if state.strays.len() == self.strays {
                    return None;
                }
                state.strays.push(txn);
                settling.committed(Err(CommitError::Unknown("lost".to_owned()))).unwrap()
            }
            Step::Commit(txn) => {
                let result = Self::arrive(state, &txn);
                // The store is full: nothing is settled, and this is the end of the way.
                settling.committed(result).ok()?
            }
        };
        let leader = &mut state.leaders[at];
        leader.work = match settled {
            None => Work::Settles(tried, settling),
            Some(Settled::Happened { .. }) => {
                state.seen.settled_happened = true;
                Work::Done
            }
            Some(Settled::Never(next)) => {
                state.seen.settled_never = true;
                leader.never.push(tried.number);
                Work::Ready(next)
            }
        };
        Some(())
    }
}

impl Scenario {
    /// Effects of what this leader is to do.
    fn effects(&self, state: &State, at: usize) -> usize {
        there(state).filter(|(leader, _)| !self.together || *leader == at).count()
    }

    fn once(&self, state: &State) -> bool {
        (0..2).all(|at| self.effects(state, at) <= 1)
    }

    /// Who says that it is done is right.
    fn done(&self, state: &State) -> bool {
        let leaders = state.leaders.iter().enumerate();
        let mut done = leaders.filter(|(_, leader)| leader.work == Work::Done);
        done.all(|(at, _)| self.effects(state, at) == 1)
    }
}

impl Model for Scenario {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let machine = Machine::new(Limits { bytes_max: self.bytes_max, ..Limits::default() });
        let machine = match self.planted {
            Some(bug) => machine.with_bug(bug),
            None => machine,
        };
        let leader = |at| {
            let work = Work::Ready(self.request(at));
            Leader { leads: None, work, tries: 0, never: Vec::new() }
        };
        vec![State {
            machine,
            now: 0,
            leaders: [leader(0), leader(1)],
            strays: Vec::new(),
            wins: Vec::new(),
            broken: Vec::new(),
            seen: Seen::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.ticks {
            actions.push(Action::Tick);
        }
        for (at, leader) in state.leaders.iter().enumerate() {
            match &leader.work {
                Work::Ready(_) if leader.leads.is_some() && leader.tries < self.tries => {
                    actions.push(Action::Try(at));
                }
                Work::Waits(_) => {
                    actions.push(Action::Answered(at));
                    let lost = |arrives| Action::Lost { leader: at, arrives };
                    actions.extend([true, false].map(lost));
                }
                Work::Settles(..) => {
                    let settle = |lost| Action::Settle { leader: at, lost };
                    actions.extend([true, false].map(settle));
                }
                Work::Ready(_) | Work::Done => {}
            }
            if matches!(leader.work, Work::Ready(_)) {
                actions.push(Action::Campaign(at));
            }
        }
        actions.extend((0..state.strays.len()).map(Action::Stray));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => state.now += 1,
            Action::Campaign(at) => self.campaign(&mut state, at)?,
            Action::Try(at) => Self::begin(&mut state, at)?,
            Action::Answered(at) => self.answered(&mut state, at)?,
            Action::Lost { leader, arrives } => self.lost(&mut state, leader, arrives)?,
            Action::Settle { leader, lost } => self.settle(&mut state, leader, lost)?,
            Action::Stray(at) => {
                let txn = state.strays.remove(at);
                let result = Self::arrive(&mut state, &txn);
                state.seen.stray_refused |= result.is_err();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(names::FENCED, |_, state: &State| unbroken(state, names::FENCED)),
            Property::always(names::TERMS, |_, state: &State| unbroken(state, names::TERMS)),
            Property::always(names::CHAIN, |_, state: &State| chain(state)),
            Property::always(names::WHOLE, |_, state: &State| whole(state)),
            Property::always(names::DONE, Self::done),
            Property::always(names::NEVER, |_, state: &State| never(state)),
            Property::always(names::ONCE, Self::once),
        ];
        if self.planted.is_none() && self.bytes_max > 1000 {
            let terms = if self.together { "leads" } else { "both lead" };
            properties.extend([
                Property::sometimes(terms, |model: &Self, state: &State| {
                    state.wins.len() == if model.together { 1 } else { 2 }
                }),
                Property::sometimes("deposed", |_, state: &State| state.seen.deposed),
                Property::sometimes("never", |_, state: &State| state.seen.settled_never),
                Property::sometimes("happened", |_, state: &State| state.seen.settled_happened),
                Property::sometimes("late", |_, state: &State| state.seen.stray_refused),
                Property::sometimes("again", |_, state: &State| state.seen.next_attempt_done),
            ]);
        } else if self.planted.is_none() {
            properties.push(Property::sometimes("full", |_, state: &State| state.seen.full));
        }
        properties
    }
}

fn unbroken(state: &State, rule: &str) -> bool {
    !state.broken.contains(&rule)
}

/// Each commit that writes the generation has the next one.
fn chain(state: &State) -> bool {
    let mut last = 0;
    state.machine.commits_after(Revision::ZERO).all(|batch| {
        batch.changes.iter().all(|change| match change {
            Change::Put(entry) if entry.key == generation_key() => {
                let next = entry.value[0] == last + 1;
                last = entry.value[0];
                next
            }
            _ => true,
        })
    })
}

fn there(state: &State) -> impl Iterator<Item = (usize, u8)> {
    let all = (0..2).flat_map(|leader| (1..=9).map(move |number| (leader, number)));
    all.filter(|(leader, number)| state.machine.get(&effect(*leader, *number), NOW).entry.is_some())
}

/// Every object is of a revision that there is, and the effect is there if and only if the generation is.
fn whole(state: &State) -> bool {
    let generation = state.machine.get(&generation_key(), NOW).entry;
    let newest = generation.as_ref().map_or(Revision::ZERO, |entry| entry.modified);
    newest <= state.machine.revision() && (there(state).count() > 0) == generation.is_some()
}

fn never(state: &State) -> bool {
    there(state).all(|(leader, number)| !state.leaders[leader].never.contains(&number))
}
