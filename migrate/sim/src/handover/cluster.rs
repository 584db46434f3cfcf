//! One state of the model, and what may happen next.

use super::scenario::{Scenario, Step};
use super::slice::{Done, Event, Slice, State, Vcpu};
use migrate::Placement;
use migrate::handover::{Coordinator, Effect, Input, Member, Message, Verdict};
use stateright::{Model, Property};
use std::collections::{BTreeMap, VecDeque};
use wire::{Epoch, SliceId, VcpuId};

type Frame = Message<Event, State>;

/// The one that moves.
const VCPU: VcpuId = VcpuId(0);
/// Slices of the model.
pub(crate) const SLICES: u16 = 3;

/// What went wrong, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A message came that cannot come.
    Protocol,
    /// A slice was to do what it cannot do: run a vCPU that it does not have, or deliver to it.
    Shell,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The coordinator goes on to the next step of the scenario.
    Next,
    /// It gives up, and what says so overtakes what it has sent last of that move.
    Overtake,
    /// The oldest message between two slices arrives.
    Arrive(u16, u16),
    /// A slice does the next thing.
    Act(u16),
    /// It tries, and cannot.
    Fail(u16),
    /// A slice's sender sends.
    Send(u16),
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    coordinator: Coordinator,
    placement: Placement,
    slices: Vec<Slice>,
    channels: BTreeMap<(u16, u16), VecDeque<Frame>>,
    /// Steps of the scenario done.
    at: usize,
    /// Things that still may fail.
    failures: u8,
    violation: Option<Violation>,
}

impl Cluster {
    fn new(scenario: &Scenario) -> Self {
        let members: Vec<SliceId> = (0..SLICES).map(SliceId).collect();
        let place = SliceId(scenario.start);
        let epoch = Epoch(1);
        let placement = Placement::new(epoch, members.clone(), vec![place], Vec::new(), Vec::new())
            .expect("a placement of one vCPU");
        let slice = |local: SliceId| {
            let all = members.iter().copied().collect();
            let member = Member::new(local, VCPU, (SliceId(0), all), (place, epoch));
            let member = match scenario.planted {
                Some(bug) => member.plant(bug),
                None => member,
            };
            let vcpu = if local == place { Vcpu::Running(Vec::new()) } else { Vcpu::Elsewhere };
            Slice { member, vcpu, todo: VecDeque::new(), sent: 0 }
        };
        Self {
            coordinator: Coordinator::new(),
            slices: members.iter().copied().map(slice).collect(),
            placement,
            channels: BTreeMap::new(),
            at: 0,
            failures: scenario.failures,
            violation: None,
        }
    }

    fn post(&mut self, from: u16, to: SliceId, frame: Frame) {
        self.channels.entry((from, to.0)).or_default().push_back(frame);
    }

    fn tell(&mut self, slice: u16, input: Input<Event, State>) {
        match self.slices[usize::from(slice)].member.step(input) {
            Ok(effects) => {
                for effect in effects {
                    match effect {
                        Effect::Send { to, message } => self.post(slice, to, message),
                        other => self.slices[usize::from(slice)].todo.push_back(other),
                    }
                }
            }
            Err(_) => self.violation = Some(Violation::Protocol),
        }
    }

    fn judge(&mut self, verdict: Verdict<Event, State>) {
        if let Some(next) = verdict.placement {
            self.placement = next;
        }
        for (to, message) in verdict.messages {
            self.post(0, to, message);
        }
    }

    /// Gives up. Each message leaves before the last one to the same slice, if that begins something and is not to this slice itself.
    fn overtake(&mut self) {
        self.at += 1;
        for (to, message) in self.coordinator.give_up("asked").messages {
            let sent = self.channels.entry((0, to.0)).or_default();
            let begins = |last: &Frame| matches!(last, Message::Prepare(_) | Message::Stop(_));
            let overtaken = if to.0 > 0 { sent.pop_back_if(|last| begins(last)) } else { None };
            sent.push_back(message);
            sent.extend(overtaken);
        }
    }

    fn arrive(&mut self, from: u16, to: u16) {
        let Some(queue) = self.channels.get_mut(&(from, to)) else { return };
        let frame = queue.pop_front();
        if queue.is_empty() {
            self.channels.remove(&(from, to));
        }
        let Some(frame) = frame else { return };
        let for_coordinator = matches!(
            frame,
            Message::Ready(_) | Message::Installed(_) | Message::Failed(..) | Message::Settled(_)
        );
        if !for_coordinator {
            return self.tell(to, Input::Message { from: SliceId(from), message: frame });
        }
        let placement = self.placement.clone();
        match self.coordinator.message(SliceId(from), &frame, &placement) {
            Ok(verdict) => self.judge(verdict),
            Err(_) => self.violation = Some(Violation::Protocol),
        }
    }

    fn next(&mut self, step: Step) {
        self.at += 1;
        match step {
            Step::Move(to) => {
                // It may be there already, if an earlier move was given up or not.
                if let Ok(verdict) = self.coordinator.begin(VCPU, SliceId(to), &self.placement) {
                    self.judge(verdict);
                }
            }
            Step::GiveUp => {
                let verdict = self.coordinator.give_up("asked");
                self.judge(verdict);
            }
        }
    }

    fn act(&mut self, slice: u16, fails: bool) {
        if fails {
            self.failures -= 1;
        }
        match self.slices[usize::from(slice)].act(fails) {
            Done::Nothing => {}
            Done::Tell(input) => self.tell(slice, input),
            Done::Wrong => self.violation = Some(Violation::Shell),
        }
    }

    fn runners(&self) -> usize {
        self.slices.iter().filter(|slice| slice.is_running()).count()
    }

    /// Nothing is on its way or to be done, unless the coordinator begins something.
    fn is_quiet(&self, scenario: &Scenario) -> bool {
        self.channels.is_empty()
            && self.slices.iter().all(|slice| slice.todo.is_empty())
            && self.slices.iter().map(|slice| slice.sent).eq(scenario.events)
    }

    /// What the vCPU has got, wherever it is.
    fn states(&self) -> impl Iterator<Item = &State> {
        self.slices.iter().filter_map(|slice| match &slice.vcpu {
            Vcpu::Running(state) | Vcpu::Stopped(state) => Some(state),
            Vcpu::Elsewhere => None,
        })
    }

    /// Whether each sender's events are there once and in order, from the first on.
    fn in_order(&self) -> bool {
        self.states().all(|state| {
            (0..SLICES).map(SliceId).all(|sender| {
                let numbers = state.iter().filter(|Event(from, _)| *from == sender);
                numbers.map(|Event(_, number)| *number).eq(0..u8::try_from(
                    state.iter().filter(|Event(from, _)| *from == sender).count(),
                )
                .unwrap_or(u8::MAX))
            })
        })
    }
}

impl Model for Scenario {
    type State = Cluster;
    type Action = Action;

    fn init_states(&self) -> Vec<Cluster> {
        vec![Cluster::new(self)]
    }

    fn actions(&self, state: &Cluster, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        match self.steps.get(state.at) {
            Some(Step::Move(_)) if state.coordinator.current().is_none() => {
                actions.push(Action::Next);
            }
            Some(Step::GiveUp) => {
                actions.push(Action::Next);
                if self.overtakes {
                    actions.push(Action::Overtake);
                }
            }
            _ => {}
        }
        actions.extend(state.channels.keys().map(|(from, to)| Action::Arrive(*from, *to)));
        for (at, slice) in (0..SLICES).zip(&state.slices) {
            if let Some(effect) = slice.todo.front() {
                actions.push(Action::Act(at));
                let may_fail =
                    matches!(effect, Effect::Prepare(_) | Effect::Stop(_) | Effect::Install(..));
                if may_fail && state.failures > 0 {
                    actions.push(Action::Fail(at));
                }
            }
            if slice.sent < self.events[usize::from(at)] {
                actions.push(Action::Send(at));
            }
        }
    }

    fn next_state(&self, last: &Cluster, action: Action) -> Option<Cluster> {
        let mut state = last.clone();
        match action {
            Action::Next => state.next(self.steps[state.at]),
            Action::Overtake => state.overtake(),
            Action::Arrive(from, to) => state.arrive(from, to),
            Action::Act(slice) => state.act(slice, false),
            Action::Fail(slice) => state.act(slice, true),
            Action::Send(slice) => {
                let sender = &mut state.slices[usize::from(slice)];
                let event = Event(SliceId(slice), sender.sent);
                sender.sent += 1;
                state.tell(slice, Input::Local(event));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(names::POSSIBLE, |_, state: &Cluster| state.violation.is_none()),
            Property::always(names::ONE_RUNNER, |_, state: &Cluster| state.runners() < 2),
            Property::always(names::IN_ORDER, |_, state: &Cluster| state.in_order()),
            Property::always(names::COMPLETE, |scenario: &Scenario, state: &Cluster| {
                let all: usize = scenario.events.iter().copied().map(usize::from).sum();
                let complete = || state.states().all(|state| state.len() == all);
                let settled = || state.slices.iter().all(|slice| slice.member.is_settled());
                !state.is_quiet(scenario) || (state.runners() == 1 && complete() && settled())
            }),
            Property::always(names::AGREED, |scenario: &Scenario, state: &Cluster| {
                let place = state.placement.slice_of(VCPU);
                let agree = |slice: &Slice| Some(slice.member.place()) == place;
                !state.is_quiet(scenario) || state.slices.iter().all(agree)
            }),
            Property::always(names::ENDS, |scenario: &Scenario, state: &Cluster| {
                !state.is_quiet(scenario) || state.coordinator.current().is_none()
            }),
            Property::sometimes(names::MOVED, |_, state: &Cluster| state.placement.epoch().0 > 1),
        ]
    }
}

/// The properties.
pub mod names {
    /// No message comes that cannot come, and no slice is asked for what it cannot do.
    pub const POSSIBLE: &str = "only what is possible happens";
    /// The vCPU runs on one slice at most.
    pub const ONE_RUNNER: &str = "one runner";
    /// What a sender sends arrives once and in order.
    pub const IN_ORDER: &str = "each sender's events arrive once and in order";
    /// In the end the vCPU runs and has everything.
    pub const COMPLETE: &str = "in the end the vCPU runs and has all events";
    /// In the end all slices know where it is.
    pub const AGREED: &str = "in the end all slices know the place";
    /// No move goes on for ever.
    pub const ENDS: &str = "each move ends";
    /// The model does move it.
    pub const MOVED: &str = "the vCPU moves";
}
