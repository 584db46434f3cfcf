//! What may happen in such a world, and what must hold.

use super::*;
use ::state::Vm;
use stateright::{Model, Property};

/// Longer than the lease of a host.
const STALL_MS: u64 = 11_000;
/// So many.
const STALLS: u8 = 2;

impl World {
    /// Of a leader that hosts answer.
    fn of_hosts() -> Vec<Property<Self>> {
        vec![
            Property::always(LEFT_ALONE, |_, state: &State| !state.broken.contains(LEFT_ALONE)),
            Property::always(STAYS, |world: &Self, state: &State| {
                let runs = |vm: &Vm| vm.life == 1 && vm.observed.state == VmState::Running;
                world.kind != Kind::Stalls || state.vm().is_some_and(runs)
            }),
            Property::always(OUTLIVES, |world: &Self, state: &State| {
                let is_left = world.kind == Kind::LostHost && !state.has_died && state.asked == 0;
                let is_first = state.vm().is_some_and(|vm| vm.life == 1);
                !is_left || (is_first && state.operations().next().is_none())
            }),
        ]
    }

    /// What the model does reach, or it proves nothing.
    fn reached(&self) -> Vec<Property<Self>> {
        let mut all = Vec::new();
        if self.kind == Kind::SickHost {
            all.push(Property::sometimes("a start is undone", |_, state: &State| {
                state.vm().is_some_and(|vm| vm.life > 1)
            }));
        } else {
            all.push(Property::sometimes("a VM runs", |_, state: &State| {
                state.vm().is_some_and(|vm| vm.observed.state == VmState::Running)
            }));
        }
        if matches!(self.kind, Kind::Moves | Kind::MovedPartly | Kind::Joins) {
            all.push(Property::sometimes("a slice has moved", |_, state: &State| {
                state.is_quiet() && state.operations().next().is_none() && {
                    let mut all = state.store.values();
                    let left =
                        |it: &Assignment| it.slices.iter().all(|part| part.host != name("b"));
                    all.any(|it| matches!(it, Stored::Assignment(it) if left(it)))
                }
            }));
            all.push(Property::sometimes("a VM is deleted while it moves", |_, state: &State| {
                state.asked > 0 && state.vm().is_none() && state.is_quiet()
            }));
        }
        if matches!(self.kind, Kind::MoveRefused | Kind::JoinRefused | Kind::JoinCutOff) {
            all.push(Property::sometimes("a move is undone", |_, state: &State| {
                let mut all = state.store.values();
                all.any(|it| {
                    matches!(it, Stored::Operation(it) if it.verb == Verb::Move
                    && matches!(it.result, Some(OperationResult::Failed { .. })))
                })
            }));
        }
        all.extend(self.reached_by_faults());
        if self.kind == Kind::LostHost {
            all.push(Property::sometimes(
                "a VM of a lost host has another life",
                |_, state: &State| {
                    state.silent.is_some() && state.vm().is_some_and(|vm| vm.life > 1)
                },
            ));
        }
        if self.kind == Kind::WrittenDown {
            all.push(Property::sometimes("a lost VM has gone on", |_, state: &State| {
                state.lost.is_some()
                    && state
                        .vm()
                        .is_some_and(|vm| vm.life > 1 && vm.observed.state == VmState::Running)
            }));
            all.push(Property::sometimes(
                "it is written down, and the one before is gone",
                |_, state: &State| {
                    let files = state.hosts.values().next().map_or(0, |host| host.files.len());
                    let mut kept = state.checkpoints();
                    files == 1 && kept.next().is_some_and(|it| !it.released.is_empty())
                },
            ));
        }
        if matches!(self.kind, Kind::OneHost | Kind::TwoHosts | Kind::GoesAway) {
            all.push(Property::sometimes("a VM is deleted", |world: &Self, state: &State| {
                let deletes = u8::from(!world.is_begun());
                let is_gone = state.vm().is_none() && state.is_quiet();
                state.asked > deletes && is_gone && state.first.is_some()
            }));
        }
        if self.kind == Kind::OneHost {
            all.push(Property::sometimes("another life runs", |_, state: &State| {
                state.running().any(|(life, is_bootstrap)| life > 1 && is_bootstrap)
            }));
        }
        all
    }

    fn reached_by_faults(&self) -> Vec<Property<Self>> {
        vec![match self.kind {
            Kind::JoinCutOff => {
                Property::sometimes("what could not join is found", |_, state: &State| {
                    !state.strays.is_empty() && state.is_quiet() && !state.has_strays()
                })
            }
            Kind::OlderStore => Property::sometimes(
                "a VM that the store does not know of runs on",
                |_, state: &State| {
                    let runs = state.running().any(|(life, _)| life > 1);
                    let is_known = state.placements().next().is_some();
                    state.is_old && state.is_quiet() && runs && !is_known && state.ticks > 3
                },
            ),
            Kind::NewJournal => Property::sometimes(
                "a VM whose host is not believed waits for it, also where it is to be no more",
                |_, state: &State| {
                    let is_unknown = state.hosts.values().any(|host| !host.unknown.is_empty());
                    let waits = state.asked > 0 && state.vm().is_some();
                    is_unknown && waits && state.ticks > 2 && state.is_quiet()
                },
            ),
            Kind::GoesAway => {
                Property::sometimes("it waits for the other host", |_, state: &State| {
                    let waits = |vm: &Vm| vm.observed.why.contains("waits for host b");
                    state.silent.is_some() && state.vm().is_some_and(waits)
                })
            }
            Kind::Stalls => {
                Property::sometimes("it was deaf for two leases", |_, state: &State| {
                    state.stalls == STALLS && state.ticks > 2 && state.is_quiet()
                })
            }
            _ => Property::sometimes("a leader that died is followed", |_, state: &State| {
                state.term > Term(1) && state.is_quiet() && state.vm().is_some()
            }),
        }]
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let cores = match self.kind {
            // The other one is the better fit.
            Kind::Foreign => 4,
            kind if kind.is_move() && !kind.joins() => 6,
            _ => 2,
        };
        let hosts = ["a", "b"].map(|host| {
            let cores = if host == "a" { cores } else { 2 };
            (name(host), Host::named(host, cores, 4096))
        });
        let mut hosts = BTreeMap::from(hosts);
        hosts.values_mut().next().expect("a host").mood = match self.kind {
            Kind::MoveRefused => Mood::Refuses,
            Kind::MovedPartly => Mood::Partly,
            Kind::JoinRefused | Kind::JoinCutOff => Mood::RefusesToJoin,
            Kind::GoesAway => Mood::CannotDelete,
            _ => Mood::Willing,
        };
        let last = hosts.values_mut().last().expect("a host");
        last.is_sick = self.kind == Kind::SickHost;
        last.term = if self.kind == Kind::Foreign { Term(99) } else { Term(0) };
        let machine = Some(self.begin(&BTreeMap::new(), Term(1), Time::default()));
        // Nothing else fails where a host is cut off.
        let faults = if self.kind == Kind::JoinCutOff { FAULTS } else { 0 };
        let mut state = State::new(machine, hosts, faults);
        for host in ["a", "b"] {
            let ask = Ask::Register { name: name(host), agent: format!("https://{host}:7000") };
            let ticket = Ticket(99);
            state.hear(Input::Asked { ticket, request: None, validate_only: false, ask });
        }
        state.hear(Input::Tick);
        while let Some(effect) = state.effects.pop_front() {
            state.carry(effect);
        }
        if self.kind.is_move() {
            state.up_to_a_move(self.kind.joins());
        }
        match self.kind {
            Kind::WrittenDown => state.up_to_a_checkpoint(false),
            Kind::GoesAway => state.up_to_a_checkpoint(true),
            Kind::LostHost | Kind::Stalls | Kind::NewJournal => state.up_to_running(),
            Kind::OlderStore => {
                let mut other = state.clone();
                other.up_to_copy(false);
                state.up_to_copy(true);
                return vec![state, other];
            }
            _ => {}
        }
        state.looks_take_time = self.kind == Kind::Stalls;
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let stalls = self.kind == Kind::Stalls;
        let new_journal = self.kind == Kind::NewJournal;
        let may_fail = state.faults < FAULTS && !stalls && !new_journal;
        actions.extend((stalls && state.stalls < STALLS).then_some(Action::Stall));
        if state.machine.is_none() {
            actions.push(Action::Begin);
        } else if state.effects.is_empty() {
            let may_ask = self.kind != Kind::LostHost || (state.has_left && state.silent.is_some());
            if may_ask && self.ask(state.asked).is_some() {
                actions.push(Action::Ask);
            }
            for id in state.network.keys() {
                actions.push(Action::Deliver(*id));
                if may_fail {
                    actions.extend([Action::LoseAnswer(*id), Action::LoseCall(*id)]);
                }
            }
            // Hosts answer before, and what has come is heard before.
            let is_heard = !stalls || state.network.is_empty();
            actions.extend((state.ticks < self.ticks() && is_heard).then_some(Action::Tick));
            actions.extend((may_fail).then_some(Action::Depose));
            let is_old = self.kind == Kind::OlderStore;
            let may_lose = (self.kind == Kind::WrittenDown && state.lost.is_none()) || is_old;
            let runs = state.running().any(|(life, _)| life == 1);
            let is_quiet = state.network.is_empty() && state.late.is_empty();
            actions.extend((is_old && is_quiet && state.copy.is_some()).then_some(Action::GoBack));
            actions.extend((may_lose && runs).then_some(Action::Lose));
            // Before anybody is missed: what leaves later is taken for what ran when its host was heard of last (`stop.rs`).
            let is_first = state.hosts.values().all(|host| !host.agent.ends_with('+'));
            if new_journal && is_first {
                actions.extend(state.hosts.keys().cloned().map(Action::LoseJournal));
            }
            let may_leave = self.kind == Kind::LostHost && state.silent.is_none();
            let companion = state.running().any(|(life, is_bootstrap)| life == 1 && !is_bootstrap);
            actions.extend((may_leave && companion).then_some(Action::Leave));
            let may_die = self.kind == Kind::LostHost && state.silent.is_some();
            if may_die && !state.has_died && !state.has_left && runs {
                actions.extend(state.hosts.keys().cloned().map(Action::Die));
            }
            if state.silent.is_some() {
                actions.extend((self.kind != Kind::LostHost).then_some(Action::Heal));
            } else if self.kind == Kind::JoinCutOff {
                actions.push(Action::Partition(name("c")));
            } else if may_fail && self.kind == Kind::GoesAway {
                actions.push(Action::Partition(name("b")));
            } else if (may_fail && self.kind == Kind::OneHost) || self.kind == Kind::LostHost {
                actions.extend(state.hosts.keys().cloned().map(Action::Partition));
            }
        } else {
            actions.push(Action::Carry);
        }
        if state.machine.is_some() && may_fail {
            actions.push(Action::Kill);
        }
        actions.extend((0..state.late.len()).map(Action::DeliverLate));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Ask => {
                let (request, ask) = self.ask(next.asked)?;
                let again = next.asked > 0 && self.kind == Kind::Twice;
                let ticket = Ticket(if again { 2 } else { u64::from(next.asked) });
                next.asked += 1;
                next.hear(Input::Asked { ticket, request, validate_only: false, ask });
            }
            Action::Carry => {
                let effect = next.effects.pop_front()?;
                next.carry(effect);
            }
            Action::Deliver(id) => {
                let (host, call) = next.network.remove(&id)?;
                let result = next.reach(&host, &call);
                next.news(id, result);
            }
            Action::LoseAnswer(id) => {
                next.faults += 1;
                next.strays.clear();
                let (host, call) = next.network.remove(&id)?;
                let _ = next.reach(&host, &call);
                next.news(id, Err(Failure::Unreachable("no answer".to_owned())));
            }
            Action::LoseCall(id) => {
                next.faults += 1;
                next.strays.clear();
                next.network.remove(&id)?;
                next.news(id, Err(Failure::Unreachable("lost".to_owned())));
            }
            Action::DeliverLate(number) => {
                let (term, host, call) = next.late.remove(number);
                next.is_room_in_doubt |= matches!(call, Call::Reserve { .. });
                if next.silent.as_ref() != Some(&host) {
                    let _ = next.hosts.get_mut(&host)?.call(term, &call);
                    next.after_call(&host);
                }
            }
            Action::Tick => {
                // Who has not joined is missed by nobody.
                next.pass(self.kind != Kind::JoinCutOff);
                next.hear(Input::Tick);
            }
            Action::Kill => {
                next.faults += 1;
                next.drop_machine();
            }
            Action::Begin => {
                next.term.0 += 1;
                next.machine = Some(self.begin(&next.store, next.term, next.now()));
            }
            Action::Partition(host) => {
                next.faults += u8::from(!matches!(self.kind, Kind::LostHost | Kind::JoinCutOff));
                next.strays.clear();
                // A lost host is not asked to give room back: what it keeps expires.
                next.is_room_in_doubt = true;
                next.silent = Some(host);
            }
            Action::Heal => next.silent = None,
            Action::Stall => {
                next.stalls += 1;
                next.before += STALL_MS;
            }
            Action::Lose => next.lose(),
            Action::GoBack => next.go_back(),
            Action::Leave => next.leave(),
            Action::Die(host) => next.die(&host),
            Action::Depose => next.depose(),
            Action::LoseJournal(host) => next.lose_journal(&host),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always(FORMS, |_, state: &State| !state.broken.contains(FORMS)),
            Property::always(DEPOSED, |_, state: &State| !state.broken.contains(DEPOSED)),
            Property::always(SAME_ANSWER, |_, state: &State| !state.broken.contains(SAME_ANSWER)),
            Property::always(BOUNDED, |_, state: &State| !state.broken.contains(BOUNDED)),
            Property::always(ASKED_ONCE, |_, state: &State| {
                let asked = || state.network.values();
                asked().enumerate().all(|(at, one)| asked().skip(at + 1).all(|it| it != one))
            }),
            Property::always(TAKEN, |_, state: &State| !state.broken.contains(TAKEN)),
            Property::always(SETTLED, |_, state: &State| {
                let goes_on = state.operations().next().is_some() || !state.late.is_empty();
                goes_on || !state.is_quiet() || state.is_settled() || state.is_old
            }),
            Property::always(NO_STRAY, |_, state: &State| {
                !state.is_quiet() || state.operations().next().is_some() || !state.has_strays()
            }),
            Property::always(WRITTEN, |_, state: &State| {
                let files = state.hosts.values().next().map(|host| &host.files);
                // Of a VM that is to be no more the files go first.
                let stays = state.vm().is_some_and(|vm| !vm.desired.deleted);
                let newest = state.checkpoints().next_back().filter(|_| stays);
                newest.is_none_or(|it| files.is_some_and(|files| files.contains(&it.path)))
            }),
            Property::always(LEFT_NOTHING, |world: &Self, state: &State| {
                let mut files = state.hosts.values().flat_map(|host| &host.files);
                let is_known = state.vm().is_some() && state.checkpoints().next().is_some();
                world.kind != Kind::GoesAway || is_known || files.next().is_none()
            }),
            Property::always(GOES_ON_FROM, |_, state: &State| {
                state.goes_on_from_what_was_written()
            }),
            Property::always(ONE_BOOTSTRAP, |_, state: &State| {
                state.running().filter(|(_, is_bootstrap)| *is_bootstrap).count() <= 1
            }),
            Property::always(OVER, |_, state: &State| {
                // What was confirmed and is not there any more was deleted.
                let none = if state.first.is_some() { u64::MAX } else { 0 };
                let life = state.vm().map_or(none, |vm| vm.life);
                state.running().all(|(other, _)| other >= life)
            }),
            Property::always(CONFIRMED, |world: &Self, state: &State| {
                let deletes = if world.is_begun() { 0 } else { 1 };
                let is_deleted = state.asked > deletes && world.kind != Kind::Twice;
                state.first.is_none() || is_deleted || state.vm().is_some()
            }),
            Property::always(ROOM, |_, state: &State| {
                let kept = state.hosts.values().any(|host| !host.kept.is_empty());
                let is_free = state.operations().next().is_none() && !state.is_room_in_doubt;
                !(kept && is_free && state.is_quiet() && state.late.is_empty())
            }),
            Property::always(GOES_ON, |_, state: &State| {
                let machine = state.machine.as_ref().filter(|_| state.effects.is_empty());
                let known = |it: &Orchestrator| {
                    it.term() < state.term
                        || state.operations().all(|operation| it.going_on(&operation.vm).is_some())
                };
                machine.is_none_or(known)
            }),
        ];
        all.extend(Self::of_hosts());
        all.extend(self.reached());
        all
    }
}
