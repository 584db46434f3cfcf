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
use lab::Mode;
use outcome::Outcome;

use crate::bench::BenchOptions;
use crate::bench::rig::{self, Figures, REAL_HOSTS_CLOCK, Rig};
use crate::vm::{VmOptions, prepare};
use measure::Bench;
use plan::{FULL, Plan, QUICK, guests};

const NAME: &str = "programs";
/// Million steps of a task there, which take some 0.4 guest seconds.
const EMULATED_TASK: u32 = 24_000;

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
    if lab.mode() == Mode::Machines {
        as_between_real_hosts(&mut vm);
    }
    let (outcome, end) = rig.on(lab, |lab| {
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

/// Emulated hosts take some 6.5 ms for a fault, real ones 15 to 60 us (RDMA, TCP; assumed). What a program gains depends on what a fault costs it,
/// so the guest's clock is slowed down until it costs as much by that clock.
fn as_between_real_hosts(vm: &mut VmOptions) {
    if vm.guest_clock_rate.is_none() {
        vm.guest_clock_rate = Some(REAL_HOSTS_CLOCK.to_owned());
        // Whoever gives another size says so later in the line.
        vm.cmdline = format!("tessera.task={EMULATED_TASK} {}", vm.cmdline);
    }
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
    fn clock_that_is_given_stays() {
        let mut vm = rig::vm_options(NAME, &[], &[]).unwrap();
        as_between_real_hosts(&mut vm);
        assert_eq!(vm.guest_clock_rate.as_deref(), Some(REAL_HOSTS_CLOCK));
        assert!(vm.cmdline.starts_with("tessera.task="), "{}", vm.cmdline);
        let given = ["--guest-clock-rate", "0.1"].map(str::to_owned);
        let mut vm = rig::vm_options(NAME, &[], &given).unwrap();
        as_between_real_hosts(&mut vm);
        assert_eq!((vm.guest_clock_rate.as_deref(), vm.cmdline.as_str()), (Some("0.1"), ""));
    }

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
