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
//! One fio puts all loads of a turn on its disk.

mod fio;
mod measure;
mod page_moves;
mod plan;
mod report;

use std::process::ExitCode;

use anyhow::Result;
use lab::Mode as LabMode;
use outcome::Outcome;

use crate::bench::BenchOptions;
use crate::bench::devices::{self, Experiment, Setup};
use crate::bench::rig::Figures;
use fio::Block;
use plan::{DISKS, Disks, FULL, Plan, QUICK};

/// Most MB/s of the guest's disks on emulated hosts, unless given.
const DISK_SPEED: u32 = 4;

/// Measures and tells.
///
/// # Errors
/// The options do not fit, something that is needed is missing, or nothing could be measured.
pub fn run(options: &BenchOptions) -> Result<ExitCode> {
    let plan = if options.quick { QUICK } else { FULL };
    let plan = Plan { rounds: options.rounds.map_or(plan.rounds, usize::from), ..plan };
    let disk_speed = Some(options.disk_speed.unwrap_or(DISK_SPEED)).filter(|speed| *speed > 0);
    let experiment = Experiment { name: "disk", disks: &DISKS, disk_speed, taps: &[] };
    let devices = |paths: &[String]| {
        let rings = ["bypass", "coherent"];
        let disk = |(path, rings)| ["--disk".to_owned(), format!("{path},rings={rings}")];
        paths.iter().zip(rings).flat_map(disk).collect()
    };
    devices::run(&experiment, &options.rest, &devices, &mut |setup, outcome| {
        let disks = Disks::find(setup)?;
        conditions(setup, plan, disk_speed, outcome)?;
        for block in [Block::Small, Block::Large] {
            outcome.rows.push(measure::raw(setup, block, plan.seconds)?);
        }
        let mut figures = Figures::new();
        let result = measure::loads(setup, &disks, plan, &mut figures);
        // What was measured before a failure is told too.
        report::rows_and_bars(&figures, plan, outcome);
        result?;
        page_moves::measure(setup, &disks, plan.traffic, outcome)
    })
}

fn conditions(
    setup: &Setup<'_>,
    plan: Plan,
    disk_speed: Option<u32>,
    outcome: &mut Outcome,
) -> Result<()> {
    if setup.scenario.lab.mode() == LabMode::Machines {
        outcome.conditions.notes.push(disk_speed.map_or_else(
            || "disks without a limit: files in this machine's memory".to_owned(),
            |speed| format!("disks: {speed} MB/s at most (QEMU's throttling), see `raw network`"),
        ));
    }
    outcome.conditions.notes.push(format!(
        "fio: O_DIRECT, one request at a time for each job, {} s a load, {} rounds; medians of the \
         rounds, ratios of loads of the same round; times are this machine's, of which the guest's \
         clock shows {}",
        plan.seconds,
        plan.rounds,
        setup.scenario.guest_clock()?
    ));
    Ok(())
}
