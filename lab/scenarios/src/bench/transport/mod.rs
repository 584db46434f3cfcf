//! `./x bench transport`: what carries frames and pages between two hosts of a lab with soft-RoCE, beside
//! perftest between the same hosts.
//!
//! ```text
//!   each round: ib_send_lat, ib_write_lat, ib_read_lat ─┐
//!               tcp, rdma (pool), rdma (registered) ────┴─ host 1 ──> host 2
//!               shm ──────────────────────────────────────  both ends on host 1
//! ```
//! perftest looks for what comes all the time, and in a second turn sleeps in between (`-e`). A slice waits as
//! the memory engine does, which is what the bars are about: it looks about as long as an answer takes, and not at
//! all where answers take a millisecond. That it looks all the time is measured too, and judged by nothing: on
//! hosts with one processor, as the lab's are, who looks keeps the kernel from doing what is looked for.
//!
//! These hosts share the machine with everything else, so what a bar compares is measured in one go and its ratio
//! is taken for each round.

mod measure;
mod plan;
mod report;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use lab::{Config, Lab, Mode as LabMode};

use crate::bench::BenchOptions;
use crate::bench::rig::{self, Rig};
use crate::links::program;
use measure::Bench;
use plan::{FULL, QUICK};

/// Measures and tells.
///
/// # Errors
/// The options do not fit, something that is needed is missing, or nothing could be measured.
pub fn run(options: &BenchOptions) -> Result<ExitCode> {
    ensure!(options.rest.is_empty(), "this experiment has no VM, so it takes no options of one");
    let built = program::build()?;
    let rig = Rig::new()?;
    let config = Config {
        name: "bench-transport".to_owned(),
        hosts: 2,
        mode: LabMode::Machines,
        rdma: true,
        ..Config::default()
    };
    let lab = Lab::up(&config, &|line| rig.say(line))?;
    let plan = if options.quick { QUICK } else { FULL };
    let (outcome, end) = rig.on(lab, |lab| {
        let mut bench = Bench::new(&rig, lab, program::install(lab, &built)?, plan)?;
        let end = bench.measure();
        Ok::<_, anyhow::Error>((report::outcome(&bench), end))
    })?;
    rig::tell(&outcome, &[], end)
}
