//! Parts of a VM that move at random, while somebody else looks at its guest: a vCPU, all of a slice, all of the VM.
//!
//! ```text
//!   plan ─> tessera vm ─┬─ done: how long it took ──┬─> now and then a pause ─> rest ─> plan
//!     move, drain,      ├─ given up: why ───────────┤
//!     spread,           ├─ nothing to do ───────────┘
//!     consolidate       └─ anything else: an error, and the end
//! ```
//! Behind all but moves of vCPUs, the VM is asked where everything is.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::ExitStatus;

use crate::soak::move_plan::{Act, Plan, Step};
use crate::vm::companion::Companion;
use crate::vm::output::Output;
use crate::vm::relocate::Said;
use crate::vm::scenario::{Scenario, listens_at};

/// All of a slice goes to others, and all of the VM to as few as have room.
const DRAIN: &str = "drain";
const CONSOLIDATE: &str = "consolidate";
/// Between tries before the guest runs.
const POLL: Duration = Duration::from_millis(200);
/// From the first error to the end of a VM that ends anyway.
const END_LIMIT: Duration = Duration::from_secs(30);
/// From the answer that a slice has left to the end of its process.
pub(crate) const LEAVE_LIMIT: Duration = Duration::from_secs(60);

/// How often something was done to a whole slice or VM, and how long it took, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Relocations {
    pub(crate) times: Vec<f64>,
    /// All was as it was to be.
    pub(crate) nothing: usize,
}

/// What has come of moves. Times are in milliseconds, as the slice that coordinates tells them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Moves {
    /// Of single vCPUs.
    pub(crate) times: Vec<f64>,
    /// More than single vCPUs, by name.
    pub(crate) relocations: BTreeMap<&'static str, Relocations>,
    /// How many were given up, by cause.
    pub(crate) given_up: BTreeMap<String, usize>,
    pub(crate) pauses: u32,
}

impl Moves {
    /// Moves that ended, well or given up.
    pub(crate) fn count(&self) -> usize {
        let of = |one: &Relocations| one.times.len() + one.nothing;
        let relocations: usize = self.relocations.values().map(of).sum();
        self.times.len() + relocations + self.given_up.values().sum::<usize>()
    }

    /// Those of them that have moved something.
    fn done(&self) -> usize {
        let relocations: usize = self.relocations.values().map(|one| one.times.len()).sum();
        self.times.len() + relocations
    }

    /// How often a slice was left without memory.
    pub(crate) fn emptied(&self) -> usize {
        let of = |name| self.relocations.get(name).map_or(0, |one| one.times.len());
        of(CONSOLIDATE) + of(DRAIN)
    }

    /// Adds those of another VM.
    pub(crate) fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.pauses += other.pauses;
        for (name, more) in other.relocations {
            let of = self.relocations.entry(name).or_default();
            of.times.extend(more.times);
            of.nothing += more.nothing;
        }
        for (cause, count) in other.given_up {
            *self.given_up.entry(cause).or_default() += count;
        }
    }

    /// Notes what was said of something with a name, none for the move of a vCPU; in words.
    fn note(&mut self, name: Option<&'static str>, said: Said) -> String {
        match (said, name) {
            (Said::Took(milliseconds), name) => {
                let times = match name {
                    Some(name) => &mut self.relocations.entry(name).or_default().times,
                    None => &mut self.times,
                };
                times.push(milliseconds);
                format!("{milliseconds:.1} ms")
            }
            (Said::Nothing(why), Some(name)) => {
                self.relocations.entry(name).or_default().nothing += 1;
                format!("nothing to do: {why}")
            }
            (Said::GivenUp(cause) | Said::Nothing(cause), _) => {
                let said = format!("given up: {cause}");
                *self.given_up.entry(cause).or_default() += 1;
                said
            }
        }
    }
}

/// The smallest of the times that at least this share is not above; none of no times.
pub(crate) fn quantile(times: &[f64], hundredths: usize) -> Option<f64> {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    let rank = (times.len() * hundredths).div_ceil(100).max(1);
    times.get(rank - 1).copied()
}

impl fmt::Display for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |times: &[f64], hundredths| quantile(times, hundredths).unwrap_or(f64::NAN);
        write!(
            f,
            "{} moves, p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms; {} given up; {} pauses between",
            self.times.len(),
            time(&self.times, 50),
            time(&self.times, 99),
            time(&self.times, 100),
            self.given_up.values().sum::<usize>(),
            self.pauses
        )?;
        for (name, Relocations { times, nothing }) in &self.relocations {
            let (p50, longest) = (time(times, 50), time(times, 100));
            write!(f, "\n  {} x {name}", times.len())?;
            if !times.is_empty() {
                write!(f, ", p50 {p50:.1} ms, longest {longest:.1} ms")?;
            }
            write!(f, "; {nothing} x nothing to do")?;
        }
        self.given_up.iter().try_for_each(|(cause, count)| write!(f, "\n  {count} x {cause}"))
    }
}

/// What the thread that moves and the one that looks at the VM tell each other.
#[derive(Debug, Default)]
pub(crate) struct During {
    /// A move has ended.
    pub(crate) begun: AtomicBool,
    /// Tests that the guest has done.
    pub(crate) tests: AtomicUsize,
    /// Moves that have begun, and the number of the last one that has moved something.
    pub(crate) acts: AtomicUsize,
    pub(crate) done: AtomicUsize,
    /// Nothing moves any more.
    pub(crate) stopped: AtomicBool,
    /// The VM has no reason to end, nor anybody to have it end: once a move has ended, each error of another is one.
    pub(crate) healthy: AtomicBool,
    /// The VM has ended.
    pub(crate) over: AtomicBool,
}

/// Moves the parts of one VM.
#[derive(Debug)]
pub(crate) struct Mover<'a> {
    scenario: Scenario<'a>,
    plan: Plan,
    pub(crate) moves: Moves,
    /// What the end of the VM does not explain.
    pub(crate) problems: Vec<String>,
    /// Why the last move before the first that ended did not.
    pub(crate) first_error: Option<String>,
    /// Whether there are pauses and rests between moves.
    rests: bool,
    /// Tests after which a slice leaves.
    leave_after: Option<usize>,
    /// Those of the VM, if a slice may leave.
    companions: &'a [Companion],
    /// Who hears what slices that join say, if slices may.
    heard_by: Option<&'a Arc<Output>>,
    /// The slice that has left, and may have another one come to its host.
    left: Option<usize>,
    /// Those of slices that have joined.
    pub(crate) newcomers: Vec<Companion>,
}

impl<'a> Mover<'a> {
    /// One that moves vCPUs, and nothing more.
    pub(crate) fn new(scenario: &Scenario<'a>, seed: u64) -> Self {
        Self {
            scenario: *scenario,
            plan: Plan::new(seed, scenario.layout.vcpus()),
            moves: Moves::default(),
            problems: Vec::new(),
            first_error: None,
            rests: true,
            leave_after: None,
            companions: &[],
            heard_by: None,
            left: None,
            newcomers: Vec::new(),
        }
    }

    /// One with nothing between moves, so that one goes on most of the time.
    pub(crate) fn without_rest(self) -> Self {
        Self { rests: false, ..self }
    }

    /// One that also drains slices, spreads and consolidates.
    pub(crate) fn with_relocations(mut self) -> Self {
        self.plan.relocates = true;
        self
    }

    /// One that knows a slice with devices on its host: it cannot be drained.
    pub(crate) fn with_bound(mut self, slice: usize) -> Self {
        self.plan.bound = Some(slice);
        self
    }

    /// One that, in some VMs, has a slice leave once the guest has done the most of its tests.
    pub(crate) fn with_leaver(mut self, companions: &'a [Companion], tests: usize) -> Self {
        self.leave_after = self.plan.leave_after(tests);
        Self { companions, ..self }
    }

    /// One that has a slice leave in each VM, after so many tests.
    pub(crate) fn with_leave_after(self, tests: usize) -> Self {
        Self { leave_after: Some(tests), ..self }
    }

    /// One that has another slice join on the host of the one that has left.
    pub(crate) fn with_newcomer(self, heard_by: &'a Arc<Output>) -> Self {
        Self { heard_by: Some(heard_by), ..self }
    }

    /// Whether a slice of this VM is to leave once no more moves are wanted.
    pub(crate) fn may_leave(&mut self) -> bool {
        self.plan.leave_after(1).is_some()
    }

    /// One move, a pause now and then, and a rest.
    pub(crate) fn step(&mut self) -> Result<()> {
        let Some(Step { act, pause, rest }) = self.plan.draw() else {
            thread::sleep(POLL);
            return Ok(());
        };
        self.act(act)?;
        if !self.rests {
            return Ok(());
        }
        if let Some(time) = pause {
            self.pause(time)?;
        }
        thread::sleep(rest);
        Ok(())
    }

    fn act(&mut self, act: Act) -> Result<()> {
        let Act::Move { vcpu, to } = act else {
            let (name, what, words) = match act {
                Act::Drain(slice) => {
                    let words = vec!["drain".to_owned(), slice.to_string(), "--stay".to_owned()];
                    (DRAIN, format!("drain of slice{slice}"), words)
                }
                Act::Consolidate => {
                    let words = ["consolidate", "--stay"].map(str::to_owned).to_vec();
                    (CONSOLIDATE, "consolidation".to_owned(), words)
                }
                _ => ("spread", "spread".to_owned(), vec!["spread".to_owned()]),
            };
            return self.relocate(name, &what, &words).map(drop);
        };
        let what = format!("move of vcpu{vcpu} from slice{} to slice{to}", self.plan.places[vcpu]);
        let said = self.scenario.ask_vm(&["move", &vcpu.to_string(), &to.to_string()])?;
        if matches!(said, Said::Took(_)) {
            self.plan.places[vcpu] = to;
        }
        let said = self.moves.note(None, said);
        self.scenario.progress.say(&format!("{what}: {said}"));
        Ok(())
    }

    /// Something that is about more than one vCPU; whether it was done.
    fn relocate(&mut self, name: &'static str, what: &str, words: &[String]) -> Result<bool> {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let said = self.scenario.ask_vm(&words)?;
        let done = matches!(said, Said::Took(_));
        let said = self.moves.note(Some(name), said);
        let places = self.scenario.places()?;
        self.plan.learn(&places);
        let each = places.iter().map(|of| format!("slice{} {:?}", of.slice, of.vcpus));
        let each = each.collect::<Vec<_>>().join(", ");
        self.scenario.progress.say(&format!("{what}: {said}; vCPUs: {each}"));
        Ok(done)
    }

    /// A slice leaves, and the VM goes on without it. `ended` waits for its process to end well.
    pub(crate) fn leave(&mut self, ended: impl Fn(&Self, usize) -> Result<()>) -> Result<()> {
        let slice = self.plan.leaver();
        let words = ["drain".to_owned(), slice.to_string()];
        if !self.relocate("leave", &format!("slice{slice} leaves"), &words)? {
            return Ok(());
        }
        if self.plan.has(slice) {
            self.problems.push(format!("slice{slice} has left, and is a member"));
        }
        match ended(self, slice) {
            Ok(()) => self.left = Some(slice),
            Err(error) => self.problems.push(format!("slice{slice} has left: {error:#}")),
        }
        Ok(())
    }

    /// A slice joins on the host of the one that has left, if the bootstrap's coordinates, which has the secret.
    fn join(&mut self, output: &Arc<Output>, left: usize) -> Result<()> {
        if left == 0 || !self.scenario.is_led_by_the_bootstrap()? {
            return Ok(());
        }
        let (joined, host) = (self.scenario.joined, self.scenario.host(left)?);
        let slice = joined.bound(self.scenario.layout.slices());
        self.newcomers.push(self.scenario.start_newcomer(left, output)?);
        joined.note(slice, left);
        let words = ["add".to_owned(), listens_at(&host)];
        let what = format!("slice{slice} joins on host {}", host.number());
        if self.relocate("add", &what, &words)? && !self.plan.has(slice) {
            self.problems.push(format!("slice{slice} has joined, and is no member"));
        }
        Ok(())
    }

    /// Waits for the process of a slice that has left. How the bootstrap's ends is judged with the VM.
    fn ended(&self, slice: usize) -> Result<()> {
        if slice == 0 {
            let until = Instant::now() + LEAVE_LIMIT;
            while !self.scenario.bootstrap_has_left()? {
                ensure!(Instant::now() < until, "its process does not say so");
                thread::sleep(POLL);
            }
            return Ok(());
        }
        let companion = self.companions.get(slice - 1).context("a companion for each slice")?;
        let (status, last) = (companion.wait(LEAVE_LIMIT)?, companion.last_words());
        ensure!(status == ExitStatus::Code(0), "it ended with {status}: {last}");
        Ok(())
    }

    /// Moves from before the guest runs until the VM is over. An error that the end of the VM explains is none.
    pub(crate) fn beside(&mut self, during: &During) -> Result<()> {
        let result = self.move_on(during);
        during.stopped.store(true, Ordering::SeqCst);
        result
    }

    fn move_on(&mut self, during: &During) -> Result<()> {
        let is_over = || during.over.load(Ordering::SeqCst);
        while !is_over() {
            let tests = during.tests.load(Ordering::SeqCst);
            let act = during.acts.fetch_add(1, Ordering::SeqCst) + 1;
            let before = self.moves.done();
            let result = match self.leave_after.take_if(|after| tests > *after) {
                Some(_) => self.leave(Self::ended),
                None => match (self.heard_by, self.left.take()) {
                    (Some(output), Some(left)) => self.join(output, left),
                    _ => self.step(),
                },
            };
            let begun = self.moves.count() > 0;
            if self.moves.done() > before {
                during.done.store(act, Ordering::SeqCst);
            }
            during.begun.store(begun, Ordering::SeqCst);
            let Err(error) = result else { continue };
            if begun && during.healthy.load(Ordering::SeqCst) {
                return Err(error);
            }
            if !begun {
                self.first_error = Some(format!("{error:#}"));
            }
            let until = Instant::now() + if begun { END_LIMIT } else { POLL };
            while !is_over() && Instant::now() < until {
                thread::sleep(POLL);
            }
            if begun && !is_over() {
                return Err(error);
            }
        }
        Ok(())
    }

    fn pause(&mut self, time: Duration) -> Result<()> {
        let done = |said: Said| {
            ensure!(matches!(said, Said::Took(_)), "it was not done: {said:?}");
            Ok(())
        };
        done(self.scenario.ask_vm(&["pause"])?)?;
        thread::sleep(time);
        done(self.scenario.ask_vm(&["resume"])?)?;
        self.moves.pauses += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_that_were_seen() {
        let times: Vec<_> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(
            [50, 99, 100].map(|share| quantile(&times, share)),
            [100.0, 198.0, 200.0].map(Some)
        );
        assert_eq!(quantile(&[5.0], 1), Some(5.0));
        assert_eq!(quantile(&[], 50), None);
    }

    #[test]
    fn all_moves_and_causes_are_told() {
        let mut moves = Moves { pauses: 1, ..Moves::default() };
        let cause = || Said::GivenUp("it waits".to_owned());
        assert_eq!(moves.note(None, Said::Took(3.0)), "3.0 ms");
        assert_eq!(moves.note(None, cause()), "given up: it waits");
        moves.note(Some("drain"), Said::Took(70.0));
        let mut others = Moves::default();
        others.note(None, Said::Took(1.0));
        others.note(Some("drain"), Said::Took(80.0));
        others.note(Some("drain"), cause());
        others.note(Some("spread"), Said::Nothing("all is even".to_owned()));
        moves.add(others);
        assert_eq!((moves.count(), moves.done(), moves.emptied()), (7, 4, 2));
        let told = "2 moves, p50 1.0 ms, p99 3.0 ms, longest 3.0 ms; 2 given up; 1 pauses between\n  \
                    2 x drain, p50 70.0 ms, longest 80.0 ms; 0 x nothing to do\n  \
                    0 x spread; 1 x nothing to do\n  2 x it waits";
        assert_eq!(moves.to_string(), told);
    }
}
