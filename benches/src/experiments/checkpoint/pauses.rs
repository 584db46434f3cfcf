//! How long the guest stands still for a checkpoint, and what it does meanwhile, for each size of its memory.

use super::vm::{Saved, Written, ticks};
use super::{Plan, float, milliseconds};
use crate::experiments::cycles_per_ns;
use crate::real_vm::Companion;
use crate::samples::{Samples, median};
use crate::story::{Gap, Story};
use anyhow::{Context, Result, ensure};
use outcome::{Bar, Outcome, Row};
use std::fmt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// The longest pause may last so many times the shortest.
const BOUND: f64 = 1.5;
/// The guest works so long before and after each checkpoint.
const REST: Duration = Duration::from_millis(200);
/// The guest notes no gap that has fewer ticks of the counter.
const LEAST: u64 = 1_300_000;

/// What was found of one size. Times in milliseconds.
#[derive(Debug)]
pub(super) struct Found {
    /// As the guest saw it, as the answer says, and the whole request.
    guest: Samples,
    answer: Samples,
    took: Samples,
    /// The longest time between two stores of vCPU 1 while it is written.
    store_waits: Samples,
    /// The same with the guest at rest until it is written.
    stopped_guest: Samples,
    stopped: Samples,
    /// Work of a vCPU while a checkpoint is written, and after it, in parts of that before.
    during: [f64; 2],
    after: [f64; 2],
    stores: u64,
}

impl fmt::Display for Found {
    /// For whoever waits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [guest, answer, took] =
            [&self.guest, &self.answer, &self.took].map(|samples| samples.percentile(50));
        write!(
            f,
            "paused {guest:.1} ms as the guest saw it, {answer:.1} by the answer, of {took:.0}"
        )
    }
}

/// Writes checkpoints of VMs with so much memory each, in turns, the other VMs paused: what else this machine does meets all sizes.
///
/// # Errors
/// A VM or a checkpoint fails.
pub(super) fn measure(
    guest: &Path,
    companions: Vec<(u64, Companion)>,
    folder: &Path,
    plan: Plan,
) -> Result<Vec<Found>> {
    let start = |(bytes, companion)| -> Result<Turns> {
        let vm = Saved::start(guest, (bytes, Some(companion)), folder)?;
        // The first one differs: all that is made at the first time.
        vm.write(false)?;
        vm.forget()?;
        vm.pause()?;
        Ok(Turns { vm, live: Vec::new(), stopped: Vec::new() })
    };
    let mut all = companions.into_iter().map(start).collect::<Result<Vec<_>>>()?;
    let each = plan.live.div_ceil(plan.stopped.max(1));
    for number in 0..plan.live {
        for turns in &mut all {
            turns.live.push(one(&turns.vm, false)?);
            if number % each == each - 1 {
                turns.stopped.push(one(&turns.vm, true)?);
            }
        }
        eprintln!("checkpoint {} of {}, each size", number + 1, plan.live);
    }
    all.into_iter().map(Turns::find).collect()
}

/// A VM and its checkpoints so far.
#[derive(Debug)]
struct Turns {
    vm: Saved,
    live: Vec<Written>,
    stopped: Vec<Written>,
}

impl Turns {
    fn find(self) -> Result<Found> {
        self.vm.resume()?;
        let told = self.vm.end()?;
        let story = Story::read(&told.text)?;
        find(&story, story.ahead(&told.arrived)?, &self.live, &self.stopped)
    }
}

fn one(vm: &Saved, stop: bool) -> Result<Written> {
    vm.resume()?;
    sleep(REST);
    let written = vm.write(stop)?;
    sleep(REST);
    vm.pause()?;
    vm.forget()?;
    Ok(written)
}

fn find(story: &Story, ahead: u64, live: &[Written], stopped: &[Written]) -> Result<Found> {
    let guest = |time: u64| time.wrapping_add(ahead);
    let largest = |(begin, end), looks: bool| {
        let of = |gap: &Gap| gap.is_pure == looks;
        let ticks = story.largest((guest(begin), guest(end)), of).unwrap_or(LEAST);
        float(ticks) / cycles_per_ns() / 1e6
    };
    let gap = |written: &Written| largest(written.moment, true);
    let wait = |written: &Written| largest((written.moment.0, written.times.1), false);
    let samples = |of: &[Written], figure: &dyn Fn(&Written) -> f64| {
        Samples::new(of.iter().map(figure).collect())
    };
    let mut ratios = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for written in live {
        let ((begin, end), rest) = (written.times, ticks(REST));
        for (vcpu, [during, after]) in (0..).zip(&mut ratios) {
            let rate = |from, to| story.rate(vcpu, (guest(from), guest(to)));
            let before =
                rate(begin - rest, begin).context("the guest has not told all its work")?;
            // What is shorter than the guest's notes says nothing.
            during.extend(rate(written.moment.1, end).map(|rate| rate / before));
            after.extend(rate(end, end + rest - rest / 8).map(|rate| rate / before));
        }
    }
    let stores = story.done("stores");
    ensure!(stores > 0, "vCPU 1 has stored nothing");
    ensure!(story.done("lost gaps") == 0, "the guest had no room for all its gaps");
    let [first, second] = ratios.map(|ratios| ratios.map(median));
    Ok(Found {
        guest: samples(live, &gap),
        store_waits: samples(live, &wait),
        answer: samples(live, &|written| written.paused_ms),
        took: samples(live, &|written| written.took_ms),
        stopped_guest: samples(stopped, &gap),
        stopped: samples(stopped, &|written| written.took_ms),
        during: [first[0], second[0]],
        after: [first[1], second[1]],
        stores,
    })
}

/// The pauses of all sizes.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    guest: Vec<Samples>,
    answer: Vec<Samples>,
}

impl Pauses {
    /// Tells of one size.
    pub(super) fn add(&mut self, found: Found, name: &str, outcome: &mut Outcome) {
        for (what, samples) in [
            ("pause, guest", &found.guest),
            ("longest gap of the vCPU that stores, while written", &found.store_waits),
            ("pause, answer", &found.answer),
            ("request to answer", &found.took),
            ("--stop: pause, guest", &found.stopped_guest),
            ("--stop: request to answer", &found.stopped),
        ] {
            outcome.rows.push(milliseconds(format!("{name}: {what}"), samples));
        }
        let vcpus = ["vCPU 0, looks", "vCPU 1, stores"];
        for (vcpu, (during, after)) in vcpus.into_iter().zip(found.during.iter().zip(found.after)) {
            let figures = vec![
                ("while written / before".to_owned(), *during),
                ("after / before".into(), after),
            ];
            outcome.rows.push(Row { name: format!("{name}: {vcpu}"), figures });
        }
        let ratio = found.stopped_guest.percentile(50) / found.guest.percentile(50);
        outcome.conditions.notes.push(format!(
            "{name}: the guest stands still {ratio:.0} times as long with --stop; {} stores",
            found.stores
        ));
        self.guest.push(found.guest);
        self.answer.push(found.answer);
    }

    /// Compares the sizes.
    pub(super) fn judge(&self, outcome: &mut Outcome) {
        for (what, of, percent) in [
            ("pause, guest, p50", &self.guest, 50),
            ("pause, guest, p99", &self.guest, 99),
            ("pause, answer, p50", &self.answer, 50),
        ] {
            let all = Samples::new(of.iter().map(|samples| samples.percentile(percent)).collect());
            let found = all.percentile(100) / all.percentile(0);
            let what = format!("{what}: largest / smallest of all sizes");
            outcome.bars.push(Bar { what, found, bound: BOUND, at_most: true });
        }
    }
}
