//! `./x bench net`: what a web server's worker on the other host's vCPU loses against one beside the
//! network device (the paper's figure 6).
//!
//! ```text
//!   host 1: client ──┬─ tap0 (rings=bypass) ──── worker on vCPU 0     local
//!                    ├─ tap0 ────────────┄┄┄┄┄── worker on vCPU 1     bypass
//!                    ├─ tap1 (rings=coherent)┄┄─ worker on vCPU 1     coherent
//!                    └─ the lab's network ─ ─ ─  process on host 2    raw: no VM
//! ```
//! The modes take turns for each object, in another order each round; before the first, each has a load that is not
//! looked at, for its first requests bring programs and tables across.
//!
//! On emulated hosts the client has a line (`client_link.rs`, `--client-speed`) that is about as much slower
//! than the lab's network as in the paper's cluster. Without it a large object beside the device comes as fast as
//! memory is copied; the last rows tell that, too. What the hosts' network gives is `raw`, which has no such line.

mod client_link;
mod load;
mod measure;
mod plan;
mod raw;
mod report;
mod second;

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use lab::Mode as LabMode;

use crate::bench::BenchOptions;
use crate::bench::devices::{self, Experiment, Setup};
use crate::bench::rig::Figures;
use crate::vm::distro;
use client_link::ClientLink;
use measure::{CONNECTIONS, Loads};
use plan::{FREE, FULL, MODES, Plan, QUICK, objects};

pub(crate) use raw::{raw_load, raw_server};

/// Most MB/s of the client's line on emulated hosts, unless given.
const CLIENT_SPEED: u32 = 1;
/// First numbers of the addresses of both taps' networks.
const NETWORKS: [&str; 2] = ["192.168.77", "192.168.78"];

/// Measures and tells.
///
/// # Errors
/// The options do not fit, something that is needed is missing, or nothing could be measured.
pub fn run(options: &BenchOptions) -> Result<ExitCode> {
    let plan = if options.quick { QUICK } else { FULL };
    ensure!(options.rounds != Some(0), "--rounds 0 leaves nothing to do");
    let plan = Plan { rounds: options.rounds.map_or(plan.rounds, usize::from), ..plan };
    let client_speed = options.client_speed.unwrap_or(CLIENT_SPEED);
    let experiment = Experiment { name: "net", disks: &[], disk_speed: None, taps: &[second::TAP] };
    devices::run(&experiment, &options.rest, &|_| second::device(), &mut |setup, outcome| {
        second::give_address(setup)?;
        let _server = raw_server(setup)?;
        let line = line(setup, client_speed)?;
        outcome.conditions.notes.extend(conditions(plan, line.as_ref().map(|_| client_speed)));
        let mut loads =
            Loads { setup, seconds: plan.seconds, line: line.is_some(), failed: BTreeSet::new() };
        let (mut figures, mut free) = (Figures::new(), Figures::new());
        loads.warm_up(plan);
        let mut result = loads.measure(&objects(plan.objects), &MODES, plan.rounds, &mut figures);
        if line.is_some() && result.is_ok() {
            loads.line = false;
            result = loads.measure(&objects(&[FREE]), &MODES[..3], plan.free_rounds, &mut free);
        }
        // What was measured before a failure is told too.
        report::rows_and_bars(&figures, &free, plan, outcome);
        outcome.conditions.notes.extend(loads.failed);
        result
    })
}

/// The client's line where the hosts' network is not a real one, unless its speed is 0.
fn line<'a>(setup: &'a Setup<'_>, speed: u32) -> Result<Option<ClientLink<'a>>> {
    if speed == 0 || setup.scenario.lab.mode() != LabMode::Machines {
        return Ok(None);
    }
    let taps = [(distro::TAP, NETWORKS[0]), (second::TAP.name, NETWORKS[1])];
    ClientLink::make(setup.host(1)?, speed, &taps).map(Some)
}

fn conditions(plan: Plan, line: Option<u32>) -> Vec<String> {
    let line = line.map_or_else(
        || "the client is on host 1 and has no line: what comes is as fast as memory".to_owned(),
        |speed| format!("the client's line: {speed} MB/s, see `raw`, which has none"),
    );
    vec![
        format!(
            "{CONNECTIONS} connections, each one request at a time; {} s a load, {} rounds; medians of \
             the rounds, ratios of loads of the same round",
            plan.seconds, plan.rounds
        ),
        "raw: a process on host 2 asked over the lab's network, without a VM: no VM on host 2 can \
         answer sooner"
            .to_owned(),
        line,
    ]
}
