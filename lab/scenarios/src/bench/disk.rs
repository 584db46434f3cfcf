//! `./x bench disk`: fio in the guest, on a vCPU beside the disk and on one of the other host (the paper's
//! figure 7), and whether pages of rings and payload travel.
//!
//! ```text
//!   host 1: disk 1 (rings=bypass) ───── fio on vCPU 0     local
//!           disk 1 ─────────────┄┄┄┄┄── fio on vCPU 1     bypass
//!           disk 2 (rings=coherent)┄┄── fio on vCPU 1     coherent
//! ```
//! On emulated hosts a disk would be as fast as this machine's memory, and a network hundreds of times slower
//! than it. In the paper's cluster a SATA SSD of 500 MB/s stood beside InfiniBand of 56 Gbit/s, a fourteenth of that.
//! So there the disks are limited (`--disk-speed`), by default to about that share of what the lab's network
//! streams.
//!
//! The modes take turns, in another order each round; one fio puts all loads of a turn on its disk.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use lab::Mode as LabMode;
use outcome::{Bar, Outcome, Row};

use crate::bench::device::{self, Bed, Experiment};
use crate::bench::disk_modes::{DISKS, Disks, MODES, Mode};
use crate::bench::fio::{self, Block, Job, Measured, Pattern, Times};
use crate::bench::net;
use crate::bench::options::BenchOptions;
use crate::bench::page_moves;
use crate::bench::rounds::Rounds;

/// Warm-up of a load, in seconds.
const WARM_UP: f64 = 1.0;
/// For one run of fio beyond its own seconds: a program's start may cross the network page by page.
const SLACK: Duration = Duration::from_secs(300);
const COLUMNS: [&str; 3] = ["MB/s", "requests/s", "p50 ms"];

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Plan {
    loads: &'static [(Block, Pattern)],
    jobs: &'static [u16],
    rounds: usize,
    /// Of one load.
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
    seconds: 6,
    traffic: 64,
};
const FULL: Plan = Plan {
    loads: &[
        (Block::Small, Pattern::RandRead),
        (Block::Small, Pattern::RandWrite),
        (Block::Large, Pattern::Read),
        (Block::Large, Pattern::Write),
    ],
    jobs: &[1, 2, 4, 8],
    rounds: 3,
    // Eight jobs of large requests have some seconds of them on their way.
    seconds: 8,
    traffic: 1024,
};

/// Measures and tells.
///
/// # Errors
/// The options do not fit, something that is needed is missing, or nothing could be measured.
pub fn run(options: &BenchOptions) -> Result<ExitCode> {
    let plan = if options.quick { QUICK } else { FULL };
    let plan = Plan { rounds: options.rounds.map_or(plan.rounds, usize::from), ..plan };
    let words = options.rest.as_slice();
    let disk_speed = Some(options.disk_speed).filter(|speed| *speed > 0);
    let experiment = Experiment { name: "disk", disks: &DISKS, disk_speed, taps: &[] };
    let devices = |paths: &[String]| {
        let rings = ["bypass", "coherent"];
        let disk = |(path, rings)| ["--disk".to_owned(), format!("{path},rings={rings}")];
        paths.iter().zip(rings).flat_map(disk).collect()
    };
    device::run(&experiment, words, &devices, &mut |bed, outcome| {
        let disks = Disks::find(bed)?;
        if bed.scenario.lab.mode() == LabMode::Machines {
            outcome.conditions.notes.push(disk_speed.map_or_else(
                || "disks without a limit: files in this machine's memory".to_owned(),
                |speed| {
                    format!("disks: {speed} MB/s at most (QEMU's throttling), see `raw network`")
                },
            ));
        }
        outcome.conditions.notes.push(format!(
            "fio: O_DIRECT, one request at a time for each job, {} s a load, {} rounds; medians of the \
             rounds, ratios of loads of the same round; times are this machine's, of which the guest's \
             clock shows {}",
            plan.seconds,
            plan.rounds,
            bed.scenario.guest_clock()?
        ));
        for block in [Block::Small, Block::Large] {
            outcome.rows.push(raw(bed, block, plan.seconds)?);
        }
        let mut rounds = Rounds::new();
        let result = measure(bed, &disks, plan, &mut rounds);
        // What was measured before a failure is told too.
        tell(&rounds, plan, outcome);
        result?;
        page_moves::measure(bed, &disks, plan.traffic, outcome)
    })
}

/// What the lab's network gives for as many bytes as a request has: a process on host 2, asked from host 1
/// without any VM, one request at a time. No disk of the other host can answer sooner.
fn raw(bed: &Bed<'_>, block: Block, seconds: u32) -> Result<Row> {
    let _server = net::raw_server(bed)?;
    let report = net::raw_load(bed, block.name(), seconds)?;
    let name = format!("{} raw network", block.name());
    let rate = report.requests_per_second;
    #[expect(clippy::cast_precision_loss, reason = "seconds at most")]
    let p50 = report.latency_us.p50 as f64 / 1e3;
    let bandwidth = rate * block.bytes() / 1e6;
    bed.progress
        .say(&format!("{name}: {bandwidth:.2} MB/s, {rate:.1} requests/s, p50 {p50:.2} ms"));
    let figures = COLUMNS.iter().map(|column| (*column).to_owned());
    Ok(Row { name, figures: figures.zip([bandwidth, rate, p50]).collect() })
}

fn jobs(plan: Plan) -> impl Iterator<Item = Job> {
    let each = |(block, pattern): (Block, Pattern)| {
        plan.jobs.iter().map(move |&jobs| Job { block, pattern, jobs })
    };
    plan.loads.iter().copied().flat_map(each)
}

fn measure(bed: &Bed<'_>, disks: &Disks, plan: Plan, rounds: &mut Rounds<Job, Mode>) -> Result<()> {
    let clock = bed.scenario.guest_clock()?;
    // The first load of a program far from its pages tells how they come, and nothing of the disk: it is
    // done twice, and the first time not looked at.
    let first = jobs(plan).next().context("no loads")?;
    let all: Vec<_> = std::iter::once(first).chain(jobs(plan)).collect();
    let times = Times {
        warm_up: Duration::from_secs_f64(WARM_UP * clock),
        load: Duration::from_secs_f64(f64::from(plan.seconds) * clock),
    };
    let seconds = (WARM_UP + f64::from(plan.seconds)) * f64::from(u32::try_from(all.len())?);
    let limit = Duration::from_secs_f64(2.0 * seconds) + SLACK;
    for round in 0..plan.rounds {
        for turn in 0..MODES.len() {
            bed.check()?;
            let mode = MODES[(turn + round) % MODES.len()];
            let line = fio::line(&all, disks.of(mode), mode.cpu(), times);
            let said = bed.guest.ssh_within(&line, limit);
            let found = said.and_then(|said| Measured::read_all(&said, all.len()));
            let found = found.with_context(|| format!("{mode} loads"))?;
            for (job, found) in all.iter().zip(found).skip(1) {
                let round_of = format!("round {} of {}, {job} {mode}", round + 1, plan.rounds);
                let Some(found) = found else {
                    bed.progress.say(&format!("{round_of}: no request was finished in its time"));
                    continue;
                };
                // fio goes by the guest's clock.
                let (rate, p50) = (found.rate * clock, found.p50_ns / clock / 1e6);
                let bandwidth = found.bandwidth * clock / 1e6;
                bed.progress.say(&format!(
                    "{round_of}: {bandwidth:.2} MB/s, {rate:.1} requests/s, p50 {p50:.2} ms"
                ));
                rounds.add(*job, mode, round, vec![bandwidth, rate, p50]);
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
        assert_eq!(held, [false, true, true, true].repeat(2));
    }
}
