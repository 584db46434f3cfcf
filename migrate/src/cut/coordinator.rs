//! Decides about cuts, one at a time.
//!
//! ```text
//!        begin         all Taken, step by step     all Counted, they agree       go_on           all GoesOn
//!   idle -----> asking ----------------------> asking(Count) ----------> at rest -----> going on ----------> idle
//!                 |  ^                              |                                      ^
//!                 |  +--Devices, they do not agree--+                                      |
//!                 +------Failed, or given up, at any step ---------------------------------+
//!
//!                part_with             all others Taken        all others Taken: the slice is dismissed
//!        at rest ---------> asking(MayPart) ------------> asking(Part) ---------------------> at rest
//!                                | Failed, or given up: all go on    | no way back
//!
//!                hand_over               both Taken              all Taken      go_on           all GoesOn
//!        at rest ---------> asking(MayCoordinate) ---> asking(Coordinate) ---> going on ---> over: HandedOver to the next
//!                                | Failed, or given up: all go on    | no way back
//!        the next: waiting ---------HandedOver---------> idle
//!
//!                take_in            all Taken, then the newcomer          all Taken
//!        at rest ---------> asking(MayJoin) ----------------> asking(Join) ---------------> at rest, with the newcomer
//!                                | Failed, or given up: all go on    | no way back
//!
//!                move_device        all Taken                Taken                   Taken                     all Taken
//!        at rest -----> asking(MayMove) -> asking(CloseDevice) -> asking(OpenDevice) -> asking(DeviceMoved) -----> at rest
//!                                | Failed, or given up: all go on, and it is where it was    | no way back
//!
//!                capture            all Taken
//!        at rest ---------> asking(Capture) ---------> at rest
//!                                | Failed, or given up: all go on
//!
//!        restored                        all Taken, unasked      go_on
//!                 ------> asking(Begin) ------------------> at rest -----> going on
//!                                | no way back
//! ```

mod going_on;

use super::news::{News, Refusal, Verdict, failure};
use super::planted::PlantedBug;
use super::{DeviceMove, Message, PeerCounts, Step};
use crate::planted::Planted;
use std::collections::{BTreeMap, BTreeSet};
use wire::SliceId;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// The coordinator before has not said that all slices run.
    Waiting {
        on: SliceId,
    },
    Idle,
    /// `waiting` have not taken the step that they were asked for; `later` are asked when they have.
    Asking {
        step: Step,
        waiting: BTreeSet<SliceId>,
        later: Vec<SliceId>,
    },
    AtRest,
    /// These have not said that they run; `later` are told to when they have.
    GoingOn {
        waiting: BTreeSet<SliceId>,
        later: Vec<SliceId>,
    },
    /// Another slice coordinates.
    Over,
}

/// The number of the cut in which a VM is that is restored.
pub const FIRST_CUT: u64 = 1;

/// The one that decides about cuts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    /// Its own slice, which orders changes of devices.
    local: SliceId,
    /// Ascending.
    members: Vec<SliceId>,
    phase: Phase,
    /// To whom the coordination goes, or has gone, from the first slice that knows.
    successor: Option<SliceId>,
    /// Cuts begun so far, by those that coordinated before too.
    begun: u64,
    /// What slices have counted; none for those that must rest once more.
    counts: BTreeMap<SliceId, Option<Vec<PeerCounts>>>,
    /// All have counted in this cut, and the numbers did not agree.
    differed: bool,
    planted: Planted<PlantedBug>,
}

impl Coordinator {
    /// The coordinator, on the slice `local`, of a VM of these slices, ascending. No cut has been begun yet.
    #[must_use]
    pub fn new(local: SliceId, members: Vec<SliceId>) -> Self {
        Self {
            local,
            members,
            phase: Phase::Idle,
            successor: None,
            begun: 0,
            counts: BTreeMap::new(),
            differed: false,
            planted: Planted::default(),
        }
    }

    /// The one that comes after that on slice `before`, which has handed over in this cut. It begins none until it is told
    /// that all slices run.
    #[must_use]
    pub fn after(before: SliceId, cut: u64, local: SliceId, members: Vec<SliceId>) -> Self {
        Self { phase: Phase::Waiting { on: before }, begun: cut, ..Self::new(local, members) }
    }

    /// The coordinator, on the slice `local`, of a VM of these slices, ascending, that is restored: all begin at rest, and
    /// say so by [`Step::Begin`]. That is the first cut.
    #[must_use]
    pub fn restored(local: SliceId, members: Vec<SliceId>) -> Self {
        let (waiting, later) = (members.iter().copied().collect(), Vec::new());
        let phase = Phase::Asking { step: Step::Begin, waiting, later };
        Self { phase, begun: FIRST_CUT, ..Self::new(local, members) }
    }

    /// With a bug that a model is to find.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn plant(self, bug: PlantedBug) -> Self {
        Self { planted: Planted::some(bug), ..self }
    }

    /// Whether all slices are at rest.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.phase == Phase::AtRest
    }

    /// Whether all slices run, as far as cuts are concerned, and another may begin.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Whether the coordinator before has not said yet that all slices run.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    /// Whether another slice coordinates, and this one has nothing left to do.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The number of the last cut that was begun.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.begun
    }

    /// What the slices are being asked for, and those that have not answered.
    #[must_use]
    pub fn asking(&self) -> Option<(Step, &BTreeSet<SliceId>)> {
        match &self.phase {
            Phase::Asking { step, waiting, .. } => Some((*step, waiting)),
            _ => None,
        }
    }

    /// The slices that were told to go on and have not said that they do; none if nothing is going on.
    #[must_use]
    pub fn going_on(&self) -> Option<&BTreeSet<SliceId>> {
        match &self.phase {
            Phase::GoingOn { waiting, .. } => Some(waiting),
            _ => None,
        }
    }

    /// Whether all slices have been at rest in this cut, and something was on its way.
    #[must_use]
    pub fn has_differed(&self) -> bool {
        self.differed
    }

    /// Begins a cut.
    ///
    /// # Errors
    /// Another one has not ended, or another slice coordinates.
    pub fn begin(&mut self) -> Result<Verdict, Refusal> {
        match (&self.phase, self.successor) {
            (_, Some(slice)) => return Err(Refusal::Elsewhere(slice)),
            (Phase::Idle, None) => {}
            (Phase::Waiting { .. }, None) if self.planted.has(PlantedBug::BeginsUntold) => {}
            _ => return Err(Refusal::Busy),
        }
        self.begun += 1;
        self.differed = false;
        Ok(self.ask_all(Step::Vcpus))
    }

    /// Has a slice leave that has nothing of the VM any more. All slices are at rest, and stay so.
    ///
    /// # Errors
    /// They are not, or the slice cannot leave.
    pub fn part_with(&mut self, slice: SliceId) -> Result<Verdict, Refusal> {
        if self.phase != Phase::AtRest || self.successor.is_some() {
            return Err(Refusal::Busy);
        }
        if slice == self.local || !self.members.contains(&slice) {
            return Err(Refusal::Stays(slice));
        }
        let at_once = self.planted.has(PlantedBug::NobodyAsked);
        Ok(self.ask_others(if at_once { Step::Part(slice) } else { Step::MayPart(slice) }, slice))
    }

    /// Has another slice coordinate. All slices are at rest, and stay so until they are told to go on.
    ///
    /// # Errors
    /// They are not, or that slice cannot.
    pub fn hand_over(&mut self, slice: SliceId) -> Result<Verdict, Refusal> {
        if self.phase != Phase::AtRest || self.successor.is_some() {
            return Err(Refusal::Busy);
        }
        if slice == self.local || !self.members.contains(&slice) {
            return Err(Refusal::NotToThat(slice));
        }
        // What is to be known is sent before it is asked about.
        Ok(self.ask(Step::MayCoordinate(slice), &[self.local], &[slice]))
    }

    /// Has a slice join that all others can reach once they have taken [`Step::MayJoin`]. All slices are at rest, and stay so.
    /// The newcomer is asked last for that step, and not at all for [`Step::Join`].
    ///
    /// # Errors
    /// They are not at rest, or it is one of them.
    pub fn take_in(&mut self, slice: SliceId) -> Result<Verdict, Refusal> {
        if self.phase != Phase::AtRest || self.successor.is_some() {
            return Err(Refusal::Busy);
        }
        if self.members.contains(&slice) {
            return Err(Refusal::Member(slice));
        }
        let all = self.members.clone();
        Ok(if self.planted.has(PlantedBug::NobodyAsked) {
            self.ask(Step::Join(slice), &all, &[])
        } else if self.planted.has(PlantedBug::NewcomerAtOnce) {
            let both: Vec<_> = all.into_iter().chain([slice]).collect();
            self.ask(Step::MayJoin(slice), &both, &[])
        } else {
            self.ask(Step::MayJoin(slice), &all, &[slice])
        })
    }

    /// Has another slice have the real part of a device. All slices are at rest, and stay so.
    ///
    /// # Errors
    /// They are not, or there are no such slices.
    pub fn move_device(&mut self, moved: DeviceMove) -> Result<Verdict, Refusal> {
        if self.phase != Phase::AtRest || self.successor.is_some() {
            return Err(Refusal::Busy);
        }
        let unknown = [moved.from, moved.to].iter().any(|slice| !self.members.contains(slice));
        if unknown || moved.from == moved.to {
            return Err(Refusal::NoMove(moved));
        }
        Ok(self.ask_all(Step::MayMove(moved)))
    }

    /// Has all slices begin to write a checkpoint, of this number. They are at rest, and stay so.
    ///
    /// # Errors
    /// They are not at rest.
    pub fn capture(&mut self, number: u64) -> Result<Verdict, Refusal> {
        if self.phase != Phase::AtRest || self.successor.is_some() {
            return Err(Refusal::Busy);
        }
        Ok(self.ask_all(Step::Capture(number)))
    }

    /// Takes a message that only the coordinator is sent. One that does not belong to what goes on changes nothing: it is of
    /// a cut that was given up.
    pub fn message(&mut self, from: SliceId, message: Message) -> Verdict {
        if message.number() != self.begun {
            return Verdict::default();
        }
        match (message, &mut self.phase) {
            (Message::Taken(_, taken), Phase::Asking { step, waiting, later })
                if taken == *step && taken != Step::Count && waiting.contains(&from) =>
            {
                waiting.remove(&from);
                let early = self.planted.has(PlantedBug::NotAllTaken)
                    || self.planted.has(PlantedBug::HandedOverEarly)
                        && matches!(taken, Step::Coordinate(_));
                if !waiting.is_empty() && !early {
                    return Verdict::default();
                }
                match std::mem::take(later) {
                    later if later.is_empty() => self.all_taken(taken),
                    later => self.ask(taken, &later, &[]),
                }
            }
            (Message::Counted(_, counts), Phase::Asking { step: Step::Count, waiting, .. })
                if waiting.contains(&from) =>
            {
                waiting.remove(&from);
                let all = waiting.is_empty();
                self.counts.insert(from, counts);
                if all { self.all_counted() } else { Verdict::default() }
            }
            (Message::Failed(_, why), Phase::Asking { step, .. }) => {
                // It may go to a terminal, and who wrote it is not known.
                let why = why.replace(char::is_control, " ");
                let step = *step;
                let text = match step {
                    Step::MayJoin(newcomer) | Step::Join(newcomer) if newcomer == from => {
                        format!("{from} cannot join: {why}")
                    }
                    step => format!("{from} {}: {why}", failure(step)),
                };
                if step.is_final() {
                    return Verdict { news: Some(News::Broken(text)), ..Verdict::default() };
                }
                self.go_on(&text)
            }
            (Message::GoesOn(_), Phase::GoingOn { waiting, .. }) => {
                waiting.remove(&from);
                self.look_whether_all_run()
            }
            (Message::HandedOver(_), Phase::Waiting { on }) if *on == from => {
                self.phase = Phase::Idle;
                Verdict { news: Some(News::Runs), ..Verdict::default() }
            }
            _ => Verdict::default(),
        }
    }

    /// Asks these to take a step, and others when they have.
    fn ask(&mut self, step: Step, now: &[SliceId], later: &[SliceId]) -> Verdict {
        let take = |slice: &SliceId| (*slice, Message::Take(self.begun, step));
        let messages = now.iter().map(take).collect();
        let waiting = now.iter().copied().collect();
        self.phase = Phase::Asking { step, waiting, later: later.to_vec() };
        Verdict { messages, news: None }
    }

    /// Asks all but one that leaves.
    fn ask_others(&mut self, step: Step, leaver: SliceId) -> Verdict {
        let mut others = self.members.clone();
        others.retain(|member| *member != leaver);
        self.ask(step, &others, &[])
    }

    fn ask_all(&mut self, step: Step) -> Verdict {
        let all = self.members.clone();
        // No change of devices is under way any more when the slice that orders them has taken the step.
        if step == Step::Devices && !self.planted.has(PlantedBug::DevicesAtOnce) {
            let later: Vec<_> = all.into_iter().filter(|slice| *slice != self.local).collect();
            return self.ask(step, &[self.local], &later);
        }
        self.ask(step, &all, &[])
    }

    /// All slices have taken this step.
    fn all_taken(&mut self, step: Step) -> Verdict {
        let next = match step {
            Step::Vcpus => Step::Queues,
            Step::Queues => Step::Devices,
            Step::Devices => Step::Memory,
            Step::Memory | Step::Count => Step::Count,
            Step::MayPart(leaver) => return self.ask_others(Step::Part(leaver), leaver),
            Step::Part(leaver) => {
                self.members.retain(|member| *member != leaver);
                self.phase = Phase::AtRest;
                let messages = vec![(leaver, Message::Dismiss(self.begun))];
                return Verdict { messages, news: Some(News::Parted(leaver)) };
            }
            Step::MayJoin(newcomer) => {
                let all = self.members.clone();
                return self.ask(Step::Join(newcomer), &all, &[]);
            }
            Step::Join(newcomer) => {
                let place = self.members.partition_point(|member| *member < newcomer);
                self.members.insert(place, newcomer);
                self.phase = Phase::AtRest;
                return Verdict { messages: Vec::new(), news: Some(News::Joined(newcomer)) };
            }
            Step::MayCoordinate(next) => {
                self.successor = Some(next);
                return self.ask_all(Step::Coordinate(next));
            }
            Step::Coordinate(next) => {
                self.phase = Phase::AtRest;
                let news = Some(News::HandedOver(next));
                return Verdict { messages: Vec::new(), news };
            }
            Step::Capture(number) => {
                self.phase = Phase::AtRest;
                return Verdict { messages: Vec::new(), news: Some(News::Captured(number)) };
            }
            Step::Begin => {
                self.phase = Phase::AtRest;
                return Verdict { messages: Vec::new(), news: Some(News::AtRest) };
            }
            Step::MayMove(moved) if self.planted.has(PlantedBug::OpensUnclosed) => {
                return self.ask(Step::OpenDevice(moved), &[moved.to], &[]);
            }
            Step::MayMove(moved) => return self.ask(Step::CloseDevice(moved), &[moved.from], &[]),
            Step::CloseDevice(moved) => return self.ask(Step::OpenDevice(moved), &[moved.to], &[]),
            Step::OpenDevice(moved) => return self.ask_all(Step::DeviceMoved(moved)),
            Step::DeviceMoved(moved) => {
                self.phase = Phase::AtRest;
                return Verdict { messages: Vec::new(), news: Some(News::Moved(moved)) };
            }
        };
        self.counts.clear();
        self.ask_all(next)
    }

    fn all_counted(&mut self) -> Verdict {
        if self.agree() || self.planted.has(PlantedBug::NotCompared) {
            self.phase = Phase::AtRest;
            return Verdict { messages: Vec::new(), news: Some(News::AtRest) };
        }
        self.differed = true;
        self.ask_all(Step::Devices)
    }

    /// Whether each slice has received as much of each other one as that has sent.
    fn agree(&self) -> bool {
        let counts = |slice: &SliceId, peer: SliceId| {
            let of_slice = self.counts.get(slice)?.as_ref()?;
            of_slice.iter().find(|counts| counts.peer == peer)
        };
        self.members.iter().all(|from| {
            let others = self.members.iter().filter(|to| *to != from);
            let known = self.counts.get(from).is_some_and(Option::is_some);
            known && others.into_iter().all(|to| {
                let (there, here) = (counts(from, *to), counts(to, *from));
                matches!((there, here), (Some(there), Some(here)) if there.sent == here.received)
            })
        })
    }
}
