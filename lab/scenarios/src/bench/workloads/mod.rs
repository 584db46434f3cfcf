//! `./x bench workloads`: what people run on servers, over two hosts with one CPU each and, as it is, on one of them with two
//! vCPUs on its CPU (the papers' *overcommit*).
//!
//! ```text
//!   each round:  overcommit (two vCPUs, one CPU) ─> over two hosts ─> ...          (each a boot of Debian)
//!   over two:    boots on the first host ─> vCPU 1 goes to the other one
//!   each boot:   LEMP ─> functions ─> NPB ─> pigz ─> xz ─> make ─> Redis ─> PostgreSQL
//! ```
//! Nothing but nginx's workers is bound to a vCPU, and the guest's preset is tessera's own. Lines run in the guest and are timed by its clock. Pages
//! are asked for from the first host, by its clock. The guest's clock is as slow on emulated hosts as for `./x bench programs`: a fault
//! costs what it costs between real hosts, and computing far less. Pages have as much work by the guest's clock as their names say, a
//! kernel or function 0.4 s alone; all others meet more faults for each second of computing than on real hosts.

mod measure;
mod page;
mod plan;
mod report;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use lab::distro::System;
use outcome::Outcome;

use crate::bench::BenchOptions;
use crate::bench::rig::{self, Calibration, Figures, Rig};
use crate::vm::LabMode as HostMode;
use crate::vm::{distro, prepare};
use crate::workspace;
use measure::Bench;
use plan::{Mode, chosen};

const NAME: &str = "workloads";
/// Most seconds of a VM, boot and all, unless the options say.
const TIMEOUT: u64 = 14_400;
/// Rounds unless told, and with `--quick`.
const ROUNDS: usize = 3;
const QUICK_ROUNDS: usize = 1;
/// One host must hold the whole VM.
const MEMORY: [&str; 4] = ["--memory", "768", "--host-memory", "1536"];

/// Measures and tells.
///
/// # Errors
/// The options do not fit, something that is needed is missing, or nothing could be measured.
pub fn run(options: &BenchOptions) -> Result<ExitCode> {
    let rounds = if options.quick { QUICK_ROUNDS } else { ROUNDS };
    let rounds = options.rounds.map_or(rounds, usize::from);
    ensure!(rounds > 0, "--rounds 0: nothing would be measured");
    let workloads = chosen(&options.only)?;
    let mut vm = rig::vm_options(NAME, &MEMORY, &options.rest)?;
    vm.timeout.get_or_insert(TIMEOUT);
    let layout = vm.layout()?;
    ensure!(layout.to_string() == rig::LAYOUT, "--layout {layout}: this bench has its own");
    ensure!(
        matches!(vm.mode, HostMode::Auto | HostMode::Machines),
        "--mode: hosts of this bench are machines; a namespace has all CPUs of this one, and two vCPUs on one CPU are what is compared"
    );
    vm.mode = HostMode::Machines;
    let rig = Rig::new()?;
    let prepared = prepare::prepare_distro(System::Servers, &vm, &rig.progress)?;
    let is_slow = vm.guest_clock_rate.is_none();
    let plain = is_slow.then(|| prepare::prepare(&vm, &rig.progress)).transpose()?;
    let helper = lab::guest_program(&workspace::root()?)?;
    let system = prepared.distro.as_ref().context("the system that was just built")?;
    let disks = distro::disks(system, false)?;
    let lab = prepare::hosts_with_disks(&vm, &layout, disks, &rig.progress)?;
    let (outcome, problems, end) = rig.on(lab, |lab| {
        if let Some(plain) = &plain
            && let Err(error) = Calibration::apply(&rig, &mut vm, plain, lab)
        {
            return (Outcome::new(NAME), Vec::new(), Err(error));
        }
        let mut bench = Bench {
            rig: &rig,
            options: &vm,
            prepared: &prepared,
            lab,
            helper: &helper,
            workloads: &workloads,
            figures: Figures::new(),
            php: None,
            work: BTreeMap::new(),
            clock: 1.0,
            problems: Vec::new(),
        };
        let end = bench.measure(rounds);
        (outcome(&bench, rounds), bench.problems, end)
    });
    rig::tell(&outcome, &problems, end)
}

fn outcome(bench: &Bench<'_>, rounds: usize) -> Outcome {
    let mut outcome = Outcome::new(NAME);
    outcome.conditions.notes.push(format!(
        "Debian, {} MiB, on {} and {} ({}); {rounds} boots of each in turns; guest seconds, of which a second of this machine has \
         {}; tessera with {:?}, kernel with {:?}; gains are over overcommit in the same round; medians; on \
         emulated hosts a fault costs what it does between real ones, and computing a small part: a loss says less than a gain",
        2 * bench.options.share(2),
        Mode::Overcommit,
        Mode::Aggregate,
        bench.lab.substrate(),
        bench.clock,
        bench.options.bootstrap.join(" "),
        bench.options.cmdline,
    ));
    outcome.rows = report::rows(&bench.figures, bench.workloads);
    outcome.bars = report::bars(&bench.figures, bench.workloads);
    "gain".clone_into(&mut outcome.shown);
    outcome
}
