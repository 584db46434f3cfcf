//! One VM over the hosts of a lab: what `demo` and `soak` have in common.
//!
//! ```text
//!   prepare: build tessera, get the guest's kernel and initramfs
//!   run:     companions on hosts 2..N ─> bootstrap on host 1 ─> console lines ─> Outcome
//! ```

use std::fs;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab::distro::Distro;
use lab::{
    Command, Config, Disk, ExitStatus, Host, HostNumber, KernelFiles, Lab, Mode, RemoteProcess,
    Stream,
};
use serde_json::Value;

use crate::interrupt::Interrupted;
use crate::progress::{Progress, printable};
use crate::vm::companion::{Companion, PORT, wait_for_port};
use crate::vm::distro;
use crate::vm::fault_classes::Classes;
use crate::vm::guest_console::GuestReport;
use crate::vm::layout::Layout;
use crate::vm::options::{Interrupts, VmOptions};
use crate::workspace;

/// Rate of the guest's clock on emulated machines, where a page fault costs some ten times more of the
/// guest's time than on real ones.
const EMULATED_CLOCK_RATE: &str = "0.1";
/// Bounds of the hold window on emulated machines, in microseconds. A fault takes milliseconds there,
/// and a page that goes again before the vCPU that waited for it has run was fetched in vain.
const EMULATED_HOLD: &str = "20:10000";
/// Longest silence of the guest before a line says that it is still being waited for.
const QUIET: Duration = Duration::from_secs(15);
/// What tessera gets beyond its time limit, to end in order and write its report.
const OVERTIME: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(200);
/// Lines a host's output is kept for in an error message.
const TAIL: usize = 12;
/// Base of the guest's command line; tessera adds what its machine needs.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 reboot=t nokaslr mitigations=off \
                            cryptomgr.notests 8250.nr_uarts=1";

/// What is ready before hosts are there.
#[derive(Debug)]
pub(crate) struct Prepared {
    program: PathBuf,
    /// bzImage.
    vmlinuz: PathBuf,
    /// The same as ELF.
    vmlinux: PathBuf,
    initrd: PathBuf,
    /// The system that is booted; without one the guest's tests are.
    pub(crate) distro: Option<Distro>,
}

/// Builds tessera and the guest's files.
pub(crate) fn prepare(options: &VmOptions, progress: &Progress) -> Result<Prepared> {
    let root = workspace::root()?;
    let program = program(options, &root, progress)?;
    let kernel = lab::guest_kernel(&|line| progress.say(line))?;
    progress.say("building the guest's test program and initramfs");
    let initrd = lab::guest_image(&root, &kernel)?.path;
    let KernelFiles { vmlinuz, vmlinux, .. } = kernel;
    Ok(Prepared { program, vmlinuz, vmlinux, initrd, distro: None })
}

/// Builds tessera and the Debian system that boots from a disk.
pub(crate) fn prepare_distro(options: &VmOptions, progress: &Progress) -> Result<Prepared> {
    let program = program(options, &workspace::root()?, progress)?;
    let distro = lab::distro::distro(&|line| progress.say(line))?;
    let Distro { vmlinuz, vmlinux, initrd, .. } = distro.clone();
    Ok(Prepared { program, vmlinuz, vmlinux, initrd, distro: Some(distro) })
}

fn program(options: &VmOptions, root: &Path, progress: &Progress) -> Result<PathBuf> {
    options.program.clone().map_or_else(|| build(root, progress), Ok)
}

fn build(root: &Path, progress: &Progress) -> Result<PathBuf> {
    progress.say("building tessera (release)");
    workspace::run_cargo(root, &["build", "-q", "--release", "--locked", "-p", "tessera"])
        .context("build tessera")?;
    Ok(workspace::target(root).join("release/tessera"))
}

/// Brings up the hosts for a VM.
pub(crate) fn hosts(options: &VmOptions, layout: &Layout, progress: &Progress) -> Result<Lab> {
    hosts_with_disks(options, layout, Vec::new(), progress)
}

/// The same with disks.
pub(crate) fn hosts_with_disks(
    options: &VmOptions,
    layout: &Layout,
    disks: Vec<Disk>,
    progress: &Progress,
) -> Result<Lab> {
    let config = Config { disks, ..options.lab(layout.slices()) };
    let lab = Lab::up(&config, &|line| progress.say(line))?;
    let addresses: Vec<_> = lab.hosts().map(|host| host.address().to_string()).collect();
    progress.say(&format!("{} hosts are up: {}", addresses.len(), addresses.join(", ")));
    progress.say(&format!("logs are in {}", lab.folder().display()));
    Ok(lab)
}

/// How a VM went.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) guest: GuestReport,
    pub(crate) exit: Result<ExitStatus>,
    /// What `tessera bootstrap --report` wrote.
    pub(crate) report: Option<Value>,
    /// Seconds from the start of the bootstrap slice to the guest's first own line.
    pub(crate) boot_seconds: Option<f64>,
    pub(crate) seconds: f64,
    /// Everything that is not as it should be; empty for a good run.
    pub(crate) problems: Vec<String>,
    pub(crate) tail: Vec<String>,
}

/// One VM to run in a lab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario<'a> {
    pub(crate) options: &'a VmOptions,
    pub(crate) layout: &'a Layout,
    pub(crate) prepared: &'a Prepared,
    pub(crate) lab: &'a Lab,
    pub(crate) interrupts: Option<Interrupts>,
    pub(crate) progress: &'a Arc<Progress>,
    pub(crate) interrupted: &'a Interrupted,
    /// Print what the hosts print.
    pub(crate) loud: bool,
}

impl Scenario<'_> {
    /// Runs the VM to its end.
    pub(crate) fn run(&self) -> Result<Outcome> {
        let companions = self.start_companions()?;
        let start = Instant::now();
        let mut bootstrap = self.start_bootstrap()?;
        let mut outcome = self.watch(&mut bootstrap, start)?;
        drop(bootstrap);
        for companion in companions {
            companion.finish(&mut outcome.problems);
        }
        outcome.seconds = start.elapsed().as_secs_f64();
        outcome.report = self.read_report(&mut outcome.problems)?;
        self.judge(&mut outcome);
        Ok(outcome)
    }

    /// Starts the companions and waits until they listen.
    pub(crate) fn start_companions(&self) -> Result<Vec<Companion>> {
        self.put_secret()?;
        let mut companions = Vec::new();
        let slices = self.layout.slices();
        for (slice, host) in self.lab.hosts().take(slices).enumerate().skip(1) {
            // A companion opens what it lends when it starts, so only a host with the devices can.
            let has_devices = slice >= slices - self.options.device_slices;
            let lend = self.options.lend.iter().filter(|_| has_devices);
            let lend = lend.flat_map(|what| ["--lend".to_owned(), what.clone()]);
            let words = [
                self.program()?,
                "companion".to_owned(),
                "--listen".to_owned(),
                format!("{}:{PORT}", host.address()),
                "--secret-file".to_owned(),
                inside(&host, "vm.key")?,
                "--control".to_owned(),
                self.control(host.number()),
            ];
            let more = self.options.companion.iter().cloned();
            let command = Command::new(words.into_iter().chain(lend).chain(more));
            let process = host.spawn(&command)?;
            companions.push(Companion::new(process, host.number(), self.progress, self.loud));
        }
        for host in self.lab.hosts().take(self.layout.slices()).skip(1) {
            wait_for_port(&host)?;
        }
        Ok(companions)
    }

    /// Starts the bootstrap slice.
    pub(crate) fn start_bootstrap(&self) -> Result<RemoteProcess> {
        self.start_bootstrap_through(&[])
    }

    /// The same with words before the command.
    pub(crate) fn start_bootstrap_through(&self, prefix: &[String]) -> Result<RemoteProcess> {
        let first = self.lab.host(HostNumber::new(1)?)?;
        // A report of an earlier run must not be taken for this one's.
        drop(fs::remove_file(first.job()?.join("run.json")));
        let command = Command::new([prefix, &self.arguments(&first)?].concat());
        if self.loud {
            self.progress.say(&format!("host 1: {command}"));
        }
        first.spawn(&command)
    }

    fn arguments(&self, first: &Host<'_>) -> Result<Vec<String>> {
        let share = self.share();
        let mut words = vec![self.program()?, "bootstrap".to_owned()];
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("--secret-file", inside(first, "vm.key")?);
        let Prepared { vmlinuz, vmlinux, .. } = self.prepared;
        option("--kernel", text(if self.options.bzimage { vmlinuz } else { vmlinux })?);
        option("--initrd", text(&self.prepared.initrd)?);
        option("--cmdline", self.command_line());
        let with_memory = self.layout.slices() - self.options.device_slices;
        for (host, vcpus) in self.lab.hosts().zip(self.layout.vcpus()) {
            let share = if host.number().get() > with_memory { 0 } else { share };
            let place = match host.number().get() {
                1 => "local".to_owned(),
                _ => format!("{}:{PORT}", host.address()),
            };
            option("--slice", format!("{place},cpus={vcpus},memory={share}M"));
        }
        option("--limit", self.options.timeout().to_string());
        option("--report", inside(first, "run.json")?);
        if !self.options.bootstrap.iter().any(|word| word.starts_with("--control")) {
            option("--control", self.control(first.number()));
        }
        if let Some(interrupts) = self.interrupts {
            option("--interrupts", interrupts.name().to_owned());
        }
        if let Some(kind) = &self.options.page_tables {
            option("--page-tables", kind.clone());
        }
        if let Some(preset) = &self.options.guest_preset {
            option("--guest-preset", preset.clone());
        }
        if let Some(list) = &self.options.transport {
            option("--transport", list.clone());
        }
        if let Some(rate) = self.clock_rate() {
            option("--guest-clock-rate", rate);
        }
        if self.lab.mode() == Mode::Machines {
            let given = |name| self.options.bootstrap.iter().any(|word| word.starts_with(name));
            if !given("--timer-spacing") {
                option("--timer-spacing", timer_spacing(self.layout.all()).to_owned());
            }
            if !given("--hold") {
                option("--hold", EMULATED_HOLD.to_owned());
            }
        }
        if self.prepared.distro.is_some() {
            words.extend(distro::devices(first)?);
        }
        words.extend(self.options.bootstrap.iter().cloned());
        Ok(words)
    }

    /// Control socket of a slice. Not in the job folder: what hosts share may not be able to hold sockets.
    pub(crate) fn control(&self, host: HostNumber) -> String {
        format!("/run/tessera-{}-{host}.sock", self.options.name)
    }

    fn clock_rate(&self) -> Option<String> {
        let emulated = self.lab.mode() == Mode::Machines;
        let default = emulated.then(|| EMULATED_CLOCK_RATE.to_owned());
        self.options.guest_clock_rate.clone().or(default)
    }

    /// Seconds of the guest's clock for each second.
    pub(crate) fn guest_clock(&self) -> Result<f64> {
        let Some(rate) = self.clock_rate() else { return Ok(1.0) };
        let clock = rate.parse().ok().filter(|clock| (0.001..=1000.0).contains(clock));
        clock.with_context(|| format!("--guest-clock-rate {rate} is no rate"))
    }

    fn command_line(&self) -> String {
        let VmOptions { tests, rounds, stress, cmdline, .. } = self.options;
        if self.prepared.distro.is_some() {
            let line = format!("{COMMAND_LINE} {} {cmdline}", distro::command_line());
            return line.trim_end().to_owned();
        }
        let tests = tests.as_deref().unwrap_or("all");
        let mut line = format!("{COMMAND_LINE} tessera.tests={tests} tessera.rounds={rounds}");
        if let Some(stress) = stress {
            line.push_str(&format!(" tessera.stress={stress}"));
        }
        format!("{line} {cmdline}").trim_end().to_owned()
    }

    /// The hosts run a copy, so that a build meanwhile does not pull the program away under them.
    pub(crate) fn program(&self) -> Result<String> {
        let copy = self.lab.folder().join("tessera");
        if !copy.exists() {
            let own = &self.prepared.program;
            fs::copy(own, &copy).with_context(|| format!("copy {}", own.display()))?;
        }
        text(&copy)
    }

    fn put_secret(&self) -> Result<()> {
        let mut secret = [0; 32];
        fs::File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut secret))
            .context("read /dev/urandom")?;
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        for host in self.lab.hosts() {
            let path = host.job()?.join("vm.key");
            fs::write(&path, &secret).with_context(|| format!("write {}", path.display()))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
                .with_context(|| format!("protect {}", path.display()))?;
        }
        Ok(())
    }

    /// Reads the bootstrap slice's output until it ends.
    fn watch(&self, bootstrap: &mut RemoteProcess, start: Instant) -> Result<Outcome> {
        let until = start + Duration::from_secs(self.options.timeout()) + OVERTIME;
        let mut guest = GuestReport::default();
        let (mut boot_seconds, mut tail, mut problems) = (None, Vec::new(), Vec::new());
        while !bootstrap.is_over() {
            if self.interrupted.is_set() {
                bail!("interrupted");
            }
            if Instant::now() > until {
                problems.push("tessera does not end at its time limit".to_owned());
                break;
            }
            let Some(line) = bootstrap.next_line(POLL) else {
                self.progress.say_if_quiet(QUIET, || waiting(&guest));
                continue;
            };
            if line.stream == Stream::Out && guest.take(&line.text) {
                boot_seconds.get_or_insert_with(|| start.elapsed().as_secs_f64());
            }
            let mark = if line.stream == Stream::Out { "console" } else { "tessera" };
            let shown = format!("host 1 {mark}: {}", printable(&line.text));
            if self.loud {
                self.progress.say(&shown);
            }
            tail.push(shown);
            if tail.len() > TAIL {
                tail.remove(0);
            }
        }
        let exit = bootstrap.wait(Duration::ZERO);
        let (report, seconds) = (None, 0.0);
        Ok(Outcome { guest, exit, report, boot_seconds, seconds, problems, tail })
    }

    /// What `tessera bootstrap --report` wrote.
    pub(crate) fn read_report(&self, problems: &mut Vec<String>) -> Result<Option<Value>> {
        let path = self.lab.host(HostNumber::new(1)?)?.job()?.join("run.json");
        let Ok(bytes) = fs::read(&path) else {
            problems.push("tessera wrote no report".to_owned());
            return Ok(None);
        };
        match serde_json::from_slice(&bytes) {
            Ok(report) => Ok(Some(report)),
            Err(error) => {
                problems.push(format!("tessera's report is no JSON: {error}"));
                Ok(None)
            }
        }
    }

    fn judge(&self, outcome: &mut Outcome) {
        let problems = &mut outcome.problems;
        match &outcome.exit {
            Ok(status) if status.success() => {}
            Ok(status) => problems.push(format!("tessera bootstrap ended with {status}")),
            Err(error) => problems.push(format!("tessera bootstrap: {error:#}")),
        }
        let (guest, wanted) = (&outcome.guest, self.layout.all());
        match guest.cpus_online {
            Some(online) if online == wanted => {}
            Some(online) => problems.push(format!("{online} of {wanted} CPUs online")),
            None => problems.push("the guest did not reach its tests".to_owned()),
        }
        if guest.cpus_online.is_some() && guest.done.is_none() {
            problems.push("the guest did not finish its tests".to_owned());
        }
        let failed = guest.failed();
        if !failed.is_empty() {
            problems.push(format!("tests failed: {}", failed.join(", ")));
        }
        if let Some(done) = guest.done.filter(|done| done.failed > 0 && failed.is_empty()) {
            problems.push(format!("the guest counts {} failed tests", done.failed));
        }
        let classes = outcome.report.as_ref().filter(|report| replicates(report));
        if let Some(classes) = classes.and_then(Classes::of).filter(|c| c.too_many_for_tables()) {
            let line = classes.line();
            problems.push(format!("replicas did not keep page tables local: {}", line.trim()));
        }
        let warnings = guest.kernel_warnings.unwrap_or(0);
        if self.options.strict() && warnings > 0 {
            problems.push(format!("{warnings} warnings in the guest's kernel log"));
        }
    }

    /// Address of each slice's host, in order.
    pub(crate) fn addresses(&self) -> Vec<Ipv4Addr> {
        self.lab.hosts().map(|host| host.address()).collect()
    }

    /// Memory of each slice in MiB.
    pub(crate) fn share(&self) -> u32 {
        self.options.share(self.layout.slices() - self.options.device_slices)
    }
}

/// Timer interrupts of a vCPU come no closer than this on emulated machines. A tick touches pages
/// that every vCPU touches; the spacing grows while ticks cost more than a quarter of it. With at most 60 ms a
/// guest that isolates none of its two vCPUs needed three times as long to start (docs/guest-parameters.md),
/// with four it did little else.
fn timer_spacing(vcpus: u32) -> &'static str {
    if vcpus < 4 { "adaptive:20-400" } else { "adaptive:50-1000" }
}

/// True when page tables of the kernel became replicas.
fn replicates(report: &Value) -> bool {
    let how = report.get("page_tables").and_then(Value::as_str);
    how.is_some_and(|how| how == "replicate" || how == "kernel")
}

fn waiting(guest: &GuestReport) -> String {
    match (guest.cpus_online, guest.tests.len()) {
        (None, _) => "the guest is starting".to_owned(),
        (Some(_), count) => format!("the guest's tests are running, {count} done"),
    }
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()))
}

pub(crate) fn inside(host: &Host<'_>, name: &str) -> Result<String> {
    text(&host.job_inside()?.join(name))
}
