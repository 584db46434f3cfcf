//! `./x bench programs`: what a guest's ordinary programs, which nobody has bound to a vCPU, gain by a borrowed one.
//!
//! ```text
//!   each round:  one vCPU on one host ─> two hosts, default ─> two hosts, isolate ─> ... (each a boot)
//!   each boot:   start-up ─> task ─> 2 threads ─> 4 processes ─> 8 processes ─> 12 jobs, 4 at a time ─> 12 jobs one by one
//! ```
//! The guests' test program runs the loads and times them by the guest's clock (`lab/guest-tests/src/programs.rs`).
//! The guests take turns, in another order each round, on the same hosts. A gain is that over one vCPU in the same
//! round; what is told is the median of the rounds.

mod measure;
mod plan;
mod report;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use outcome::Outcome;

use crate::bench::BenchOptions;
use crate::bench::rig::{self, Calibration, Figures, Rig};
use crate::vm::VmOptions;
use crate::vm::prepare;
use measure::Bench;
use plan::{FULL, Plan, QUICK, guests};

const NAME: &str = "programs";

/// Measures and tells.
///
/// # Errors
/// The options do not fit, something that is needed is missing, or nothing could be measured.
pub fn run(options: &BenchOptions) -> Result<ExitCode> {
    let plan = if options.quick { QUICK } else { FULL };
    let plan = Plan { boots: options.rounds.map_or(plan.boots, usize::from), ..plan };
    ensure!(plan.boots > 0, "--rounds 0: nothing would be measured");
    let presets = if options.no_presets { &[] } else { plan.presets };
    let mut vm = vm_options(options, plan)?;
    let layout = vm.layout()?;
    ensure!(layout.slices() > 1, "--layout {layout}: a guest that borrows has two slices or more");
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
            guests: guests(presets, &options.also),
            prepared: &prepared,
            lab,
            seconds: Figures::new(),
            faults: Figures::new(),
            clock: 1.0,
        };
        let end = bench.measure();
        (outcome(&bench), end)
    });
    rig::tell(&outcome, &[], end)
}

fn vm_options(bench: &BenchOptions, plan: Plan) -> Result<VmOptions> {
    let mut vm = rig::vm_options(NAME, &["--tests", "none"], &bench.rest)?;
    ensure!(
        vm.guest_preset.is_none(),
        "--guest-preset: this bench sets it; see --also and --no-presets"
    );
    vm.cmdline = format!("{} tessera.programs={}", vm.cmdline, plan.loads).trim_start().to_owned();
    Ok(vm)
}

fn outcome(bench: &Bench<'_>) -> Outcome {
    let mut outcome = Outcome::new(NAME);
    outcome.conditions.notes.push(format!(
        "one vCPU on one host, and layout {} ({}); {} boots of each in turns, {} rounds of loads \
         a boot; guest seconds, of which a second of this machine has {}; tessera with {:?}, {} \
         kernel with {:?}; gains are over one vCPU in the same round; medians",
        bench.layout,
        bench.lab.substrate(),
        bench.plan.boots,
        bench.plan.loads,
        bench.clock,
        bench.options.bootstrap.join(" "),
        bench.options.guest_kernel.name(),
        bench.options.cmdline,
    ));
    outcome.rows = report::rows(&bench.seconds, &bench.faults, &bench.guests);
    outcome.bars = report::bars(&bench.seconds, &bench.guests);
    "gain".clone_into(&mut outcome.shown);
    outcome
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn preset_of_the_vm_is_refused() {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            bench: BenchOptions,
        }
        let options = |words: [&str; 2]| {
            let line = Line::try_parse_from(["bench", "programs", "--"].into_iter().chain(words));
            vm_options(&line.unwrap().bench, QUICK)
        };
        assert!(options(["--memory", "768"]).is_ok());
        assert!(options(["--guest-preset", "none"]).is_err());
    }
}
