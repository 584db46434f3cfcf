//! `./x bench disk`: fio in the guest, on a vCPU beside the disk and on one of the other host (the paper's
//! figure 7), and whether pages of rings and payload travel.
//!
//! ```text
//!   host 1: disk 1 (rings=bypass) ───── fio on vCPU 0     local
//!           disk 1 ─────────────┄┄┄┄┄── fio on vCPU 1     bypass
//!           disk 2 (rings=coherent)┄┄── fio on vCPU 1     coherent
//! ```
//! The modes take turns for each load, in another order each round.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use outcome::{Bar, Outcome, Row};

use crate::device_bench::{self, Bed, Experiment, LOCAL_CPU, REMOTE_CPU};
use crate::fio::{Block, Job, Measured, Pattern};
use crate::page_moves;
use crate::rounds::Rounds;

/// Bytes of the scratch disks; the guest tells them apart by that.
const DISKS: [u64; 2] = [256 << 20, 257 << 20];
/// For one run of fio beyond its own seconds: a program's start may cross the network page by page.
const SLACK: Duration = Duration::from_secs(300);
const COLUMNS: [&str; 3] = ["MB/s", "requests/s", "p50 ms"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Local,
    Bypass,
    Coherent,
}

const MODES: [Mode; 3] = [Mode::Local, Mode::Bypass, Mode::Coherent];

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Local => "local",
            Self::Bypass => "bypass",
            Self::Coherent => "coherent",
        })
    }
}

impl Mode {
    pub(crate) fn cpu(self) -> u16 {
        if self == Self::Local { LOCAL_CPU } else { REMOTE_CPU }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Plan {
    loads: &'static [(Block, Pattern)],
    jobs: &'static [u16],
    rounds: usize,
    /// Of one load, and of the warm-up before it.
    seconds: u32,
    /// MiB of the look at pages that travel.
    traffic: u64,
}

const QUICK: Plan = Plan {
    loads: &[
        (Block::Small, Pattern::RandRead),
        (Block::Small, Pattern::RandWrite),
        (Block::Large, Pattern::Read),
        (Block::Large, Pattern::Write),
    ],
    jobs: &[1],
    rounds: 1,
    seconds: 8,
    traffic: 64,
};
const FULL: Plan = Plan {
    loads: &[
        (Block::Small, Pattern::RandRead),
        (Block::Small, Pattern::RandWrite),
        (Block::Small, Pattern::Read),
        (Block::Small, Pattern::Write),
        (Block::Large, Pattern::RandRead),
        (Block::Large, Pattern::RandWrite),
        (Block::Large, Pattern::Read),
        (Block::Large, Pattern::Write),
    ],
    jobs: &[1, 2, 4, 8],
    rounds: 3,
    seconds: 8,
    traffic: 1024,
};

/// Disks as the guest calls them.
#[derive(Clone, Debug)]
pub(crate) struct Disks([String; 2]);

impl Disks {
    pub(crate) fn of(&self, mode: Mode) -> &str {
        &self.0[usize::from(mode == Mode::Coherent)]
    }

    /// Finds them by their sizes.
    fn find(bed: &Bed<'_>) -> Result<Self> {
        let line = "for path in /sys/block/vd*; do \
                    echo \"/dev/${path##*/} $(cat \"$path/size\")\"; done";
        let said = bed.guest.ssh(line)?;
        let name = |bytes: u64| {
            // In sectors of 512 bytes (Documentation/ABI/stable/sysfs-block).
            let end = format!(" {}", bytes / 512);
            let disk = said.lines().find_map(|line| line.strip_suffix(&end));
            disk.map(str::to_owned).with_context(|| format!("no disk of {bytes} bytes: {said}"))
        };
        Ok(Self([name(DISKS[0])?, name(DISKS[1])?]))
    }
}

pub(crate) fn run(quick: bool, words: &[String]) -> Result<ExitCode> {
    let plan = if quick { QUICK } else { FULL };
    let experiment = Experiment { name: "disk", disks: &DISKS, taps: &[] };
    let devices = |paths: &[String]| {
        let rings = ["bypass", "coherent"];
        let disk = |(path, rings)| ["--disk".to_owned(), format!("{path},rings={rings}")];
        paths.iter().zip(rings).flat_map(disk).collect()
    };
    device_bench::run(&experiment, words, &devices, &mut |bed, outcome| {
        let disks = Disks::find(bed)?;
        outcome.conditions.notes.push(format!(
            "fio: O_DIRECT, one request at a time for each job, {} s a load, {} rounds; medians of the \
             rounds, ratios of loads of the same round; times are this machine's, of which the guest's \
             clock shows {}",
            plan.seconds,
            plan.rounds,
            bed.scenario.guest_clock()?
        ));
        let mut rounds = Rounds::new();
        let result = measure(bed, &disks, plan, &mut rounds);
        // What was measured before a failure is told too.
        tell(&rounds, plan, outcome);
        result?;
        page_moves::measure(bed, &disks, plan.traffic, outcome)
    })
}

fn jobs(plan: Plan) -> impl Iterator<Item = Job> {
    let each = |(block, pattern): (Block, Pattern)| {
        plan.jobs.iter().map(move |&jobs| Job { block, pattern, jobs })
    };
    plan.loads.iter().copied().flat_map(each)
}

fn measure(bed: &Bed<'_>, disks: &Disks, plan: Plan, rounds: &mut Rounds<Job, Mode>) -> Result<()> {
    let clock = bed.scenario.guest_clock()?;
    for round in 0..plan.rounds {
        for job in jobs(plan) {
            for turn in 0..MODES.len() {
                bed.check()?;
                let mode = MODES[(turn + round) % MODES.len()];
                let line = job.line(disks.of(mode), mode.cpu(), f64::from(plan.seconds) * clock);
                let limit = Duration::from_secs(2 * u64::from(plan.seconds)) + SLACK;
                let said = bed.guest.ssh_within(&line, limit);
                let found = said.and_then(|said| Measured::read(&said));
                let found = found.with_context(|| format!("{job} {mode}"))?;
                // fio goes by the guest's clock.
                let (rate, p50) = (found.rate * clock, found.p50_ns / clock / 1e6);
                let bandwidth = found.bandwidth * clock / 1e6;
                bed.progress.say(&format!(
                    "round {} of {}, {job} {mode}: {bandwidth:.2} MB/s, {rate:.1} requests/s, p50 \
                     {p50:.2} ms",
                    round + 1,
                    plan.rounds
                ));
                rounds.add(job, mode, round, vec![bandwidth, rate, p50]);
            }
        }
    }
    Ok(())
}

/// Rows, ratios and bars.
fn tell(rounds: &Rounds<Job, Mode>, plan: Plan, outcome: &mut Outcome) {
    COLUMNS[0].clone_into(&mut outcome.shown);
    for job in jobs(plan) {
        for mode in MODES {
            outcome.rows.extend(rounds.row(format!("{job} {mode}"), job, mode, &COLUMNS));
        }
    }
    for job in jobs(plan) {
        let share = |mode| rounds.ratio(job, mode, Mode::Local, 0);
        let pairs =
            [("bypass/local", share(Mode::Bypass)), ("coherent/local", share(Mode::Coherent))];
        let figures =
            pairs.iter().filter_map(|(name, ratio)| Some(((*name).to_owned(), (*ratio)?)));
        let figures: Vec<_> = figures.collect();
        if !figures.is_empty() {
            outcome.rows.push(Row { name: format!("{job} share"), figures });
        }
        if let (Some(found), Block::Large) = (pairs[0].1, job.block) {
            let what = format!("{job}: share of the local bandwidth that bypass has");
            outcome.bars.push(Bar { what, found, bound: 0.9, at_most: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use outcome::Conditions;

    use super::*;

    #[test]
    fn bars_are_those_of_large_requests() {
        let mut rounds = Rounds::new();
        for job in jobs(FULL) {
            rounds.add(job, Mode::Local, 0, vec![100.0, 1.0, 1.0]);
            rounds.add(job, Mode::Bypass, 0, vec![f64::from(88 + job.jobs), 1.0, 1.0]);
        }
        let (conditions, shown) = (Conditions::now(), String::new());
        let mut outcome =
            Outcome { name: "disk".into(), conditions, rows: vec![], bars: vec![], shown };
        tell(&rounds, FULL, &mut outcome);

        let held: Vec<_> = outcome.bars.iter().map(Bar::holds).collect();
        assert_eq!(held, [false, true, true, true].repeat(4));
    }
}
