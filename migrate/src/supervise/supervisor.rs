//! The machine that decides. `mod` draws its states.

use super::layout::{Layout, Plan};
use super::planted::PlantedBug;
use super::policy::Policy;
use super::shelf::Shelf;
use super::verdict::{Cause, Effect, Lives, Reason, Verdict};
use crate::planted::Planted;
use std::collections::{BTreeSet, VecDeque};

/// Hosts that do not answer are asked again after this.
const ASK_EVERY_MS: u64 = 500;
/// The second start again waits so long, each further one twice as long as the one before.
const BACK_OFF_MS: u64 = 2000;
/// At most, where what keeps the VM from beginning may last.
const BACK_OFF_MAX_MS: u64 = 30_000;
/// After so many starts in a row that were refused, another one of the hosts is left out.
const REFUSALS_MAX: u32 = 2;
/// A checkpoint that failed is tried again after this, or after twice, four times ... as long, and at most after the usual time.
const RETRY_MS: u64 = 1000;
/// A checkpoint that is not there after so many times the usual time holds later ones up. It is said then, and after twice, four times ... as long.
const LATE_AFTER: u64 = 2;

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
        /// Before its memory was read.
        lazy: bool,
        /// The guest does.
        runs: bool,
        checkpoint_at: u64,
        /// It is stopped from outside, and lost then.
        kill_at: Option<u64>,
    },
    Over,
}

/// A checkpoint that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pending {
    number: u64,
    since: u64,
    /// It is late then, or later than was said.
    late_at: u64,
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
    pending: Option<Pending>,
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
    /// The last life of the VM that was begun here, if its number is known.
    life: Option<u64>,
    /// Since then, again.
    is_again: bool,
    /// Starts in a row that were refused.
    refusals: u32,
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
            life: None,
            is_again: false,
            refusals: 0,
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

    /// When all slices of former lives have surely stopped.
    #[must_use]
    pub fn fenced_at(&self) -> u64 {
        self.fenced_at
    }

    /// The last life of the VM that was begun here, if its number is known. Whoever supervises the VM next is to know it.
    #[must_use]
    pub fn life(&self) -> Option<u64> {
        self.life
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
            Phase::Waiting { ask_at, asked: false, .. } => {
                Some(self.pending.map_or(*ask_at, |pending| pending.late_at))
            }
            Phase::Alive { runs, checkpoint_at, kill_at, .. } => {
                let writes = *runs && !self.unwanted && kill_at.is_none();
                let next = self.pending.map_or(*checkpoint_at, |pending| pending.late_at);
                writes.then_some(next).into_iter().chain(*kill_at).min()
            }
            Phase::New | Phase::Waiting { asked: true, .. } | Phase::Over => None,
        }
    }

    /// The VM is to run.
    pub fn begin(&mut self, now: u64) -> Verdict {
        if self.phase == Phase::New {
            self.wait(now, now);
        }
        self.passed(now)
    }

    /// The VM is to run on: one that supervised it before has ended just now at the latest, and the VM had not. Slices of it may still be
    /// there. `life` is what [`Self::life`] said last.
    pub fn begin_again(&mut self, now: u64, life: Option<u64>) -> Verdict {
        if self.phase == Phase::New {
            (self.has_begun, self.life) = (true, life);
            if !self.planted.has(PlantedBug::FormerForgotten) {
                self.fenced_at = now.saturating_add(self.stopped_after());
            }
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
            Phase::Alive { kill_at, .. } if kill_at.is_some_and(|at| now >= at) => {
                *kill_at = None;
                vec![Effect::Kill]
            }
            Phase::Waiting { .. } | Phase::Alive { .. } if self.pending.is_some() => self.late(now),
            Phase::Waiting { asked, .. } => {
                *asked = true;
                vec![Effect::Ask]
            }
            Phase::Alive { .. } => self.checkpoint(now),
            Phase::New | Phase::Over => Vec::new(),
        }
    }

    /// Nothing else can be done: whoever writes it takes the next one after that, and the VM, if it is lost, may go on from it.
    fn late(&mut self, now: u64) -> Verdict {
        let Some(Pending { number, since, late_at }) = &mut self.pending else { return Vec::new() };
        let waited = now.saturating_sub(*since);
        *late_at = now.saturating_add(waited.max(1));
        let late = Effect::Late { number: *number, since: *since };
        if self.planted.has(PlantedBug::LateUnsaid) { Vec::new() } else { vec![late] }
    }

    fn checkpoint(&mut self, now: u64) -> Verdict {
        let number = self.next;
        self.next += 1;
        let late_at = now.saturating_add(self.policy.every_ms.saturating_mul(LATE_AFTER));
        self.pending = Some(Pending { number, since: now, late_at });
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
        let since = *since;
        let is_late = now >= since.saturating_add(self.policy.gather_ms);
        let layout = self.plan.as_planned(answering);
        let layout = layout.or_else(|| self.plan.without(answering).filter(|_| is_late));
        let Some(usual) = layout else {
            if is_late && self.planted.has(PlantedBug::AskedOnce) {
                *asked = true;
            }
            return Vec::new();
        };
        let layout = self.without_one(answering).unwrap_or(usual);
        let from = self.shelf.best(self.planted);
        let anew = self.shelf.is_empty() || self.planted.has(PlantedBug::BeginsAnew);
        if from.is_none() && !anew {
            return self.over(Reason::NoCheckpoint);
        }
        // Without a checkpoint there is nothing to do before its disks are used.
        let begins_early = from.is_none() && now < self.fenced_at;
        if begins_early && !self.planted.has(PlantedBug::BeginsUnfenced) {
            self.wait(since, self.fenced_at);
            return Vec::new();
        }
        self.is_again = std::mem::replace(&mut self.has_begun, true);
        if self.is_again {
            self.restarts.push_back(now);
        }
        // Nobody there knows what memory was at an earlier checkpoint.
        if !self.planted.has(PlantedBug::IncrementOfFormerLife) {
            self.chain = None;
        }
        // What ended it may have been damage, which is found before the guest runs if all is read.
        let is_first = from.is_some_and(|number| self.shelf.tries(number));
        let is_first = is_first || self.planted.has(PlantedBug::AlwaysLazy) && from.is_some();
        let lazy = self.policy.lazy && is_first;
        self.phase = Phase::Alive { from, lazy, runs: false, checkpoint_at: 0, kill_at: None };
        let unfenced = self.planted.has(PlantedBug::RunsUnfenced);
        let fenced_at = if unfenced { now } else { self.fenced_at };
        let lives = self.lives(from);
        vec![Effect::Start { from, lazy, fenced_at, lives, layout }]
    }

    /// Starts are refused, perhaps because of a host that answers: one after another is left out, and none, each for some starts.
    fn without_one(&self, answering: &BTreeSet<u16>) -> Option<Layout> {
        let turn = usize::try_from(self.refusals / REFUSALS_MAX).ok()? % (answering.len() + 1);
        let doubted = answering.iter().nth(turn.checked_sub(1)?)?;
        let others = answering.iter().filter(|host| *host != doubted).copied().collect();
        self.plan.without(&others)
    }

    /// Which life begins.
    fn lives(&mut self, from: Option<u64>) -> Option<Lives> {
        if from.is_none() {
            // Another VM, of which nobody has heard.
            self.life = Some(0);
            return None;
        }
        let last = self.life.filter(|_| !self.planted.has(PlantedBug::LifeForgotten))?;
        let next = last.saturating_add(1);
        if !self.planted.has(PlantedBug::TriesForgotten) {
            self.life = Some(next);
        }
        Some(Lives { last, next })
    }

    /// The guest runs: that of this life.
    pub fn runs(&mut self, now: u64, life: u64) {
        let Phase::Alive { from, runs: runs @ false, checkpoint_at, .. } = &mut self.phase else {
            return;
        };
        self.life = Some(life);
        (*runs, *checkpoint_at) = (true, now.saturating_add(self.policy.every_ms));
        self.refusals = 0;
        if let Some(number) = *from {
            self.shelf.runs(number);
        }
    }

    /// A checkpoint exists; what it is an increment of.
    pub fn committed(&mut self, now: u64, number: u64, base: Option<u64>) -> Verdict {
        if self.pending.is_none_or(|pending| pending.number != number) {
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
        if self.pending.is_none_or(|pending| pending.number != number) {
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
        let Phase::Alive { from, lazy, runs, .. } = self.phase else { return Vec::new() };
        // What was to go on never did. Whoever starts it the next time must not begin anew over its disks.
        if self.unwanted && self.is_again && !runs && !self.planted.has(PlantedBug::EndWithoutLife)
        {
            return self.over(Reason::Stopped);
        }
        let is_wanted = match cause {
            Cause::Wanted => !self.planted.has(PlantedBug::EndForgotten),
            Cause::Panicked => !self.policy.on_panic,
            // As it would be without a supervisor.
            Cause::Refused => !self.is_again,
            // Whoever restored it wants it there, and its disks have what it has done since.
            Cause::Overtaken => !self.planted.has(PlantedBug::TakesBack),
            Cause::Lost | Cause::Damaged => false,
        };
        if is_wanted || self.unwanted {
            return self.over(Reason::Ended(cause));
        }
        match (cause, from) {
            (Cause::Damaged, Some(number)) => self.shelf.damaged(number),
            (Cause::Lost, Some(number)) if !runs => self.shelf.failed(number),
            (Cause::Refused, Some(number)) if !lazy => self.shelf.refused(number),
            _ => {}
        }
        // One that was refused has started nothing; what was there before may still be. One that ends before the time that it was told
        // has used nothing either.
        let has_used = now >= self.fenced_at;
        if has_used
            && matches!(cause, Cause::Lost | Cause::Panicked | Cause::Overtaken | Cause::Wanted)
        {
            self.fenced_at = now.saturating_add(self.stopped_after());
        }
        let back_off = match cause {
            Cause::Refused => self.refused(),
            // No life of the VM either, and each checkpoint is found to be damaged once.
            Cause::Damaged if !self.planted.has(PlantedBug::DamageCounts) => {
                self.restarts.pop_back();
                0
            }
            Cause::Lost | Cause::Damaged | Cause::Panicked | Cause::Overtaken | Cause::Wanted => {
                match self.lost(now) {
                    Ok(back_off) => back_off,
                    Err(too_often) => return self.over(too_often),
                }
            }
        };
        self.wait(now, now.saturating_add(back_off));
        if self.planted.has(PlantedBug::PendingForgotten) {
            self.pending = None;
        }
        self.passed(now)
    }

    /// A start that was refused is no life of the VM, and does not count: storage or hosts that do not answer, or somebody who has a
    /// disk, may be the cause for as long as they like. How long to wait.
    fn refused(&mut self) -> u64 {
        if !self.planted.has(PlantedBug::RefusedCounts) {
            self.restarts.pop_back();
        }
        let doubled = self.refusals.min(16);
        self.refusals = self.refusals.saturating_add(1);
        (BACK_OFF_MS << doubled).min(BACK_OFF_MAX_MS)
    }

    /// How long to wait, unless it was lost too often.
    fn lost(&mut self, now: u64) -> Result<u64, Reason> {
        let window = self.policy.window_ms;
        while self.restarts.front().is_some_and(|first| first.saturating_add(window) <= now) {
            self.restarts.pop_front();
        }
        let times = self.restarts.len();
        if times >= self.policy.restarts_max && !self.planted.has(PlantedBug::NoBound) {
            return Err(Reason::TooOften(times));
        }
        let doubled = u32::try_from(times).unwrap_or(u32::MAX).saturating_sub(1).min(16);
        Ok(if times == 0 { 0 } else { BACK_OFF_MS << doubled })
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
