//! One VM over the hosts of a lab: what all scenarios have in common.
//!
//! ```text
//!   prepare: build tessera, get the guest's kernel and initramfs
//!   run:     companions on hosts 2..N ─> bootstrap on host 1 ─> console lines ─┬──> Outcome
//!                                           it leaves ─> those of a companion ─┘
//! ```

use std::fs;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab::{Command, Event, Host, HostNumber, Lab, RemoteProcess, Stream};

use super::companion::{Companion, PORT, wait_for_port};
use super::distro;
use super::guest_console::GuestReport;
use super::joined::Joined;
use super::judge::Outcome;
use super::layout::Layout;
use super::options::{Interrupts, VmOptions};
use super::output::Output;
use super::prepare::Prepared;
use crate::interrupt::Interrupted;
use crate::progress::Progress;

/// Longest silence of the guest before a line says that it is still being waited for.
const QUIET: Duration = Duration::from_secs(15);
/// What tessera gets beyond its time limit, to end in order and write its report.
const OVERTIME: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(200);
/// What a slice writes at its end, in the job folder of its host.
pub(super) const REPORT: &str = "run.json";

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
    /// Slices that have joined it.
    pub(crate) joined: &'a Joined,
}

impl<'a> Scenario<'a> {
    /// Runs the VM to its end.
    pub(crate) fn run(&self) -> Result<Outcome> {
        let output = self.output(self.loud);
        let companions = self.start_companions_heard_by(&output)?;
        let outcome = self.run_beside((&companions, &output), &mut |_| {})?;
        self.end(outcome, companions)
    }

    /// Runs the VM to its end with companions that are there. `see` hears of what the guest says.
    pub(crate) fn run_beside(
        &self,
        (companions, output): (&[Companion], &Output),
        see: &mut dyn FnMut(&GuestReport),
    ) -> Result<Outcome> {
        self.follow(self.start_bootstrap()?, (companions, output), see)
    }

    /// The same of a bootstrap that was just started.
    pub(crate) fn follow(
        &self,
        mut bootstrap: RemoteProcess,
        (companions, output): (&[Companion], &Output),
        see: &mut dyn FnMut(&GuestReport),
    ) -> Result<Outcome> {
        let start = Instant::now();
        let mut outcome = self.watch((&mut bootstrap, companions), output, start, see)?;
        outcome.seconds = start.elapsed().as_secs_f64();
        Ok(outcome)
    }

    /// Ends the companions of a VM that is over, and judges it.
    pub(crate) fn end(&self, mut outcome: Outcome, companions: Vec<Companion>) -> Result<Outcome> {
        let well = outcome.exit.as_ref().is_ok_and(|exit| exit.success());
        finish(companions, well, &mut outcome.problems);
        outcome.report = self.read_report(&mut outcome.problems)?;
        outcome.judge((self.layout.slices(), self.layout.all()), self.options.strict());
        Ok(outcome)
    }

    /// Collects what the slices of this VM write.
    pub(crate) fn output(&self, loud: bool) -> Arc<Output> {
        Arc::new(Output::new(self.progress, loud))
    }

    /// The host of each slice, in order of the slices.
    pub(crate) fn hosts(&self) -> Vec<Host<'a>> {
        let mut hosts: Vec<_> = self.lab.hosts().take(self.layout.slices()).collect();
        if self.options.reversed {
            hosts.reverse();
        }
        hosts
    }

    /// The host of a slice.
    pub(crate) fn host(&self, slice: usize) -> Result<Host<'a>> {
        let host = self.hosts().get(self.joined.host(slice)).copied();
        host.with_context(|| format!("there is no slice {slice}"))
    }

    /// The slice of host 1, which has the devices of a Debian system, and that host.
    pub(crate) fn with_devices(&self) -> Result<(usize, Host<'a>)> {
        let first = HostNumber::new(1)?;
        let found = self.hosts().into_iter().enumerate().find(|of| of.1.number() == first);
        found.context("host 1 has a slice")
    }

    /// Starts the companions and waits until they listen. Nobody hears the guest if one of them comes to coordinate.
    pub(crate) fn start_companions(&self) -> Result<Vec<Companion>> {
        self.start_companions_heard_by(&self.output(false))
    }

    /// The same; `output` hears the guest then.
    pub(crate) fn start_companions_heard_by(&self, output: &Arc<Output>) -> Result<Vec<Companion>> {
        // A checkpoint is authenticated by the secret that its VM had.
        if self.options.restore.is_none() {
            self.put_secret()?;
        }
        let slices = 1..self.layout.slices();
        let companions = slices.map(|slice| self.start_companion(slice, output));
        let companions = companions.collect::<Result<_>>()?;
        self.hosts().iter().skip(1).try_for_each(wait_for_port)?;
        Ok(companions)
    }

    /// A companion on the host of a slice whose process has ended, which may join.
    pub(crate) fn start_newcomer(&self, slice: usize, output: &Arc<Output>) -> Result<Companion> {
        let companion = self.start_companion(slice, output)?;
        wait_for_port(&self.host(slice)?)?;
        Ok(companion)
    }

    fn start_companion(&self, slice: usize, output: &Arc<Output>) -> Result<Companion> {
        let (slices, host) = (self.layout.slices(), self.host(slice)?);
        let owner = self.prepared.distro.as_ref().map(|_| self.with_devices()).transpose()?;
        forget_report(&host)?;
        // A companion opens what it lends when it starts, so only a host with the devices can.
        let has_devices = slice >= slices - self.options.device_slices;
        let mut lend: Vec<_> = self.options.lend.iter().filter(|_| has_devices).cloned().collect();
        if owner.as_ref().is_some_and(|owner| owner.0 == slice) {
            lend.extend(distro::lent(&host, self.options.system_disk.as_deref())?);
        }
        self.start_companion_on(&host, lend, output)
    }

    /// A companion on a host that may have no slice.
    pub(crate) fn start_companion_on(
        &self,
        host: &Host<'_>,
        lend: Vec<String>,
        output: &Arc<Output>,
    ) -> Result<Companion> {
        let lend = lend.into_iter().flat_map(|what| ["--lend".to_owned(), what]);
        let words = [
            "--listen".to_owned(),
            listens_at(host),
            "--secret-file".to_owned(),
            inside(host, "vm.key")?,
            "--control".to_owned(),
            self.control(host.number()),
            "--report".to_owned(),
            inside(host, REPORT)?,
        ];
        let more = self.options.companion.iter().cloned();
        let words = self.role("companion")?.into_iter().chain(words).chain(lend).chain(more);
        let process = host.spawn(&Command::new(words))?;
        Ok(Companion::new(process, host.number(), self.progress, output, self.loud))
    }

    /// Starts the bootstrap slice.
    pub(crate) fn start_bootstrap(&self) -> Result<RemoteProcess> {
        self.start_bootstrap_through(&[])
    }

    /// The same with words before the command.
    pub(crate) fn start_bootstrap_through(&self, prefix: &[String]) -> Result<RemoteProcess> {
        let first = self.host(0)?;
        forget_report(&first)?;
        let command = Command::new([prefix, &self.arguments(&first)?].concat());
        if self.loud {
            self.progress.say(&format!("host {}: {command}", first.number()));
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

    /// Takes what the slices write until the VM is over.
    fn watch(
        &self,
        (bootstrap, companions): (&mut RemoteProcess, &[Companion]),
        output: &Output,
        start: Instant,
        see: &mut dyn FnMut(&GuestReport),
    ) -> Result<Outcome> {
        let until = start + Duration::from_secs(self.options.timeout()) + OVERTIME;
        let mut guest = GuestReport::default();
        let (mut boot_seconds, mut problems) = (None, Vec::new());
        let host = self.host(0)?.number();
        while !self.is_over(bootstrap, companions)? {
            if self.interrupted.is_set() {
                bail!("interrupted");
            }
            if Instant::now() > until {
                problems.push("tessera does not end at its time limit".to_owned());
                break;
            }
            match bootstrap.next_event(POLL) {
                Some(Event::Output(Stream::Out, bytes)) => output.serial(host, &bytes),
                Some(Event::Output(Stream::Error, bytes)) => output.bootstrap(host, &bytes),
                Some(Event::Exit(_) | Event::Lost(_)) => {}
                None => {
                    self.progress.say_if_quiet(QUIET, || waiting(&guest));
                    if bootstrap.is_over() {
                        thread::sleep(POLL);
                    }
                }
            }
            if let Some(news) = output.news() {
                boot_seconds.get_or_insert_with(|| start.elapsed().as_secs_f64());
                see(&news);
                guest = news;
            }
        }
        let exit = bootstrap.wait(Duration::ZERO);
        if exit.is_ok() {
            // One of them may have coordinated: its last lines may be on their way.
            companions.iter().for_each(Companion::settle);
        }
        guest = output.news().unwrap_or(guest);
        let tail = output.tail();
        let (report, seconds) = (None, 0.0);
        Ok(Outcome { guest, exit, report, boot_seconds, seconds, emptied: 0, problems, tail })
    }

    /// Whether the bootstrap has ended; if its slice has left, whether all others have too.
    fn is_over(&self, bootstrap: &RemoteProcess, companions: &[Companion]) -> Result<bool> {
        Ok(bootstrap.is_over()
            && (companions.iter().all(Companion::is_over) || !self.bootstrap_has_left()?))
    }

    /// Address of each slice's host, in order.
    pub(crate) fn addresses(&self) -> Vec<Ipv4Addr> {
        self.hosts().iter().map(Host::address).collect()
    }

    /// Memory of each slice in MiB.
    pub(crate) fn share(&self) -> u32 {
        self.options.share(self.layout.slices() - self.options.device_slices)
    }
}

/// Ends the companions of a VM that has ended, or has ended well.
pub(crate) fn finish(companions: Vec<Companion>, well: bool, problems: &mut Vec<String>) {
    for companion in companions {
        if well { companion.finish_well(problems) } else { companion.finish(problems) }
    }
}

fn waiting(guest: &GuestReport) -> String {
    match (guest.cpus_online, guest.tests.len()) {
        (None, _) => "the guest is starting".to_owned(),
        (Some(_), count) => format!("the guest's tests are running, {count} done"),
    }
}

/// Where the companion of a host listens.
pub(crate) fn listens_at(host: &Host<'_>) -> String {
    format!("{}:{PORT}", host.address())
}

/// Where a slice writes its report, as this machine sees it.
pub(super) fn report_of(host: &Host<'_>) -> Result<PathBuf> {
    Ok(host.job()?.join(REPORT))
}

/// A report of an earlier run must not be taken for this one's.
fn forget_report(host: &Host<'_>) -> Result<()> {
    drop(fs::remove_file(report_of(host)?));
    Ok(())
}

/// A path as a word of a command line.
pub(crate) fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()))
}

/// A file in the job folder of a host, as the host sees it.
pub(crate) fn inside(host: &Host<'_>, name: &str) -> Result<String> {
    text(&host.job_inside()?.join(name))
}
