//! Decides about checkpoints, one at a time.
//!
//! ```text
//!        begin            all Prepared       captured         all Written          committed
//!   idle -----> preparing ------------> cutting -----> writing -----------> committing -----> idle: Committed, GoOn
//!                   |                     |   (live: GoOn) |                     |
//!                   +---------------------+---------------+                     |
//!                   |  Failed, lost, given up, the cut has failed               | the commit has failed
//!                   +-----------------------------------------------------------+---> idle: Discard; GoOn
//! ```
//! GoOn comes once for each cut that was asked for.

use super::Message;
use super::planted::PlantedBug;
use crate::planted::Planted;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use wire::SliceId;

/// Why a checkpoint was not begun. Nothing has happened then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// One at a time.
    #[error("a checkpoint is being written")]
    Busy,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// A message to a slice, perhaps the coordinator's own.
    Send(SliceId, Message),
    /// Bring all slices to rest, and have them take their forms for this checkpoint. Its outcome is told by
    /// [`Coordinator::captured`] or [`Coordinator::failed`].
    Cut(u64),
    /// Make it a checkpoint: all slices have written these parts. Its outcome is told by [`Coordinator::committed`] or
    /// [`Coordinator::not_committed`].
    Commit(Vec<(SliceId, Vec<u8>)>),
    /// The cut that was asked for ends. It may have ended before, or have been refused; then there is nothing to do, and a cut
    /// of somebody else goes on.
    GoOn,
    /// It is done, or it is not, and why.
    Over(Result<(), String>),
}

/// What follows from an input, in this order.
pub type Verdict = Vec<Effect>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// These cannot begin yet.
    Preparing {
        waiting: BTreeSet<SliceId>,
    },
    /// All are about to be at rest; what some have written already.
    Cutting {
        parts: BTreeMap<SliceId, Vec<u8>>,
    },
    /// All have their forms.
    Writing {
        parts: BTreeMap<SliceId, Vec<u8>>,
    },
    Committing,
}

/// The one that decides about checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    /// Those that write, ascending.
    members: Vec<SliceId>,
    phase: Phase,
    /// The guest runs on while it is written.
    live: bool,
    /// A cut was asked for, and its end was not.
    cut: bool,
    /// Checkpoints begun so far; the number of the last one.
    begun: u64,
    planted: Planted<PlantedBug>,
}

impl Coordinator {
    /// Nothing has been begun yet; the last checkpoint had this number.
    #[must_use]
    pub fn new(begun: u64) -> Self {
        Self {
            members: Vec::new(),
            phase: Phase::Idle,
            live: false,
            cut: false,
            begun,
            planted: Planted::default(),
        }
    }

    /// With a bug that a model is to find.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn plant(self, bug: PlantedBug) -> Self {
        Self { planted: Planted::some(bug), ..self }
    }

    /// Whether nothing goes on.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// The number of the last checkpoint that was begun.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.begun
    }

    /// The slices that are waited for, ascending.
    #[must_use]
    pub fn waiting(&self) -> Vec<SliceId> {
        match &self.phase {
            Phase::Preparing { waiting } => waiting.iter().copied().collect(),
            Phase::Cutting { parts } | Phase::Writing { parts } => {
                self.members.iter().filter(|slice| !parts.contains_key(slice)).copied().collect()
            }
            Phase::Idle | Phase::Committing => Vec::new(),
        }
    }

    /// Begins a checkpoint of these slices; each is sent what it is to write. `live`: the guest goes on once all have their
    /// forms, and the slices write what their memory was then.
    ///
    /// # Errors
    /// One is being written.
    pub fn begin(
        &mut self,
        requests: Vec<(SliceId, Vec<u8>)>,
        live: bool,
    ) -> Result<Verdict, Refusal> {
        if self.phase != Phase::Idle {
            return Err(Refusal::Busy);
        }
        self.begun += 1;
        (self.live, self.cut) = (live, false);
        self.members = requests.iter().map(|(slice, _)| *slice).collect();
        self.members.sort_unstable();
        let waiting = self.members.iter().copied().collect();
        self.phase = Phase::Preparing { waiting };
        let prepare = |(slice, request)| Effect::Send(slice, Message::Prepare(self.begun, request));
        let mut verdict: Verdict = requests.into_iter().map(prepare).collect();
        if self.planted.has(PlantedBug::CutsUnprepared) {
            verdict.extend(self.cut());
        }
        Ok(verdict)
    }

    fn cut(&mut self) -> Verdict {
        self.phase = Phase::Cutting { parts: BTreeMap::new() };
        self.cut = true;
        vec![Effect::Cut(self.begun)]
    }

    /// The end of the cut, if there is one.
    fn go_on(&mut self) -> Option<Effect> {
        let cut = std::mem::take(&mut self.cut);
        (cut && !self.planted.has(PlantedBug::StaysAtRest)).then_some(Effect::GoOn)
    }

    /// All slices are at rest, and have their forms.
    pub fn captured(&mut self) -> Verdict {
        let Phase::Cutting { parts } = &mut self.phase else { return Vec::new() };
        self.phase = Phase::Writing { parts: std::mem::take(parts) };
        let mut verdict = Vec::new();
        if self.live && !self.planted.has(PlantedBug::LiveStandsStill) {
            verdict.extend(self.go_on());
            self.cut |= self.planted.has(PlantedBug::GoesOnTwice);
        }
        verdict.extend(self.look_whether_written());
        if self.planted.has(PlantedBug::GoesOnEarly) {
            verdict.push(Effect::GoOn);
        }
        verdict
    }

    /// It is a checkpoint.
    pub fn committed(&mut self) -> Verdict {
        if self.phase != Phase::Committing {
            return Vec::new();
        }
        self.phase = Phase::Idle;
        let mut verdict = self.to_all(&Message::Committed(self.begun));
        verdict.extend(self.go_on());
        verdict.push(Effect::Over(Ok(())));
        verdict
    }

    /// The cut has failed, or it takes too long, or nobody wants it any more. Does nothing if nothing goes on, nor while it
    /// is being committed: it may be a checkpoint already, and then it keeps its parts.
    pub fn failed(&mut self, why: &str) -> Verdict {
        match self.phase {
            Phase::Idle => Vec::new(),
            Phase::Committing if !self.planted.has(PlantedBug::CommitNotAwaited) => Vec::new(),
            _ => self.give_up(why),
        }
    }

    /// There is no manifest, and there will be none.
    pub fn not_committed(&mut self, why: &str) -> Verdict {
        if self.phase == Phase::Committing { self.give_up(why) } else { Vec::new() }
    }

    fn give_up(&mut self, why: &str) -> Verdict {
        let mut verdict = self.to_all(&Message::Discard(self.begun));
        if self.planted.has(PlantedBug::NotDiscarded) {
            verdict.clear();
        }
        verdict.extend(self.go_on());
        verdict.push(Effect::Over(Err(why.to_owned())));
        self.phase = Phase::Idle;
        self.begun -= u64::from(self.planted.has(PlantedBug::NumberAgain));
        verdict
    }

    /// A slice is gone. Its part is missing.
    pub fn lost(&mut self, slice: SliceId) -> Verdict {
        if self.phase == Phase::Idle || !self.members.contains(&slice) {
            return Vec::new();
        }
        // What is being committed has its part.
        if self.phase == Phase::Committing {
            self.members.retain(|member| *member != slice);
            return Vec::new();
        }
        if self.planted.has(PlantedBug::LostForgotten) {
            self.members.retain(|member| *member != slice);
            return self.look_whether_written();
        }
        self.members.retain(|member| *member != slice);
        self.failed(&format!("{slice} is lost"))
    }

    /// Takes a message that only the coordinator is sent. One that does not belong to what goes on changes nothing: it is of
    /// a checkpoint that was given up.
    pub fn message(&mut self, from: SliceId, message: Message) -> Verdict {
        let is_of_this =
            message.number() == self.begun || self.planted.has(PlantedBug::NumberIgnored);
        if !is_of_this || !self.members.contains(&from) {
            return Vec::new();
        }
        match (message, &mut self.phase) {
            (Message::Prepared(_), Phase::Preparing { waiting }) => {
                waiting.remove(&from);
                if !waiting.is_empty() {
                    return Vec::new();
                }
                self.cut()
            }
            (Message::Written(_, part), Phase::Cutting { parts } | Phase::Writing { parts }) => {
                parts.insert(from, part);
                self.look_whether_written()
            }
            (Message::Failed(_, why), _) => {
                // It may go to a terminal, and who wrote it is not known.
                let why = why.replace(char::is_control, " ");
                self.failed(&format!("{from} has not written its part: {why}"))
            }
            _ => Vec::new(),
        }
    }

    fn look_whether_written(&mut self) -> Verdict {
        let Phase::Writing { parts } = &mut self.phase else { return Vec::new() };
        let all = self.members.iter().all(|slice| parts.contains_key(slice));
        if !all && !self.planted.has(PlantedBug::CommitsEarly) {
            return Vec::new();
        }
        let parts = std::mem::take(parts).into_iter().collect();
        self.phase = Phase::Committing;
        let mut verdict = vec![Effect::Commit(parts)];
        if self.planted.has(PlantedBug::GoesOnUncommitted) {
            verdict.push(Effect::GoOn);
        }
        verdict
    }

    fn to_all(&self, message: &Message) -> Verdict {
        self.members.iter().map(|slice| Effect::Send(*slice, message.clone())).collect()
    }
}
