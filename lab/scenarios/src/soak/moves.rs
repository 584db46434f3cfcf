//! vCPUs of a VM that move at random, while somebody else looks at its guest.
//!
//! ```text
//!   plan ─> tessera vm move ─┬─ moved: how long it took ──┬─> now and then a pause ─> rest ─> plan
//!                            ├─ given up: why ────────────┘
//!                            └─ anything else: an error, and the end
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab::{Command, HostNumber, Stream};
use serde_json::Value;

use crate::vm::scenario::Scenario;

/// For a command of a slice.
const LIMIT: Duration = Duration::from_secs(150);
/// Longest rest after a move, in milliseconds. Some are shorter than what a move stirs up.
const REST_MS: u64 = 1500;
/// Longest pause, in milliseconds.
const PAUSE_MS: u64 = 1000;
/// One in so many moves is followed by a pause.
const PAUSES: u64 = 8;
/// How a move that was given up is told; the cause follows.
const GIVEN_UP: &str = "it was not moved and runs on where it was: ";
/// Between tries before the guest runs.
const POLL: Duration = Duration::from_millis(200);
/// From the first error to the end of a VM that ends anyway.
const END_LIMIT: Duration = Duration::from_secs(30);

/// One move, and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    vcpu: usize,
    to: usize,
    pause: Option<Duration>,
    rest: Duration,
}

/// Draws moves, each to a slice where its vCPU is not.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    random: fastrand::Rng,
    slices: usize,
    /// Slice of each vCPU.
    places: Vec<usize>,
}

impl Plan {
    /// For a VM with so many vCPUs on each slice, two slices at least.
    pub(crate) fn new(seed: u64, vcpus: impl Iterator<Item = u32>) -> Self {
        let (mut slices, mut places) = (0, Vec::new());
        for (slice, count) in vcpus.enumerate() {
            places.extend((0..count).map(|_| slice));
            slices = slice + 1;
        }
        Self { random: fastrand::Rng::with_seed(seed), slices, places }
    }

    fn draw(&mut self) -> Step {
        let vcpu = self.random.usize(0..self.places.len());
        let to = (self.places[vcpu] + self.random.usize(1..self.slices)) % self.slices;
        let pause = (self.random.u64(0..PAUSES) == 0)
            .then(|| Duration::from_millis(self.random.u64(0..PAUSE_MS)));
        // Half of the rests are short: the next move comes upon what the last one has stirred up.
        let longest = if self.random.bool() { REST_MS } else { REST_MS / 20 };
        Step { vcpu, to, pause, rest: Duration::from_millis(self.random.u64(0..longest)) }
    }
}

/// What has come of moves. Times are in milliseconds, as the bootstrap slice tells them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Moves {
    pub(crate) times: Vec<f64>,
    /// How many were given up, by cause.
    pub(crate) given_up: BTreeMap<String, u32>,
    pub(crate) pauses: u32,
}

impl Moves {
    /// Moves that ended, well or given up.
    pub(crate) fn count(&self) -> usize {
        let given_up: u32 = self.given_up.values().sum();
        self.times.len() + usize::try_from(given_up).unwrap_or(usize::MAX)
    }

    /// Adds those of another VM.
    pub(crate) fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.pauses += other.pauses;
        for (cause, count) in other.given_up {
            *self.given_up.entry(cause).or_default() += count;
        }
    }
}

/// The smallest of the times that at least this share is not above; none of no times.
fn quantile(times: &[f64], hundredths: usize) -> Option<f64> {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    let rank = (times.len() * hundredths).div_ceil(100).max(1);
    times.get(rank - 1).copied()
}

impl fmt::Display for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |hundredths| quantile(&self.times, hundredths).unwrap_or(f64::NAN);
        write!(
            f,
            "{} moves, p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms; {} given up; {} pauses between",
            self.times.len(),
            time(50),
            time(99),
            time(100),
            self.count() - self.times.len(),
            self.pauses
        )?;
        self.given_up.iter().try_for_each(|(cause, count)| write!(f, "\n  {count} x {cause}"))
    }
}

/// What the thread that moves and the one that looks at the VM tell each other.
#[derive(Debug, Default)]
pub(crate) struct During {
    /// A move has ended.
    pub(crate) begun: AtomicBool,
    /// The VM has ended.
    pub(crate) over: AtomicBool,
}

/// Moves the vCPUs of one VM.
#[derive(Debug)]
pub(crate) struct Mover<'a> {
    scenario: Scenario<'a>,
    plan: Plan,
    pub(crate) moves: Moves,
    /// Whether there are pauses and rests between moves.
    rests: bool,
}

impl<'a> Mover<'a> {
    pub(crate) fn new(scenario: &Scenario<'a>, seed: u64) -> Self {
        let plan = Plan::new(seed, scenario.layout.vcpus());
        Self { scenario: *scenario, plan, moves: Moves::default(), rests: true }
    }

    /// One with nothing between moves, so that one goes on most of the time.
    pub(crate) fn without_rest(self) -> Self {
        Self { rests: false, ..self }
    }

    /// One move, a pause now and then, and a rest.
    pub(crate) fn step(&mut self) -> Result<()> {
        let Step { vcpu, to, pause, rest } = self.plan.draw();
        let what = format!("move of vcpu{vcpu} from slice{} to slice{to}", self.plan.places[vcpu]);
        let words = ["move", &vcpu.to_string(), &to.to_string()];
        let said = match self.ask(&words).context(what.clone())? {
            Ok(milliseconds) => {
                self.moves.times.push(milliseconds);
                self.plan.places[vcpu] = to;
                format!("{milliseconds:.1} ms")
            }
            Err(cause) => {
                let said = format!("given up: {cause}");
                *self.moves.given_up.entry(cause).or_default() += 1;
                said
            }
        };
        self.scenario.progress.say(&format!("{what}: {said}"));
        if !self.rests {
            return Ok(());
        }
        if let Some(time) = pause {
            self.pause(time)?;
        }
        thread::sleep(rest);
        Ok(())
    }

    /// Moves from before the guest runs until the VM is over. An error that the end of the VM explains is none.
    pub(crate) fn beside(&mut self, during: &During) -> Result<()> {
        let is_over = || during.over.load(Ordering::SeqCst);
        while !is_over() {
            let result = self.step();
            let begun = self.moves.count() > 0;
            during.begun.store(begun, Ordering::SeqCst);
            let Err(error) = result else { continue };
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
        let done = |said: Result<f64, String>| said.map_err(anyhow::Error::msg);
        done(self.ask(&["pause"])?).context("pause")?;
        thread::sleep(time);
        done(self.ask(&["resume"])?).context("resume")?;
        self.moves.pauses += 1;
        Ok(())
    }

    /// `tessera vm WORDS` on the host of the bootstrap slice: how long it took there, or why it was given up.
    fn ask(&self, words: &[&str]) -> Result<Result<f64, String>> {
        let first = self.scenario.lab.host(HostNumber::new(1)?)?;
        let (program, control) = (self.scenario.program()?, self.scenario.control(first.number()));
        let words = [&[&program, "vm"], words, &["--control", &control, "--json"]].concat();
        let (status, lines) = first.run(&Command::new(words), LIMIT)?;
        let of = |stream| {
            let lines = lines.iter().filter(|line| line.stream == stream);
            lines.map(|line| line.text.trim()).collect::<Vec<_>>().join(" ")
        };
        let said = if status.success() { of(Stream::Out) } else { of(Stream::Error) };
        read(status.success(), &said).with_context(|| format!("it ended with {status}"))
    }
}

/// What a command has said: how long it took in milliseconds, or why a move was given up. Anything else is an error.
fn read(is_done: bool, said: &str) -> Result<Result<f64, String>> {
    if is_done {
        let answer: Value = serde_json::from_str(said).context("read what it says")?;
        let took = answer["milliseconds"].as_f64();
        return Ok(Ok(took.context("it does not say how long it took")?));
    }
    match said.split_once(GIVEN_UP) {
        Some((_, cause)) if !cause.is_empty() => Ok(Err(cause.to_owned())),
        _ => bail!("{said}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_go_elsewhere_to_each_slice_and_repeat_with_the_seed() {
        let drawn = |seed| {
            let mut plan = Plan::new(seed, [2, 1, 0].into_iter());
            assert_eq!((plan.slices, &plan.places[..]), (3, &[0, 0, 1][..]));
            let steps = (0..200).map(|_| {
                let step = plan.draw();
                assert_ne!(plan.places[step.vcpu], step.to);
                plan.places[step.vcpu] = step.to;
                step
            });
            steps.collect::<Vec<_>>()
        };
        let steps = drawn(7);
        for vcpu in 0..3 {
            for to in 0..3 {
                assert!(steps.iter().any(|step| (step.vcpu, step.to) == (vcpu, to)));
            }
        }
        assert!(steps.iter().any(|step| step.pause.is_some()));
        assert_eq!(steps, drawn(7));
        assert_ne!(steps, drawn(8));
    }

    #[test]
    fn move_is_done_or_given_up_with_a_cause() {
        assert_eq!(read(true, r#"{"moved":true,"milliseconds":7.5}"#).unwrap(), Ok(7.5));
        assert!(read(true, r#"{"moved":true}"#).is_err());
        let given_up = format!("tessera: refused: {GIVEN_UP}slice1: it waits");
        assert_eq!(read(false, &given_up).unwrap(), Err("slice1: it waits".to_owned()));
        for other in [GIVEN_UP, "tessera: the VM is over, or has not begun", ""] {
            assert!(read(false, other).is_err(), "{other}");
        }
    }

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
        let given_up = |count| BTreeMap::from([("it waits".to_owned(), count)]);
        let mut moves = Moves { times: vec![3.0], given_up: given_up(1), pauses: 1 };
        moves.add(Moves { times: vec![1.0], given_up: given_up(2), pauses: 0 });
        assert_eq!(moves.count(), 5);
        let told = "2 moves, p50 1.0 ms, p99 3.0 ms, longest 3.0 ms; 3 given up; 1 pauses between\n  3 x it waits";
        assert_eq!(moves.to_string(), told);
    }
}
