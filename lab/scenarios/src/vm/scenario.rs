//! One VM over the hosts of a lab: what all scenarios have in common.
//!
//! ```text
//!   prepare: build tessera, get the guest's kernel and initramfs
//!   run:     companions on hosts 2..N ─> bootstrap on host 1 ─> console lines ─> Outcome
//! ```

use std::fs;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab::{Command, Host, HostNumber, Lab, RemoteProcess, Stream};
use serde_json::Value;

use super::companion::{Companion, PORT, wait_for_port};
use super::guest_console::GuestReport;
use super::judge::Outcome;
use super::layout::Layout;
use super::options::{Interrupts, VmOptions};
use super::prepare::Prepared;
use crate::interrupt::Interrupted;
use crate::progress::{Progress, printable};

/// Longest silence of the guest before a line says that it is still being waited for.
const QUIET: Duration = Duration::from_secs(15);
/// What tessera gets beyond its time limit, to end in order and write its report.
const OVERTIME: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(200);
/// Lines a host's output is kept for in an error message.
const TAIL: usize = 12;

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
        let outcome = self.run_beside(&mut |_| {})?;
        self.end(outcome, companions)
    }

    /// Runs the bootstrap slice to its end beside companions that are there. `see` hears of what the guest says.
    pub(crate) fn run_beside(&self, see: &mut dyn FnMut(&GuestReport)) -> Result<Outcome> {
        let start = Instant::now();
        let mut bootstrap = self.start_bootstrap()?;
        let mut outcome = self.watch(&mut bootstrap, start, see)?;
        outcome.seconds = start.elapsed().as_secs_f64();
        Ok(outcome)
    }

    /// Ends the companions of a VM that is over, and judges it.
    pub(crate) fn end(&self, mut outcome: Outcome, companions: Vec<Companion>) -> Result<Outcome> {
        for companion in companions {
            companion.finish(&mut outcome.problems);
        }
        outcome.report = self.read_report(&mut outcome.problems)?;
        outcome.judge((self.layout.slices(), self.layout.all()), self.options.strict());
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

    /// Control socket of a slice. Not in the job folder: what hosts share may not be able to hold sockets.
    pub(crate) fn control(&self, host: HostNumber) -> String {
        format!("/run/tessera-{}-{host}.sock", self.options.name)
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
    fn watch(
        &self,
        bootstrap: &mut RemoteProcess,
        start: Instant,
        see: &mut dyn FnMut(&GuestReport),
    ) -> Result<Outcome> {
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
                see(&guest);
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

    /// Address of each slice's host, in order.
    pub(crate) fn addresses(&self) -> Vec<Ipv4Addr> {
        self.lab.hosts().map(|host| host.address()).collect()
    }

    /// Memory of each slice in MiB.
    pub(crate) fn share(&self) -> u32 {
        self.options.share(self.layout.slices() - self.options.device_slices)
    }
}

fn waiting(guest: &GuestReport) -> String {
    match (guest.cpus_online, guest.tests.len()) {
        (None, _) => "the guest is starting".to_owned(),
        (Some(_), count) => format!("the guest's tests are running, {count} done"),
    }
}

/// A path as a word of a command line.
pub(super) fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()))
}

/// A file in the job folder of a host, as the host sees it.
pub(crate) fn inside(host: &Host<'_>, name: &str) -> Result<String> {
    text(&host.job_inside()?.join(name))
}
