//! One state of the model, and what may happen next.

use super::scenario::Scenario;
use super::slice::{FIRST, Frame, LEAVER, SECOND, SLICES, Slice};
use migrate::cut::{Coordinator, DeviceMove, Message, News, Refusal, Step, Verdict};
use stateright::{Model, Property};
use std::collections::{BTreeMap, VecDeque};
use wire::SliceId;

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A cut begins.
    Begin,
    /// The cut is given up, or ends.
    GoOn,
    /// The last slice, which has nothing any more, is to leave.
    Leave,
    /// The last slice, which is none of the VM, is to join.
    Join,
    /// The second slice is to coordinate.
    HandOver,
    /// The second slice is to have the device of the last one.
    MoveDevice,
    /// All slices are to take their forms for a checkpoint.
    Capture,
    /// A slice of a VM that is restored has what it had.
    Start(u16),
    /// The oldest frame between two slices arrives.
    Arrive(u16, u16),
    /// A slice does what it is asked for.
    Act(u16),
    /// A slice's vCPU sends or calls, or a queue finds a broken ring.
    Send(u16, usize),
    /// A slice's device thread takes a job.
    Work(u16),
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    /// That of the first slice, and that of the second if it is known to one slice at least.
    first: Coordinator,
    second: Option<Coordinator>,
    slices: Vec<Slice>,
    channels: BTreeMap<(u16, u16), VecDeque<Frame>>,
    /// Cuts that are still to begin.
    cuts: u8,
    given_up: bool,
    /// The last slice was to leave.
    leaving: bool,
    /// It was to join, and has.
    joining: bool,
    outside: bool,
    /// Somebody has sent to it without a link.
    lost: bool,
    /// The device was to move.
    moving: bool,
    /// A checkpoint was to be captured.
    capturing: bool,
    /// It was, while a slice had no form for it.
    torn: bool,
}

/// The number of the model's checkpoint.
const CHECKPOINT: u64 = 7;

/// Of the model's device.
const MOVED: DeviceMove = DeviceMove { device: 0, from: SliceId(LEAVER), to: SliceId(SECOND) };

impl Cluster {
    fn new(scenario: &Scenario) -> Self {
        let left = |id: u16| {
            let at = usize::from(id);
            [scenario.interrupts[at], scenario.calls[at], scenario.broken[at]]
        };
        let has_device = if scenario.move_device { LEAVER } else { FIRST };
        let slice = |id| Slice {
            open: id == has_device,
            device_at: has_device,
            cannot_open: scenario.unopenable,
            needs_leaver: scenario.needed && id == 1,
            cannot_coordinate: scenario.unable,
            parted: scenario.join,
            linked: !scenario.join || id == LEAVER,
            refuses: scenario.refused && id == 1,
            absent: scenario.join && id == LEAVER,
            begun: !scenario.restored,
            vcpus: scenario.restored,
            queues: scenario.restored,
            devices: scenario.restored,
            full: scenario.full && id == SECOND,
            ..Slice::new(id, left(id))
        };
        // One that begins knows all.
        let mut slices: Vec<_> = (0..SLICES).map(slice).collect();
        slices[usize::from(LEAVER)].parted = false;
        let mut members = members();
        members.retain(|slice| !scenario.join || slice.0 != LEAVER);
        Self {
            first: scenario.planted(if scenario.restored {
                Coordinator::restored(SliceId(FIRST), members)
            } else {
                Coordinator::new(SliceId(FIRST), members)
            }),
            second: None,
            slices,
            channels: BTreeMap::new(),
            cuts: scenario.cuts,
            given_up: false,
            leaving: false,
            joining: false,
            outside: scenario.join,
            lost: false,
            moving: false,
            capturing: false,
            torn: false,
        }
    }

    /// Who decides, and on which slice.
    fn lead(&self) -> (u16, &Coordinator) {
        self.second.as_ref().map_or((FIRST, &self.first), |second| (SECOND, second))
    }

    fn lead_mut(&mut self) -> (u16, &mut Coordinator) {
        self.second.as_mut().map_or((FIRST, &mut self.first), |second| (SECOND, second))
    }

    /// Of two that there are, the one that has not ended yet.
    fn ending_mut(&mut self) -> (u16, &mut Coordinator) {
        if self.first.is_over() { self.lead_mut() } else { (FIRST, &mut self.first) }
    }

    fn is_at_rest(&self) -> bool {
        self.first.is_at_rest() || self.lead().1.is_at_rest()
    }

    fn post(&mut self, from: u16, frames: Vec<(u16, Frame)>) {
        for (to, frame) in frames {
            self.lost |= to == LEAVER && !self.slices[usize::from(from)].linked;
            if !matches!(frame, Frame::Cut(_) | Frame::State) {
                self.slices[usize::from(from)].sent[usize::from(to)] += 1;
            }
            self.channels.entry((from, to)).or_default().push_back(frame);
        }
    }

    /// Asks the coordinator for something that is done at rest.
    fn decide(
        &mut self,
        ask: impl FnOnce(&mut Coordinator) -> Result<Verdict, Refusal>,
    ) -> Option<()> {
        let (by, coordinator) = self.ending_mut();
        let verdict = ask(coordinator).ok()?;
        self.judge(by, verdict);
        Some(())
    }

    /// The coordinator's own slice hears it by a channel as well.
    fn judge(&mut self, from: u16, verdict: Verdict) {
        self.outside &= !matches!(verdict.news, Some(News::Joined(_)));
        if let Some(News::Captured(number)) = verdict.news {
            let left = |slice: &Slice| slice.id == LEAVER && self.is_let_go();
            let whole = self.members().all(|slice| slice.captured == number || left(slice));
            self.torn |= !whole;
        }
        let frame = |(to, message): (SliceId, Message)| (to.0, Frame::Cut(message));
        self.post(from, verdict.messages.into_iter().map(frame).collect());
    }

    fn arrive(&mut self, from: u16, to: u16) {
        let Some(queue) = self.channels.get_mut(&(from, to)) else { return };
        let frame = queue.pop_front();
        if queue.is_empty() {
            self.channels.remove(&(from, to));
        }
        match frame {
            Some(Frame::Cut(message)) if message.is_asking() => {
                self.slices[usize::from(to)].asked.push((from, message));
            }
            Some(Frame::Cut(message)) => {
                let coordinator =
                    if to == FIRST { Some(&mut self.first) } else { self.second.as_mut() };
                let verdict = coordinator.map(|it| it.message(SliceId(from), message));
                self.judge(to, verdict.unwrap_or_default());
            }
            Some(frame) => {
                let sent = self.slices[usize::from(to)].take(from, &frame);
                self.post(to, sent);
            }
            None => {}
        }
    }

    /// Whether a frame with state of the guest is on its way, or waits for a device thread.
    fn is_anything_in_flight(&self) -> bool {
        let counted = |frame: &Frame| !matches!(frame, Frame::Cut(_) | Frame::State);
        let on_its_way = self.channels.values().flatten().any(counted);
        let busy =
            |slice: &Slice| !slice.jobs.is_empty() || slice.change.is_some() || slice.calling;
        on_its_way || self.slices.iter().any(busy)
    }

    /// The last slice has been told to end, whether it has heard it or not.
    fn is_let_go(&self) -> bool {
        let leaver = &self.slices[usize::from(LEAVER)];
        let asked = leaver.asked.iter().any(|(_, it)| matches!(it, Message::Dismiss(_)));
        let coming = [FIRST, SECOND].map(|from| self.channels.get(&(from, LEAVER)));
        let dismissed = coming.into_iter().flatten().flatten().any(is_dismissal);
        leaver.dismissed || asked || dismissed
    }

    /// The slices of the VM: the last one is none before it has joined.
    fn members(&self) -> impl Iterator<Item = &Slice> {
        self.slices.iter().filter(|slice| !self.outside || slice.id != LEAVER)
    }

    /// Nothing can happen any more but a new cut or the end of this one.
    fn is_quiet(&self) -> bool {
        let can = |slice: &Slice| {
            !slice.begun
                || slice.can_act()
                || slice.can_work()
                || (0..3).any(|it| slice.can_send(it))
        };
        self.channels.is_empty() && !self.slices.iter().any(can)
    }
}

impl Model for Scenario {
    type State = Cluster;
    type Action = Action;

    fn init_states(&self) -> Vec<Cluster> {
        vec![Cluster::new(self)]
    }

    fn actions(&self, state: &Cluster, actions: &mut Vec<Action>) {
        if state.cuts > 0 && state.lead().1.clone().begin().is_ok() {
            actions.push(Action::Begin);
        }
        let asking = state.first.asking().or_else(|| state.lead().1.asking()).is_some();
        if state.is_at_rest() || self.give_up && asking && !state.given_up {
            actions.push(Action::GoOn);
        }
        // It has nothing any more: it sends nothing, and waits for nothing.
        let leaver = &state.slices[usize::from(LEAVER)];
        let empty = leaver.left == [0; 3] && !leaver.calling;
        let coordinator = if state.first.is_over() { state.lead().1 } else { &state.first };
        let leaves = coordinator.clone().part_with(SliceId(LEAVER)).is_ok();
        if self.leave && !state.leaving && leaves && empty {
            actions.push(Action::Leave);
        }
        if self.join && !state.joining && coordinator.clone().take_in(SliceId(LEAVER)).is_ok() {
            actions.push(Action::Join);
        }
        let moves = coordinator.clone().move_device(MOVED).is_ok();
        if self.move_device && !state.moving && moves {
            actions.push(Action::MoveDevice);
        }
        if self.capture && !state.capturing && coordinator.clone().capture(CHECKPOINT).is_ok() {
            actions.push(Action::Capture);
        }
        if self.hand_over && state.first.clone().hand_over(SliceId(SECOND)).is_ok() {
            actions.push(Action::HandOver);
        }
        actions.extend(state.channels.keys().map(|(from, to)| Action::Arrive(*from, *to)));
        for slice in &state.slices {
            if !slice.begun {
                actions.push(Action::Start(slice.id));
            }
            if slice.can_act() {
                actions.push(Action::Act(slice.id));
            }
            if slice.can_work() {
                actions.push(Action::Work(slice.id));
            }
            let kinds = (0..3).filter(|kind| slice.can_send(*kind));
            actions.extend(kinds.map(|kind| Action::Send(slice.id, kind)));
        }
    }

    fn next_state(&self, last: &Cluster, action: Action) -> Option<Cluster> {
        let mut state = last.clone();
        match action {
            Action::Begin => {
                state.cuts -= 1;
                let (by, coordinator) = state.lead_mut();
                let verdict = coordinator.begin().ok()?;
                state.judge(by, verdict);
            }
            Action::GoOn => {
                state.given_up |= !state.is_at_rest();
                let (by, coordinator) = state.ending_mut();
                let verdict = coordinator.go_on("asked");
                state.judge(by, verdict);
            }
            Action::Leave => {
                state.leaving = true;
                state.decide(|it| it.part_with(SliceId(LEAVER)))?;
            }
            Action::Join => {
                state.joining = true;
                state.decide(|it| it.take_in(SliceId(LEAVER)))?;
            }
            Action::MoveDevice => {
                state.moving = true;
                state.decide(|it| it.move_device(MOVED))?;
            }
            Action::Capture => {
                state.capturing = true;
                state.decide(|it| it.capture(CHECKPOINT))?;
            }
            Action::Start(slice) => {
                let said = state.slices[usize::from(slice)].say_begun();
                state.post(slice, said);
            }
            Action::HandOver => {
                let verdict = state.first.hand_over(SliceId(SECOND)).ok()?;
                state.judge(FIRST, verdict);
            }
            Action::Arrive(from, to) => state.arrive(from, to),
            Action::Act(slice) => {
                let said = state.slices[usize::from(slice)].act();
                // The second slice coordinates from the step on by which it knows.
                let known = |(_, frame): &(u16, Frame)| match frame {
                    Frame::Cut(Message::Taken(number, Step::Coordinate(_))) => Some(*number),
                    _ => None,
                };
                let number = said.iter().find_map(known).filter(|_| slice == SECOND);
                state.post(slice, said);
                if let Some(number) = number {
                    let mut members = members();
                    let parted = state.slices[usize::from(SECOND)].parted;
                    members.retain(|slice| !parted || slice.0 != LEAVER);
                    let after =
                        Coordinator::after(SliceId(FIRST), number, SliceId(SECOND), members);
                    state.second = Some(self.planted(after));
                }
            }
            Action::Send(slice, kind) => {
                let sent = state.slices[usize::from(slice)].send(kind);
                state.post(slice, sent);
            }
            Action::Work(slice) => {
                let sent = state.slices[usize::from(slice)].work();
                state.post(slice, sent);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(names::WHOLE, |_, state: &Cluster| {
                !state.is_at_rest() || !state.is_anything_in_flight()
            }),
            Property::always(names::AT_REST, |_, state: &Cluster| {
                let rests = |slice: &Slice| slice.vcpus && slice.queues && slice.devices;
                !state.is_at_rest() || state.members().all(rests)
            }),
            Property::always(names::RUNS, |_, state: &Cluster| {
                let runs = |slice: &Slice| slice.runs() || slice.id == LEAVER && state.is_let_go();
                !state.lead().1.is_idle() || state.members().all(runs)
            }),
            Property::always(names::SAME, |_, state: &Cluster| {
                let decided = state.lead().1.is_idle() || state.is_at_rest();
                let others = &state.slices[..usize::from(LEAVER)];
                let gone = state.is_let_go() || state.outside;
                !decided || others.iter().all(|slice| slice.parted == gone)
            }),
            Property::always(names::FORGOTTEN, |_, state: &Cluster| {
                let others = &state.slices[..usize::from(LEAVER)];
                let to_it = state.channels.iter().any(|((_, to), frames)| {
                    *to == LEAVER && frames.iter().any(|frame| !is_dismissal(frame))
                });
                !state.is_let_go() || !to_it && others.iter().all(|slice| slice.parted)
            }),
            Property::always(names::NEEDED, |_, state: &Cluster| {
                !state.slices.iter().any(|slice| slice.parted && slice.needs_leaver)
            }),
            Property::always(names::READY, |_, state: &Cluster| {
                let others = &state.slices[..usize::from(LEAVER)];
                let early = state.outside && state.slices[usize::from(LEAVER)].absent;
                let cannot = |slice: &Slice| slice.refuses && !slice.parted;
                !others.iter().any(|slice| early && !slice.parted || cannot(slice))
            }),
            Property::always(names::REACHED, |_, state: &Cluster| !state.lost),
            Property::always(names::ENDS, |_, state: &Cluster| {
                let ended = state.lead().1.is_idle() || state.is_at_rest();
                !state.is_quiet() || ended
            }),
            Property::always(names::ONE_COORDINATOR, |_, state: &Cluster| {
                let misled = state.slices.iter().any(|slice| slice.misled);
                let by = state.lead().0;
                let left = |slice: &Slice| slice.id == LEAVER && state.is_let_go();
                let knows = |slice: &Slice| slice.coordinator == by || left(slice);
                let agreed = state.members().all(knows);
                !misled && (!state.lead().1.is_idle() || agreed)
            }),
            Property::always(names::ONE_OWNER, |_, state: &Cluster| {
                state.slices.iter().filter(|slice| slice.open).count() <= 1
            }),
            Property::always(names::DEVICE, |_, state: &Cluster| {
                let idle = state.lead().1.is_idle();
                let left = |slice: &Slice| slice.id == LEAVER && state.is_let_go();
                let slices = || state.slices.iter().filter(|slice| !left(slice));
                let at = state.slices[usize::from(FIRST)].device_at;
                let agreed = slices().all(|it| it.device_at == at && it.open == (it.id == at));
                !idle || agreed
            }),
            Property::always(names::CAPTURED, |_, state: &Cluster| !state.torn),
            Property::always(names::BEGUN, |_, state: &Cluster| {
                let any_runs = state.slices.iter().any(|slice| !slice.vcpus);
                !any_runs || state.slices.iter().all(|slice| slice.begun)
            }),
            Property::sometimes(names::CUT, |_, state: &Cluster| state.is_at_rest()),
        ]
    }
}

fn members() -> Vec<SliceId> {
    (0..SLICES).map(SliceId).collect()
}

fn is_dismissal(frame: &Frame) -> bool {
    matches!(frame, Frame::Cut(Message::Dismiss(_)))
}

/// The properties.
pub mod names {
    /// At a cut nothing is on its way or half done.
    pub const WHOLE: &str = "at a cut nothing is on its way or half done";
    /// At a cut all slices are at rest.
    pub const AT_REST: &str = "at a cut all slices are at rest";
    /// Between cuts all slices run.
    pub const RUNS: &str = "between cuts all slices run";
    /// No cut waits for ever.
    pub const ENDS: &str = "each cut comes, or is given up";
    /// A slice is a member for all others, or for none and is told to end.
    pub const SAME: &str = "all slices agree on who is a member";
    /// Nobody loses a slice that it needs.
    pub const NEEDED: &str = "nobody parts with a slice that it needs";
    /// A slice that is to end is missed by nobody.
    pub const FORGOTTEN: &str = "a slice that is to end is missed by nobody";
    /// A slice is a member for nobody before it has begun, nor for one that cannot have it.
    pub const READY: &str = "a slice that joins has begun, and all can have it";
    /// Nobody sends what cannot arrive.
    pub const REACHED: &str = "nothing is sent to a newcomer before there is a link";
    /// Nobody asks a slice that does not coordinate.
    pub const ONE_COORDINATOR: &str = "slices that run agree on who coordinates, and ask no other";
    /// Nothing is written by two hosts.
    pub const ONE_OWNER: &str = "a device is open at one host at most";
    /// Whoever asks a device asks the host that has it.
    pub const DEVICE: &str = "slices that run agree on where a device is, and it is open there";
    /// A checkpoint is captured when all slices have their forms.
    pub const CAPTURED: &str = "what is captured is the form of all slices at one cut";
    /// No slice runs beside one that has not what it had.
    pub const BEGUN: &str = "a VM that is restored runs when all slices have begun";
    /// The model does come to a cut.
    pub const CUT: &str = "a cut comes";
}
