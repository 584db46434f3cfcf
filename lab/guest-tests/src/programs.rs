//! Programs that nobody has bound to a CPU, for `./x bench programs`: how long each load takes by this
//! machine's own clock.
//!
//! ```text
//!   start-up ─> one task ─> two threads ─> 4 and 8 processes ─> jobs, four at a time ─> jobs, one at a time ─┐
//!                  ^                                                                                         │
//!                  +──────────────────────────────────────────────────────────────────────────── next round ─+
//! ```
//! A line before and one behind each load are for who counts faults meanwhile.
//!
//! A task computes in registers and writes one word at its end, so tasks share nothing of their own:
//! what one costs the other is the kernel's doing.

use std::hint::black_box;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};

use crate::report::{self, Score};
use crate::sys::{self, Ended, Forked};

/// Steps of a task unless given: some tenths of a second of a guest on emulated hosts whose clock shows a tenth.
pub(crate) const TASK: u64 = 2_000_000_000;
/// A job has one of so many parts of a task's steps.
const JOBS_OF_A_TASK: u64 = 6;
const JOBS: usize = 12;
/// The argument that stands for a program with nothing to do.
pub(crate) const NOTHING: &str = "nothing";

/// A load's name and what runs it, with the steps of a task.
type Load = (&'static str, fn(u64) -> Result<()>);
const LOADS: [Load; 6] = [
    ("task", |task| processes(1, task)),
    ("threads-2", |task| threads(2, task)),
    ("processes-4", |task| processes(4, task)),
    ("processes-8", |task| processes(8, task)),
    ("jobs-4", |task| jobs(4, task / JOBS_OF_A_TASK)),
    ("jobs-1", |task| jobs(1, task / JOBS_OF_A_TASK)),
];

/// Runs each load once a round and prints its seconds, those of the start-up first.
pub(crate) fn run(rounds: u64, task: u64, start_up_ns: u64) -> Score {
    let mut score = Score::default();
    score.add("programs-boot", &Ok(text(&[start_up_ns])));
    let mut found = [const { Vec::new() }; LOADS.len()];
    let mut failed = [const { None }; LOADS.len()];
    for round in 0..rounds {
        for (at, (name, load)) in LOADS.iter().enumerate() {
            report::line(&format!("TEST programs-{name}-{round}-begin pass"));
            let start = sys::monotonic_ns();
            match load(task) {
                Ok(()) => found[at].push(sys::monotonic_ns() - start),
                Err(error) => failed[at] = Some(error),
            }
            report::line(&format!("TEST programs-{name}-{round}-end pass"));
        }
    }
    for ((name, _), (found, failed)) in LOADS.iter().zip(found.iter().zip(failed)) {
        score.add(&format!("programs-{name}"), &failed.map_or_else(|| Ok(text(found)), Err));
    }
    score.finish();
    score
}

/// Nanoseconds of each round, as the host side reads them.
fn text(nanoseconds: &[u64]) -> String {
    let words: Vec<_> = nanoseconds.iter().map(ToString::to_string).collect();
    format!("ns={}", words.join(","))
}

/// A fixed amount of work that touches no memory (xorshift; the steps depend on each other).
pub(crate) fn compute(steps: u64) {
    let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..steps {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

fn threads(count: usize, steps: u64) -> Result<()> {
    let all: Vec<_> = (0..count).map(|_| thread::spawn(move || compute(steps))).collect();
    for one in all {
        ensure!(one.join().is_ok(), "a thread panicked");
    }
    Ok(())
}

fn processes(count: usize, steps: u64) -> Result<()> {
    for _ in 0..count {
        if let Forked::Child = sys::fork().context("cannot fork")? {
            compute(steps);
            sys::exit_now(0);
        }
    }
    (0..count).try_for_each(|_| wait())
}

/// Jobs as a shell or make has them: fork, some work, exec of another program, exit. So many at a time.
fn jobs(at_once: usize, steps: u64) -> Result<()> {
    for started in 0..JOBS {
        if started >= at_once {
            wait()?;
        }
        if let Forked::Child = sys::fork().context("cannot fork")? {
            compute(steps);
            sys::exec_self(&[NOTHING]);
            sys::exit_now(111);
        }
    }
    (0..at_once).try_for_each(|_| wait())
}

/// Numbers as arguments of a program.
pub(crate) fn numbers<const N: usize>(words: &[String], usage: &str) -> Result<[u64; N]> {
    let number = |word: &String| word.parse().with_context(|| format!("{word:?} is no number"));
    let numbers = words.iter().map(number).collect::<Result<Vec<u64>>>()?;
    numbers.try_into().map_err(|_| anyhow!("{usage}"))
}

/// Waits for any child, which must end well.
pub(crate) fn wait() -> Result<()> {
    let ended = sys::wait_for(-1, true).context("cannot wait")?;
    ensure!(ended == Some(Ended::Exit(0)), "a program ended with {ended:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_the_host_side_reads_them() {
        assert_eq!(text(&[12, 345]), "ns=12,345");
        assert_eq!(text(&[]), "ns=");
    }
}
