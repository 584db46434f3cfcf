//! `./x bench sharing-linux`: what the work of an unmodified kernel costs when its CPUs are on two hosts, in faults of both
//! slices for one operation.
//!
//! ```text
//!   each boot:  idle ─> fresh pages ─> unmap ─> files ─> pipe ─> futex ─> TCP ─> fork and exec ─> compute
//!   each kind:  warm-up, or a rest ─> mark ─> pause (counters of both slices) ─> N operations ─> mark ─> pause (counters again)
//! ```
//! Faults are counted and not timed. How many ticks fall into an operation depends on what a fault costs by the guest's clock, so emulated
//! hosts get the slow clock of `programs`: a fault costs what it costs between real hosts.
//! Each fault is a wait of a vCPU: pages that were asked for ahead and came in time are none. The guest's test program does the operations
//! (`lab/guest-tests/src/sharing.rs`).

mod measure;
mod plan;
mod report;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use outcome::Outcome;

use crate::bench::BenchOptions;
use crate::bench::rig::{self, Calibration, Figures, Rig};
use crate::vm::prepare;
use measure::Bench;
use plan::{FULL, Plan, QUICK};

const NAME: &str = "sharing-linux";
/// Most seconds of a VM, unless the options say: by a slow clock five guest seconds of rest are minutes.
const TIMEOUT: u64 = 7200;

/// Measures and tells.
///
/// # Errors
/// The options do not fit, something that is needed is missing, or nothing could be measured.
pub fn run(options: &BenchOptions) -> Result<ExitCode> {
    let plan = if options.quick { QUICK } else { FULL };
    let plan = Plan { boots: options.rounds.map_or(plan.boots, usize::from), ..plan };
    ensure!(plan.boots > 0, "--rounds 0: nothing would be measured");
    let mut vm = rig::vm_options(NAME, &["--tests", "none"], &options.rest)?;
    vm.timeout.get_or_insert(TIMEOUT);
    vm.cmdline = format!("{} tessera.sharing={}", vm.cmdline, plan.scale).trim_start().to_owned();
    let layout = vm.layout()?;
    ensure!(layout.slices() > 1, "--layout {layout}: sharing needs two slices or more");
    let rig = Rig::new()?;
    let prepared = prepare::prepare(&vm, &rig.progress)?;
    let lab = prepare::hosts(&vm, &layout, &rig.progress)?;
    let (outcome, end) = rig.on(lab, |lab| {
        if let Err(error) = Calibration::apply_with_tasks(&rig, &mut vm, &prepared, lab) {
            return (Outcome::new(NAME), Err(error));
        }
        let mut bench = Bench {
            rig: &rig,
            options: &vm,
            layout: &layout,
            plan,
            prepared: &prepared,
            lab,
            costs: Figures::new(),
        };
        let end = bench.measure();
        (outcome(&bench), end)
    });
    rig::tell(&outcome, &[], end)
}

fn outcome(bench: &Bench<'_>) -> Outcome {
    let mut outcome = Outcome::new(NAME);
    outcome.conditions.notes.push(format!(
        "layout {} ({}); {} boots, {} times as many operations as usual; guest seconds for one of this machine: {}; preset {}; tessera with {:?}, {} kernel with {:?}; \
         of one operation, over all slices; medians",
        bench.layout,
        bench.lab.substrate(),
        bench.plan.boots,
        bench.plan.scale,
        bench.options.guest_clock_rate.as_deref().unwrap_or("1"),
        bench.options.guest_preset.as_deref().unwrap_or("spread"),
        bench.options.bootstrap.join(" "),
        bench.options.guest_kernel.name(),
        bench.options.cmdline,
    ));
    outcome.rows = report::rows(&bench.costs);
    outcome.bars = report::bars(&bench.costs);
    "faults".clone_into(&mut outcome.shown);
    outcome
}
