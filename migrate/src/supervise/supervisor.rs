//! The machine that decides. `mod` draws its states.

use super::layout::{Layout, Plan};
use super::planted::PlantedBug;
use super::shelf::Shelf;
use crate::planted::Planted;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;

/// Beyond what can be reckoned, for the fence to shut and the process to end.
const MARGIN_MS: u64 = 500;
/// Hosts that do not answer are asked again after this.
const ASK_EVERY_MS: u64 = 500;
/// The second start again waits so long, each further one twice as long as the one before.
const BACK_OFF_MS: u64 = 2000;
/// A checkpoint that failed is tried again after this, or after twice, four times ... as long, and at most after the usual time.
const RETRY_MS: u64 = 1000;

/// What the user has said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// From one checkpoint to the next.
    pub every_ms: u64,
    /// How many are kept, at least one.
    pub keep: usize,
    /// Of so many in a row the first one is full, and each other an increment of the one before. With 1 all are full.
    pub full_every: u32,
    /// A slice that is silent for so long is lost.
    pub lease_ms: u64,
    /// How far clocks of two hosts drift apart in that time.
    pub clock_error_ms: u64,
    /// For hosts to answer after a loss, before the VM goes on without them.
    pub gather_ms: u64,
    /// So many starts again...
    pub restarts_max: usize,
    /// ... in so long without a new checkpoint, and it is given up.
    pub window_ms: u64,
    /// A guest whose kernel has panicked goes on from a checkpoint too.
    pub on_panic: bool,
}

impl Policy {
    /// From the end of one slice of a VM until all others have surely stopped: they hear nothing of it, and count silence in
    /// quarters of a lease, of which the first may be cut short.
    #[must_use]
    pub fn stopped_after(&self) -> u64 {
        let silence = self.lease_ms.saturating_add(self.lease_ms.div_ceil(4));
        silence.saturating_add(2 * self.clock_error_ms).saturating_add(MARGIN_MS)
    }
}

/// How a VM ended, or did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// As its guest or its user wanted it, or its time was over.
    Wanted,
    /// Its guest's kernel panicked.
    Panicked,
    /// A slice is lost, cannot go on, or was killed.
    Lost,
    /// It did not begin.
    Refused,
    /// It did not begin because its checkpoint is not what was written.
    Damaged,
}

/// Why nothing is supervised any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The VM has ended, and is not to be started again.
    Ended(Cause),
    /// The user wants the end while nothing runs.
    Stopped,
    /// It was started again so many times without a new checkpoint.
    TooOften(usize),
    /// No checkpoint of it can be gone on from.
    NoCheckpoint,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(Cause::Wanted) => f.write_str("the VM has ended"),
            Self::Ended(Cause::Panicked) => f.write_str("the guest's kernel has panicked"),
            Self::Ended(_) => f.write_str("the VM did not begin"),
            Self::Stopped => f.write_str("stopped while the VM did not run"),
            Self::TooOften(times) => write!(
                f,
                "given up: the VM was started again {times} times, and ended each time before a new checkpoint"
            ),
            Self::NoCheckpoint => {
                f.write_str("given up: no checkpoint of the VM can be gone on from")
            }
        }
    }
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Find out which other hosts answer; told by [`Supervisor::answers`].
    Ask,
    /// Start the VM anew, or from a checkpoint.
    Start {
        /// The checkpoint.
        from: Option<u64>,
        /// Where.
        layout: Layout,
    },
    /// Have a checkpoint written; told by [`Supervisor::committed`] or [`Supervisor::not_committed`].
    Checkpoint {
        /// Its number.
        number: u64,
        /// It is an increment of this one, which is the last one of this life of the VM.
        base: Option<u64>,
    },
    /// Delete what there is of a checkpoint.
    Delete(u64),
    /// Ask the VM to stop.
    Stop,
    /// Kill the process: its peers have given it up.
    Kill,
    /// Nothing is supervised any more.
    Over(Reason),
}

/// What follows from an input, in this order.
pub type Verdict = Vec<Effect>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    New,
    /// Nothing runs here. Hosts are asked, but not before this time.
    Waiting {
        /// When the wait began.
        since: u64,
        ask_at: u64,
        /// They have been, and their answers are on their way.
        asked: bool,
    },
    /// A process runs.
    Alive {
        from: Option<u64>,
        /// The guest does.
        runs: bool,
        checkpoint_at: u64,
        /// It is stopped from outside, and lost then.
        kill_at: Option<u64>,
    },
    Over,
}

/// Decides about one VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Supervisor {
    policy: Policy,
    plan: Plan,
    shelf: Shelf,
    phase: Phase,
    /// Number of the next checkpoint.
    next: u64,
    /// One that is being written, perhaps by a VM that has ended.
    pending: Option<u64>,
    /// Checkpoints in a row that were not written.
    failures: u32,
    /// The last one that this life of the VM has written, and how many were increments since the last full one: none after one that failed.
    chain: Option<(u64, u32)>,
    /// When it was started again since the last checkpoint.
    restarts: VecDeque<u64>,
    /// Slices of the VM may be there until then.
    fenced_at: u64,
    /// It was started once.
    has_begun: bool,
    /// A guest has run.
    has_run: bool,
    /// Somebody wants the end.
    unwanted: bool,
    planted: Planted<PlantedBug>,
}

impl Supervisor {
    /// For a VM that has these checkpoints; `next` is the number of its next one.
    #[must_use]
    pub fn new(policy: Policy, plan: Plan, shelf: Shelf, next: u64) -> Self {
        Self {
            policy,
            plan,
            shelf,
            phase: Phase::New,
            next,
            pending: None,
            failures: 0,
            chain: None,
            restarts: VecDeque::new(),
            fenced_at: 0,
            has_begun: false,
            has_run: false,
            unwanted: false,
            planted: Planted::default(),
        }
    }

    /// With a bug that a model is to find.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn plant(self, bug: PlantedBug) -> Self {
        Self { planted: Planted::some(bug), ..self }
    }

    /// Whether it has said [`Effect::Over`].
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The VM as it is to be.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// When [`Self::passed`] has something to do next, if nothing happens before.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        match &self.phase {
            Phase::Waiting { ask_at, asked: false, .. } if self.pending.is_none() => Some(*ask_at),
            Phase::Alive { runs, checkpoint_at, kill_at, .. } => {
                let writes = *runs && self.pending.is_none() && !self.unwanted && kill_at.is_none();
                writes.then_some(*checkpoint_at).into_iter().chain(*kill_at).min()
            }
            Phase::New | Phase::Waiting { .. } | Phase::Over => None,
        }
    }

    /// The VM is to run.
    pub fn begin(&mut self, now: u64) -> Verdict {
        if self.phase == Phase::New {
            self.wait(now, now);
        }
        self.passed(now)
    }

    /// Time has passed.
    pub fn passed(&mut self, now: u64) -> Verdict {
        if self.due().is_none_or(|due| now < due) {
            return Vec::new();
        }
        match &mut self.phase {
            Phase::Waiting { asked, .. } => {
                *asked = true;
                vec![Effect::Ask]
            }
            Phase::Alive { kill_at, .. } if kill_at.is_some_and(|at| now >= at) => {
                *kill_at = None;
                vec![Effect::Kill]
            }
            Phase::Alive { .. } => self.checkpoint(),
            Phase::New | Phase::Over => Vec::new(),
        }
    }

    fn checkpoint(&mut self) -> Verdict {
        let number = self.next;
        self.next += 1;
        self.pending = Some(number);
        let bounded = !self.planted.has(PlantedBug::NeverFull);
        let chain = self.chain.filter(|(_, increments)| {
            increments.saturating_add(1) < self.policy.full_every
                || (!bounded && self.policy.full_every > 1)
        });
        let mut verdict = vec![Effect::Checkpoint { number, base: chain.map(|(last, _)| last) }];
        if self.planted.has(PlantedBug::DeletesEarly) {
            let surplus = self.shelf.surplus(self.policy.keep - 1, self.planted);
            verdict.extend(surplus.into_iter().map(Effect::Delete));
        }
        verdict
    }

    /// These hosts answer, of those other than the supervisor's own.
    pub fn answers(&mut self, now: u64, answering: &BTreeSet<u16>) -> Verdict {
        let Phase::Waiting { since, ask_at, asked } = &mut self.phase else { return Vec::new() };
        if !std::mem::take(asked) {
            return Vec::new();
        }
        *ask_at = now.saturating_add(ASK_EVERY_MS);
        let all = self.planted.has(PlantedBug::AnswerIgnored).then(|| self.plan.others());
        let all = all.map(|others| others.into_iter().collect());
        let answering = all.as_ref().unwrap_or(answering);
        let is_late = now >= since.saturating_add(self.policy.gather_ms);
        let layout = self.plan.as_planned(answering);
        let layout = layout.or_else(|| self.plan.without(answering).filter(|_| is_late));
        let Some(layout) = layout else {
            if is_late && self.planted.has(PlantedBug::AskedOnce) {
                *asked = true;
            }
            return Vec::new();
        };
        let from = self.shelf.best(self.planted);
        let anew = self.shelf.is_empty() || self.planted.has(PlantedBug::BeginsAnew);
        if from.is_none() && !anew {
            return self.over(Reason::NoCheckpoint);
        }
        if std::mem::replace(&mut self.has_begun, true) {
            self.restarts.push_back(now);
        }
        self.phase = Phase::Alive { from, runs: false, checkpoint_at: 0, kill_at: None };
        // Nobody there knows what memory was at an earlier checkpoint.
        if !self.planted.has(PlantedBug::IncrementOfFormerLife) {
            self.chain = None;
        }
        vec![Effect::Start { from, layout }]
    }

    /// The guest runs.
    pub fn runs(&mut self, now: u64) {
        let Phase::Alive { from, runs: runs @ false, checkpoint_at, .. } = &mut self.phase else {
            return;
        };
        (*runs, *checkpoint_at) = (true, now.saturating_add(self.policy.every_ms));
        self.has_run = true;
        if let Some(number) = *from {
            self.shelf.runs(number);
        }
    }

    /// A checkpoint exists; what it is an increment of.
    pub fn committed(&mut self, now: u64, number: u64, base: Option<u64>) -> Verdict {
        if self.pending != Some(number) {
            return Vec::new();
        }
        self.pending = None;
        self.failures = 0;
        self.restarts.clear();
        let increments = self.chain.map_or(0, |(_, increments)| increments.saturating_add(1));
        self.chain = Some((number, if base.is_some() { increments } else { 0 }));
        self.shelf.add(number, base);
        self.next_checkpoint_after(now, self.policy.every_ms);
        let surplus = self.shelf.surplus(self.policy.keep.max(1), self.planted);
        surplus.into_iter().map(Effect::Delete).collect()
    }

    /// It does not, and will not.
    pub fn not_committed(&mut self, now: u64, number: u64) -> Verdict {
        if self.pending != Some(number) {
            return Vec::new();
        }
        self.pending = None;
        // Perhaps because it was to be an increment: whoever coordinates now may not know of the one before.
        if !self.planted.has(PlantedBug::IncrementAfterFailure) {
            self.chain = None;
        }
        let retry = RETRY_MS.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.next_checkpoint_after(now, retry.min(self.policy.every_ms));
        vec![Effect::Delete(number)]
    }

    fn next_checkpoint_after(&mut self, now: u64, time: u64) {
        if let Phase::Alive { checkpoint_at, .. } = &mut self.phase {
            *checkpoint_at = now.saturating_add(time);
        }
    }

    /// Something stops the process (SIGSTOP), or has it go on. Its peers lose it after a lease; a VM of one slice has none.
    pub fn halted(&mut self, now: u64, is_halted: bool) {
        let after = self.policy.stopped_after();
        if let Phase::Alive { kill_at, .. } = &mut self.phase
            && self.plan.slices.len() > 1
        {
            *kill_at = is_halted.then(|| now.saturating_add(after));
        }
    }

    /// The process has ended.
    pub fn ended(&mut self, now: u64, cause: Cause) -> Verdict {
        let Phase::Alive { from, runs, .. } = self.phase else { return Vec::new() };
        let is_wanted = match cause {
            Cause::Wanted => !self.planted.has(PlantedBug::EndForgotten),
            Cause::Panicked => !self.policy.on_panic,
            // As it would be without a supervisor.
            Cause::Refused => !self.has_run && self.restarts.is_empty(),
            Cause::Lost | Cause::Damaged => false,
        };
        if is_wanted || self.unwanted {
            return self.over(Reason::Ended(cause));
        }
        match (cause, from) {
            (Cause::Damaged, Some(number)) => self.shelf.damaged(number),
            (Cause::Lost, Some(number)) if !runs => self.shelf.failed(number),
            _ => {}
        }
        // One that was refused has started nothing; what was there before may still be.
        if matches!(cause, Cause::Lost | Cause::Panicked | Cause::Wanted) {
            self.fenced_at = now.saturating_add(self.stopped_after());
        }
        let window = self.policy.window_ms;
        while self.restarts.front().is_some_and(|first| first.saturating_add(window) <= now) {
            self.restarts.pop_front();
        }
        let times = self.restarts.len();
        if times >= self.policy.restarts_max && !self.planted.has(PlantedBug::NoBound) {
            return self.over(Reason::TooOften(times));
        }
        let doubled = u32::try_from(times).unwrap_or(u32::MAX).saturating_sub(1).min(16);
        let back_off = if times == 0 { 0 } else { BACK_OFF_MS << doubled };
        self.wait(now, self.fenced_at.max(now.saturating_add(back_off)));
        if self.planted.has(PlantedBug::PendingForgotten) {
            self.pending = None;
        }
        self.passed(now)
    }

    fn stopped_after(&self) -> u64 {
        if self.planted.has(PlantedBug::WaitsForNothing) {
            0
        } else if self.planted.has(PlantedBug::WaitsOneLease) {
            self.policy.lease_ms
        } else {
            self.policy.stopped_after()
        }
    }

    fn wait(&mut self, since: u64, ask_at: u64) {
        self.phase = Phase::Waiting { since, ask_at, asked: false };
    }

    /// Somebody wants the end.
    pub fn stop(&mut self) -> Verdict {
        match self.phase {
            Phase::New | Phase::Waiting { .. } if !self.planted.has(PlantedBug::StopForgotten) => {
                self.over(Reason::Stopped)
            }
            Phase::Alive { .. } => {
                self.unwanted = true;
                vec![Effect::Stop]
            }
            _ => Vec::new(),
        }
    }

    fn over(&mut self, reason: Reason) -> Verdict {
        self.phase = Phase::Over;
        vec![Effect::Over(reason)]
    }
}
