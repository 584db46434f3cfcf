//! `./x demo --distro`: a whole Debian system as one VM over several hosts, with a disk and a network.
//!
//! ```text
//!   hosts up ─> tap on host 1 ─> companions, bootstrap ─> login prompt ─> nginx answers
//!     ─> objects compared, servers of every CPU ─> ssh, a program on every CPU ─> power off ─> Shown
//! ```
//! Everything is asked from host 1, outside the VM, at the other end of the tap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use lab::distro::{self, CPU_PORT, Distro, HTTP_PORT, LABEL};
use lab::{Disk, Event, ExitStatus, Host, HostNumber, Lab, RemoteProcess, Stream};
use serde_json::{Value, json};

use crate::distro_console::Console;
use crate::distro_guest::{Guest, Place};
use crate::interrupt::Interrupted;
use crate::progress::Progress;
use crate::scenario::Scenario;
use crate::summary;

/// Most seconds the VM may run, unless the options say.
pub(crate) const TIMEOUT: u64 = 7200;
/// The tap device on the first host.
pub(crate) const TAP: &str = "tap0";
const POLL: Duration = Duration::from_millis(200);
const QUIET: Duration = Duration::from_secs(30);
/// From the request to power off to the end of the VM.
const END_LIMIT: Duration = Duration::from_secs(900);
/// Lines of tessera and console that a failed run shows again.
const TAIL: usize = 12;
/// Seconds of the load at the end.
const LOAD_SECONDS: u32 = 10;

/// Disks of the lab: the system's image on the first host.
pub(crate) fn disks(distro: &Distro, keep: bool) -> Result<Vec<Disk>> {
    Ok(vec![Disk { host: HostNumber::new(1)?, image: distro.image.clone(), keep }])
}

/// What the guest's kernel is told beyond what all guests are.
pub(crate) fn command_line() -> String {
    format!("root=LABEL={LABEL} rw")
}

/// Options of `tessera bootstrap` for the devices of the first host.
pub(crate) fn devices(first: &Host<'_>) -> Result<Vec<String>> {
    let disks = first.state()?.disks;
    let disk = disks.first().and_then(|disk| disk.to_str());
    let disk = disk.ok_or_else(|| anyhow!("host 1 has no disk for the guest"))?;
    Ok(["--disk", disk, "--net", TAP].map(str::to_owned).to_vec())
}

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
    let first = scenario.lab.host(HostNumber::new(1)?)?;
    first.tap(TAP, distro::HOST_ADDRESS)?;
    let companions = scenario.start_companions()?;
    let start = Instant::now();
    let mut vm = Vm::watch(scenario.start_bootstrap()?, scenario.progress);
    let mut shown = Shown::default();
    if let Err(error) = look(scenario, distro, &vm, start, keep, &mut shown) {
        if scenario.interrupted.is_set() {
            bail!("interrupted");
        }
        shown.problems.push(format!("{error:#}"));
        shown.problems.extend(vm.tail());
        vm.stop();
    }
    match vm.end(END_LIMIT) {
        Ok(status) if status.success() => {}
        Ok(status) => shown.problems.push(format!("tessera bootstrap ended with {status}")),
        Err(error) => shown.problems.push(format!("tessera bootstrap: {error:#}")),
    }
    if let Some(line) = vm.trouble() {
        shown.problems.push(format!("the guest's kernel says: {line}"));
    }
    drop(vm);
    for companion in companions {
        companion.finish(&mut shown.problems);
    }
    shown.seconds = start.elapsed().as_secs_f64();
    shown.report = scenario.read_report(&mut shown.problems)?;
    Ok(shown)
}

fn look(
    scenario: &Scenario<'_>,
    distro: &Distro,
    vm: &Vm,
    start: Instant,
    keep: bool,
    shown: &mut Shown,
) -> Result<()> {
    let (progress, interrupted) = (scenario.progress, scenario.interrupted);
    let until = start + Duration::from_secs(scenario.options.timeout());
    while !vm.prompted() {
        vm.alive()?;
        ensure!(!interrupted.is_set(), "interrupted");
        ensure!(Instant::now() < until, "no login prompt in time");
        progress.say_if_quiet(QUIET, || "the guest is starting".to_owned());
        thread::sleep(POLL);
    }
    let prompt = start.elapsed().as_secs_f64();
    shown.prompt_seconds = Some(prompt);
    progress.say(&format!("login prompt after {prompt:.1} s"));
    let guest = guest(scenario.lab, distro, scenario.layout.all(), progress, interrupted)?;
    guest.wait_for(HTTP_PORT, until, &mut || vm.alive())?;
    let answer = start.elapsed().as_secs_f64();
    shown.answer_seconds = Some(answer);
    progress.say(&format!("first answer of nginx after {answer:.1} s"));
    guest.check_objects()?;
    guest.check_cpus()?;
    guest.check_system()?;
    for cpu in 0..guest.cpus {
        guest.load(CPU_PORT + cpu, 2, LOAD_SECONDS)?;
    }
    if keep {
        stay(scenario, distro, vm)?;
    }
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
fn stay(scenario: &Scenario<'_>, distro: &Distro, vm: &Vm) -> Result<()> {
    let ssh = distro.ssh(distro::GUEST_ADDRESS, 22, "COMMAND");
    let name = &scenario.options.name;
    scenario.progress.say(&format!(
        "the VM stays up until ctrl-c; try: ./x lab exec --name {name} 1 -- {}",
        ssh.join(" ")
    ));
    while !scenario.interrupted.is_set() {
        vm.alive()?;
        thread::sleep(POLL);
    }
    bail!("interrupted")
}

/// What is known about the bootstrap slice; a thread of its own keeps reading what it says.
#[derive(Debug)]
struct Vm {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    console: Mutex<Console>,
    tail: Mutex<Vec<String>>,
    end: Mutex<Option<Result<ExitStatus, String>>>,
    stop: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Vm {
    fn watch(process: RemoteProcess, progress: &Arc<Progress>) -> Self {
        let shared = Arc::new(Shared::default());
        let (own, progress) = (Arc::clone(&shared), Arc::clone(progress));
        let reader = thread::spawn(move || own.read(process, &progress));
        Self { shared, reader: Some(reader) }
    }

    fn prompted(&self) -> bool {
        lock(&self.shared.console).prompted()
    }

    fn trouble(&self) -> Option<String> {
        lock(&self.shared.console).trouble().map(str::to_owned)
    }

    fn tail(&self) -> Vec<String> {
        lock(&self.shared.tail).clone()
    }

    /// An error when the VM has ended.
    fn alive(&self) -> Result<()> {
        match &*lock(&self.shared.end) {
            None => Ok(()),
            Some(Ok(status)) => bail!("tessera bootstrap ended early with {status}"),
            Some(Err(why)) => bail!("tessera bootstrap: {why}"),
        }
    }

    /// Kills the bootstrap slice.
    fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
    }

    /// Waits for the end.
    fn end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + limit;
        let over = || self.reader.as_ref().is_none_or(JoinHandle::is_finished);
        while !over() && Instant::now() < until {
            thread::sleep(POLL);
        }
        match lock(&self.shared.end).take() {
            Some(Ok(status)) => Ok(status),
            Some(Err(why)) => Err(anyhow!(why)),
            None if self.shared.stop.load(Ordering::SeqCst) => Err(anyhow!("it was stopped")),
            None => Err(anyhow!("it did not end within {limit:?} of the guest's power-off")),
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.stop();
        if let Some(reader) = self.reader.take() {
            // It only reads; what it had to say is said.
            drop(reader.join());
        }
    }
}

impl Shared {
    /// Reads until the slice ends or is to be stopped; it is killed when the handle is dropped.
    fn read(&self, mut process: RemoteProcess, progress: &Progress) {
        let mut errors = Console::default();
        while !self.stop.load(Ordering::SeqCst) {
            let (mark, lines) = match process.next_event(POLL) {
                None => continue,
                Some(Event::Output(Stream::Out, bytes)) => {
                    ("console", lock(&self.console).take(&bytes))
                }
                Some(Event::Output(Stream::Error, bytes)) => ("tessera", errors.take(&bytes)),
                Some(Event::Exit(status)) => {
                    *lock(&self.end) = Some(Ok(status));
                    return;
                }
                Some(Event::Lost(why)) => {
                    *lock(&self.end) = Some(Err(why));
                    return;
                }
            };
            for line in lines {
                let line = format!("host 1 {mark}: {line}");
                progress.say(&line);
                let mut tail = lock(&self.tail);
                tail.push(line);
                if tail.len() > TAIL {
                    tail.remove(0);
                }
            }
        }
    }
}
