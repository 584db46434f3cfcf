//! `./x soak pause`: a Debian system over two hosts is paused and goes on, again and again, while it serves web pages.
//!
//! ```text
//!   boot, load begins ─> pause at a random moment ─> saved forms of all slices are a cut, nothing moves ─> resume ─┐
//!                                ^─────────────────────────────────────────────────────────────────────────────────┘
//!                      ─> load ends without a failed request, the guest is well ─> power off
//! ```

use std::fs;
use std::path::PathBuf;
use std::process::{Command as Process, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use lab::{Command, HostNumber};
use serde_json::Value;

use crate::bench::rig::median;
use crate::distro::guest::Guest;
use crate::distro::visit;
use crate::soak::load::Load;
use crate::soak::moments::random;
use crate::soak::rig::{Rig, RigOptions, exit};
use crate::vm::scenario::{Scenario, inside};
use crate::vm::{VmOptions, distro};

const LAYOUT: &str = "1+1";
/// A boot of Debian on emulated hosts, and some pauses.
const TIMEOUT: u64 = 3600;
/// Folder of a host's job for saved forms.
const FORMS: &str = "forms";
/// Latest moment of a pause after the guest went on.
const RUN_MS: u64 = 3000;
/// Longest pause, behind the look at the forms.
const PAUSE_MS: u64 = 1000;
/// For a command of a slice.
const LIMIT: Duration = Duration::from_secs(150);

/// What `./x soak pause` takes.
#[derive(Args, Debug)]
pub struct PauseOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// How often to pause
    #[arg(long, default_value_t = 30)]
    times: u32,
    #[command(flatten)]
    rig: RigOptions,
}

/// Pauses as often as wanted, and judges.
///
/// # Errors
/// Something that is needed is missing, or somebody interrupts; a bad pause is no error.
pub fn run(options: &PauseOptions) -> Result<ExitCode> {
    let mut vm = options.vm.clone();
    vm.layout.get_or_insert(LAYOUT.parse()?);
    vm.timeout.get_or_insert(TIMEOUT);
    let rig = Rig::with_distro(&vm, options.rig, |layout| {
        ensure!(layout.slices() == 2, "--layout {layout}: this is about two slices");
        Ok(())
    })?;
    let system = rig.distro()?;
    let lab = rig.hosts(&vm, distro::disks(&system, false)?)?;
    for (number, words) in [(1, &mut vm.bootstrap), (2, &mut vm.companion)] {
        let host = lab.host(HostNumber::new(number)?)?;
        fs::create_dir_all(host.job()?.join(FORMS)).context("make a folder for saved forms")?;
        words.extend(["--test-forms".to_owned(), inside(&host, FORMS)?]);
    }
    let scenario = rig.scenario(&vm, &lab);
    let mut told = Told::default();
    let shown = visit::visit(&scenario, &system, &mut |guest, _| {
        told = pauses(&scenario, guest, options.times)?;
        guest.check_objects()?;
        guest.check_cpus()
    })?;
    rig.check()?;
    println!("{told}");
    for problem in &shown.problems {
        println!("problem: {problem}");
    }
    drop(lab);
    Ok(exit(shown.problems.is_empty()))
}

/// Times of all pauses, in milliseconds of the slices.
#[derive(Debug, Default)]
struct Told {
    pause: Vec<f64>,
    resume: Vec<f64>,
    requests: u64,
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let middle = |times: &[f64]| median(times.to_vec()).unwrap_or_default();
        let (pause, resume) = (middle(&self.pause), middle(&self.resume));
        write!(
            f,
            "{} pauses, each with saved forms that are a cut; median until all rest {pause:.1} ms, until all run again \
             {resume:.1} ms; {} requests of the load meanwhile, none failed",
            self.resume.len(),
            self.requests
        )
    }
}

fn pauses(scenario: &Scenario<'_>, guest: &Guest<'_>, times: u32) -> Result<Told> {
    let mut told = Told::default();
    for number in 1..=times {
        ensure!(!scenario.interrupted.is_set(), "interrupted");
        one(scenario, guest, &mut told).with_context(|| format!("pause {number}"))?;
        let last = |times: &[f64]| times.last().copied().unwrap_or_default();
        scenario.progress.say(&format!(
            "pause {number} of {times}: all at rest after {:.1} ms, forms are a cut, all run after {:.1} ms",
            last(&told.pause),
            last(&told.resume)
        ));
    }
    Ok(told)
}

/// Pauses under load, looks, and has the VM go on.
fn one(scenario: &Scenario<'_>, guest: &Guest<'_>, told: &mut Told) -> Result<()> {
    let load = Load::start(scenario, guest)?;
    thread::sleep(Duration::from_millis(random(RUN_MS)));
    told.pause.push(vm(scenario, "pause")?);
    check_forms(scenario)?;
    let again = vm(scenario, "pause").err().context("the VM was paused twice")?;
    ensure!(format!("{again:#}").contains("at rest already"), "a second pause: {again:#}");
    thread::sleep(Duration::from_millis(random(PAUSE_MS)));
    told.resume.push(vm(scenario, "resume")?);
    told.requests += load.end()?;
    Ok(())
}

/// `tessera vm VERB` on the host of the bootstrap slice; how long it took there.
fn vm(scenario: &Scenario<'_>, verb: &str) -> Result<f64> {
    let first = scenario.lab.host(HostNumber::new(1)?)?;
    let (program, control) = (scenario.program()?, scenario.control(first.number()));
    let words = [&program, "vm", verb, "--control", &control, "--json"];
    let said = first.output(&Command::new(words), LIMIT)?;
    let answer: Value = serde_json::from_str(said.trim()).context("read what it says")?;
    answer["milliseconds"].as_f64().context("it does not say how long it took")
}

/// The forms that all slices have just written are one moment of the VM.
fn check_forms(scenario: &Scenario<'_>) -> Result<()> {
    let form = |(slice, host): (usize, lab::Host<'_>)| -> Result<PathBuf> {
        Ok(host.job()?.join(FORMS).join(format!("slice-{slice}")))
    };
    let forms = scenario.lab.hosts().enumerate().map(form).collect::<Result<Vec<_>>>()?;
    let mut check = Process::new(&scenario.prepared.program);
    let output = check.arg("check-forms").args(&forms).output().context("check the forms")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the saved forms are no cut: {}", said.trim());
    // The next pause must write its own.
    forms.iter().try_for_each(fs::remove_file).context("remove the forms")
}
