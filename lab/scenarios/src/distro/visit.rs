//! `./x demo --distro`: a whole Debian system as one VM over several hosts, with a disk and a network.
//!
//! ```text
//!   hosts up ─> tap on host 1 ─> companions, bootstrap ─> login prompt ─> nginx answers
//!     ─> objects compared, servers of every CPU ─> ssh, a program on every CPU ─> power off ─> Shown
//! ```
//! Everything is asked from host 1, outside the VM, at the other end of the tap. That host has the devices, and the bootstrap,
//! unless the options put that on the last host. A bootstrap that was drained has ended, and the VM goes on.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use lab::distro::{self, CPU_PORT, Distro, HTTP_PORT};
use lab::{ExitStatus, HostNumber, Lab};
use serde_json::{Value, json};

use crate::distro::guest::{Guest, Place};
use crate::distro::vm::Vm;
use crate::interrupt::Interrupted;
use crate::progress::Progress;
use crate::vm::companion::Companion;
use crate::vm::distro::TAP;
use crate::vm::output::Output;
use crate::vm::scenario::{self, Scenario};
use crate::vm::summary;

const POLL: Duration = Duration::from_millis(200);
const QUIET: Duration = Duration::from_secs(30);
/// From the request to power off to the end of the VM, whose clock shows a tenth as on emulated hosts; a slower one takes longer.
const END_LIMIT: Duration = Duration::from_secs(900);
const EMULATED: f64 = 10.0;
/// Seconds of the load at the end.
const LOAD_SECONDS: u32 = 10;

/// How the run went.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) prompt_seconds: Option<f64>,
    pub(crate) answer_seconds: Option<f64>,
    pub(crate) seconds: f64,
    pub(crate) report: Option<Value>,
    pub(crate) problems: Vec<String>,
}

impl Shown {
    pub(crate) fn json(&self, scenario: &Scenario<'_>) -> Value {
        json!({
            "substrate": scenario.lab.substrate().to_string(),
            "mode": scenario.lab.mode(),
            "layout": scenario.layout.to_string(),
            "passed": self.problems.is_empty(),
            "problems": self.problems,
            "prompt_seconds": self.prompt_seconds,
            "answer_seconds": self.answer_seconds,
            "seconds": self.seconds,
            "tessera": self.report,
        })
    }

    pub(crate) fn table(&self, scenario: &Scenario<'_>) -> String {
        let time = |seconds: Option<f64>| {
            seconds.map_or_else(|| "never".to_owned(), |s| format!("{s:.1} s"))
        };
        let mut text = summary::slices_table(scenario, self.report.as_ref());
        text.push_str(&format!(
            "login prompt: {}, first answer of nginx: {}, whole run: {:.1} s\n",
            time(self.prompt_seconds),
            time(self.answer_seconds),
            self.seconds
        ));
        for problem in &self.problems {
            text.push_str(&format!("problem: {problem}\n"));
        }
        text
    }
}

/// Boots the system, looks at it from outside, and powers it off.
pub(crate) fn run(scenario: &Scenario<'_>, distro: &Distro, keep: bool) -> Result<Shown> {
    visit(scenario, distro, &mut |guest, slices| {
        guest.check_objects()?;
        guest.check_cpus()?;
        guest.check_system()?;
        for cpu in 0..guest.cpus {
            guest.load(CPU_PORT + cpu, 2, LOAD_SECONDS)?;
        }
        if keep { stay(scenario, distro, slices) } else { Ok(()) }
    })
}

/// The slices of a VM whose guest is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slices<'a> {
    scenario: &'a Scenario<'a>,
    /// The bootstrap slice.
    vm: &'a Vm,
    /// All others, in order.
    companions: &'a [Companion],
    output: &'a Output,
}

impl Slices<'_> {
    /// An error when the VM has ended.
    pub(crate) fn alive(self) -> Result<()> {
        let Err(error) = self.vm.alive() else { return Ok(()) };
        let goes_on = self.companions.iter().any(|companion| !companion.is_over());
        if goes_on && self.scenario.bootstrap_has_left()? { Ok(()) } else { Err(error) }
    }

    /// Waits until the process of a slice that has left has ended, well.
    pub(crate) fn left(self, slice: usize, limit: Duration) -> Result<()> {
        let (status, last) = if slice == 0 {
            let status = self.vm.wait(limit).context("the bootstrap")?;
            ensure!(self.scenario.bootstrap_has_left()?, "the bootstrap ended, and not as drained");
            (status, self.output.tail().join("; "))
        } else {
            let companion = self.companions.get(slice - 1).context("a companion for each slice")?;
            (companion.wait(limit)?, companion.last_words())
        };
        ensure!(status == ExitStatus::Code(0), "it ended with {status}: {last}");
        Ok(())
    }
}

/// What is done with a guest whose web server answers. An error ends the VM and is a problem of the run.
pub(crate) type Look<'a> = &'a mut dyn FnMut(&Guest<'_>, Slices<'_>) -> Result<()>;

/// Boots the system, hands it over once it answers, and powers it off.
pub(crate) fn visit(scenario: &Scenario<'_>, distro: &Distro, see: Look<'_>) -> Result<Shown> {
    let first = scenario.lab.host(HostNumber::new(1)?)?;
    first.tap(TAP, distro::HOST_ADDRESS)?;
    let output = scenario.output(true);
    let companions = scenario.start_companions_heard_by(&output)?;
    let start = Instant::now();
    let vm = Vm::watch(scenario.start_bootstrap()?, scenario.host(0)?.number(), &output);
    let mut shown = Shown::default();
    let slices = Slices { scenario, vm: &vm, companions: &companions, output: &output };
    if let Err(error) = look(scenario, distro, slices, start, see, &mut shown) {
        if scenario.interrupted.is_set() {
            bail!("interrupted");
        }
        shown.problems.push(format!("{error:#}"));
        shown.problems.extend(output.tail());
        vm.stop();
    }
    let asked = Instant::now();
    let end_limit = END_LIMIT.div_f64((scenario.guest_clock()? * EMULATED).min(1.0));
    let exit = vm.wait(end_limit);
    let well = exit.as_ref().is_ok_and(|exit| exit.success());
    match exit {
        Ok(status) if status.success() => {}
        Ok(status) => shown.problems.push(format!("tessera bootstrap ended with {status}")),
        Err(error) => shown.problems.push(format!("tessera bootstrap: {error:#}")),
    }
    if shown.problems.is_empty() && scenario.bootstrap_has_left()? {
        // It ended long ago: the VM has when all others have.
        while slices.alive().is_ok() && asked.elapsed() < end_limit {
            thread::sleep(POLL);
        }
    }
    drop(vm);
    scenario::finish(companions, well, &mut shown.problems);
    if let Some(line) = output.trouble() {
        shown.problems.push(format!("the guest's kernel says: {line}"));
    }
    shown.seconds = start.elapsed().as_secs_f64();
    shown.report = scenario.read_report(&mut shown.problems)?;
    Ok(shown)
}

fn look(
    scenario: &Scenario<'_>,
    distro: &Distro,
    slices: Slices<'_>,
    start: Instant,
    see: Look<'_>,
    shown: &mut Shown,
) -> Result<()> {
    let (progress, interrupted) = (scenario.progress, scenario.interrupted);
    let until = start + Duration::from_secs(scenario.options.timeout());
    while !slices.output.prompted() {
        slices.alive()?;
        ensure!(!interrupted.is_set(), "interrupted");
        ensure!(Instant::now() < until, "no login prompt in time");
        progress.say_if_quiet(QUIET, || "the guest is starting".to_owned());
        thread::sleep(POLL);
    }
    let prompt = start.elapsed().as_secs_f64();
    shown.prompt_seconds = Some(prompt);
    progress.say(&format!("login prompt after {prompt:.1} s"));
    let guest = guest(scenario.lab, distro, scenario.layout.all(), progress, interrupted)?;
    guest.wait_for(HTTP_PORT, until, &mut || slices.alive())?;
    let answer = start.elapsed().as_secs_f64();
    shown.answer_seconds = Some(answer);
    progress.say(&format!("first answer of nginx after {answer:.1} s"));
    see(&guest, slices)?;
    guest.power_off()
}

/// The guest as its first host reaches it.
pub(crate) fn guest<'a>(
    lab: &'a Lab,
    distro: &'a Distro,
    cpus: u32,
    progress: &'a Progress,
    interrupted: &'a Interrupted,
) -> Result<Guest<'a>> {
    let first = lab.host(HostNumber::new(1)?)?;
    let program = lab.own_program()?;
    let program = program.to_str().ok_or_else(|| anyhow!("{} is not UTF-8", program.display()))?;
    Ok(Guest {
        place: Place::Host(first, distro::GUEST_ADDRESS.to_owned()),
        distro,
        program: program.to_owned(),
        cpus: u16::try_from(cpus)?,
        progress,
        interrupted,
    })
}

/// Leaves the VM to the person until ctrl-c, a `lab down` from elsewhere, or its own end.
fn stay(scenario: &Scenario<'_>, distro: &Distro, slices: Slices<'_>) -> Result<()> {
    let ssh = distro.ssh(distro::GUEST_ADDRESS, 22, "COMMAND");
    let name = &scenario.options.name;
    scenario.progress.say(&format!(
        "the VM stays up until ctrl-c; try: ./x lab exec --name {name} 1 -- {}",
        ssh.join(" ")
    ));
    while !scenario.interrupted.is_set() {
        slices.alive()?;
        thread::sleep(POLL);
    }
    bail!("interrupted")
}
