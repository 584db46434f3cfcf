//! One state of the model, and what happens in it.

use super::scenario::Scenario;
use super::slice::{Frame, Pages, Slice, Stage};
use migrate::checkpoint::{Coordinator, Effect, Message, Verdict};
use migrate::cut::{Coordinator as Cuts, News, Verdict as CutVerdict};
use std::collections::{BTreeMap, VecDeque};
use wire::SliceId;

/// The coordinator's slice.
const FIRST: u16 = 0;

/// What slices say that they have written: the number of the checkpoint, and the pages.
pub(super) type Parts = Vec<(SliceId, Vec<u8>)>;

/// What the parts of a checkpoint are to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Moment {
    /// What each slice had in memory when all were at rest.
    pub(super) memory: BTreeMap<u16, Pages>,
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    pub(super) checkpoints: Coordinator,
    pub(super) cuts: Cuts,
    pub(super) slices: Vec<Slice>,
    /// Frames of checkpoints, and all others, keep their order, and none among each other.
    pub(super) channels: BTreeMap<(u16, u16, bool), VecDeque<Frame>>,
    /// Slices that the coordinator has not lost.
    members: Vec<u16>,
    /// Checkpoints that are still to begin.
    pub(super) left: u8,
    pub(super) failures: u8,
    pub(super) given_up: bool,
    /// A user's pause has begun, and none has ended it.
    pub(super) paused: bool,
    pub(super) pauses: u8,
    blunt: bool,
    pub(super) live: bool,
    /// A checkpoint has ended it.
    pub(super) resumed: bool,
    /// Of which checkpoint the cut is that goes on.
    cut_of: Option<u64>,
    /// What is being committed.
    pub(super) committing: Option<(u64, Parts)>,
    pub(super) manifests: BTreeMap<u64, Parts>,
    pub(super) moments: BTreeMap<u64, Moment>,
    /// All slices have their forms for the checkpoint that goes on.
    pub(super) captured: bool,
    /// Cuts that were asked for and whose end was not.
    pub(super) open_cuts: i8,
    /// Checkpoints that have begun and are not over.
    pub(super) open: i8,
    /// The checkpoint that goes on has a reason to come to nothing.
    pub(super) reason: bool,
    /// One came to nothing without a reason.
    pub(super) groundless: bool,
    /// A cut was asked for while a slice could not begin.
    pub(super) unprepared: bool,
}

impl Cluster {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let members: Vec<_> = (0..scenario.slices()).collect();
        let moves = |id: u16| scenario.moves[usize::from(id)];
        let slice = |id| Slice::new(id, scenario, moves(id));
        let ids = members.iter().copied().map(SliceId).collect();
        Self {
            checkpoints: scenario.coordinator(),
            cuts: Cuts::new(SliceId(FIRST), ids),
            slices: members.iter().copied().map(slice).collect(),
            channels: BTreeMap::new(),
            members,
            left: scenario.checkpoints,
            failures: scenario.failures,
            given_up: false,
            paused: false,
            pauses: u8::from(scenario.pause),
            resumed: false,
            blunt: scenario.blunt,
            live: scenario.live,
            cut_of: None,
            committing: None,
            manifests: BTreeMap::new(),
            moments: BTreeMap::new(),
            captured: false,
            open_cuts: 0,
            open: 0,
            reason: false,
            groundless: false,
            unprepared: false,
        }
    }

    pub(super) fn living(&self) -> impl Iterator<Item = &Slice> {
        self.slices.iter().filter(|slice| !slice.lost)
    }

    /// Nothing can happen any more but a new checkpoint or something that the guest does.
    pub(super) fn is_quiet(&self) -> bool {
        let works = self.slices.iter().any(|slice| slice.at_work().is_some());
        self.channels.is_empty() && !works && self.committing.is_none() && !self.paused
    }

    pub(super) fn post(&mut self, from: u16, to: u16, frame: Frame) {
        if !self.slices[usize::from(to)].lost {
            let is_checkpoint = matches!(frame, Frame::Checkpoint(_));
            self.channels.entry((from, to, is_checkpoint)).or_default().push_back(frame);
        }
    }

    /// A slice tells the coordinator of checkpoints.
    pub(super) fn tell(&mut self, from: u16, message: Option<Message>) {
        if let Some(message) = message {
            self.post(from, FIRST, Frame::Checkpoint(message));
        }
    }

    /// Does what the coordinator of checkpoints says.
    pub(super) fn execute(&mut self, verdict: Verdict) {
        let blunt = self.blunt;
        for effect in verdict {
            match effect {
                Effect::Send(slice, message) => {
                    self.post(FIRST, slice.0, Frame::Checkpoint(message));
                }
                Effect::Cut(number) => {
                    let ready = |id: &u16| {
                        self.slices[usize::from(*id)].part == Some((number, Stage::Ready))
                    };
                    self.unprepared |= !self.members.iter().all(ready);
                    self.open_cuts += 1;
                    self.cut(number);
                }
                Effect::Commit(parts) => {
                    self.committing = Some((self.checkpoints.number(), parts));
                }
                Effect::GoOn => {
                    self.open_cuts -= 1;
                    // Else the cut has ended, or it was none: what goes on now is another one.
                    if self.cut_of.take().is_some() || blunt {
                        let verdict = self.cuts.go_on("");
                        self.resumed |= self.paused && !verdict.messages.is_empty();
                        self.judge(verdict);
                    }
                }
                Effect::Over(outcome) => {
                    self.open -= 1;
                    self.captured = false;
                    self.groundless |= outcome.is_err() && !self.reason;
                }
            }
        }
    }

    fn cut(&mut self, number: u64) {
        match self.cuts.begin() {
            Ok(verdict) => {
                self.cut_of = Some(number);
                self.judge(verdict);
            }
            Err(_) => {
                self.reason = true;
                let verdict = self.checkpoints.failed("");
                self.execute(verdict);
            }
        }
    }

    /// Does what the coordinator of cuts says.
    pub(super) fn judge(&mut self, verdict: CutVerdict) {
        for (to, message) in verdict.messages {
            self.post(FIRST, to.0, Frame::Cut(message));
        }
        let verdict = match verdict.news {
            Some(News::AtRest) => {
                let Some(number) = self.cut_of else { return };
                let memory = self
                    .members
                    .iter()
                    .map(|id| (*id, self.slices[usize::from(*id)].memory.clone()));
                self.moments.insert(number, Moment { memory: memory.collect() });
                let Ok(verdict) = self.cuts.capture(number) else { return };
                return self.judge(verdict);
            }
            Some(News::Captured(_)) => {
                self.captured = true;
                self.checkpoints.captured()
            }
            Some(News::GivenUp(why)) if self.cut_of.take().is_some() => {
                self.checkpoints.failed(&why)
            }
            Some(News::GivenUp(_) | News::Runs) => {
                (self.cut_of, self.paused) = (None, false);
                return;
            }
            _ => return,
        };
        self.execute(verdict);
    }

    pub(super) fn arrive(&mut self, way: (u16, u16, bool)) {
        let (from, to, _) = way;
        let Some(queue) = self.channels.get_mut(&way) else { return };
        let frame = queue.pop_front();
        if queue.is_empty() {
            self.channels.remove(&way);
        }
        let slice = &mut self.slices[usize::from(to)];
        match frame {
            Some(Frame::Token) => slice.get(from),
            Some(Frame::Checkpoint(message)) if message.is_asking() => slice.hear(&message),
            Some(Frame::Checkpoint(message)) => {
                let verdict = self.checkpoints.message(SliceId(from), message);
                self.execute(verdict);
            }
            Some(Frame::Cut(message)) if message.is_asking() => {
                for answer in slice.rest_or_go_on(&message) {
                    self.post(to, from, answer);
                }
            }
            Some(Frame::Cut(message)) => {
                let verdict = self.cuts.message(SliceId(from), message);
                self.judge(verdict);
            }
            Some(Frame::Lost) => self.hear_of_loss(from),
            None => {}
        }
    }

    fn hear_of_loss(&mut self, lost: u16) {
        (self.reason, self.paused) = (true, false);
        self.members.retain(|member| *member != lost);
        let verdict = self.cuts.lost(SliceId(lost));
        self.judge(verdict);
        let verdict = self.checkpoints.lost(SliceId(lost));
        self.execute(verdict);
    }

    pub(super) fn lose(&mut self) {
        let Some(slice) = self.slices.last_mut() else { return };
        slice.lost = true;
        let id = slice.id;
        self.channels.retain(|(_, to, _), _| *to != id);
        self.post(id, FIRST, Frame::Lost);
    }

    /// A slice cannot make its file or write to it.
    pub(super) fn fail(&mut self, id: u16) {
        self.failures -= 1;
        let failed = self.slices[usize::from(id)].fail();
        let number = failed.as_ref().map(Message::number);
        self.reason |= number == Some(self.checkpoints.number());
        self.tell(id, failed);
    }

    pub(super) fn begin(&mut self) -> Option<()> {
        self.left -= 1;
        let request = vec![u8::from(self.live)];
        let requests = self.members.iter().map(|id| (SliceId(*id), request.clone())).collect();
        let verdict = self.checkpoints.begin(requests, self.live).ok()?;
        self.open += 1;
        (self.captured, self.reason) = (false, false);
        self.execute(verdict);
        Some(())
    }

    pub(super) fn end_commit(&mut self, is_written: bool) -> Option<()> {
        let (number, parts) = self.committing.take()?;
        let verdict = if is_written {
            self.manifests.insert(number, parts);
            self.checkpoints.committed()
        } else {
            self.failures -= 1;
            self.reason = true;
            self.checkpoints.not_committed("")
        };
        self.execute(verdict);
        Some(())
    }
}
