//! What `soak guest-kill`, `soak device-slice` and `soak chaos` have in common: disks for the guest's writers, the console
//! on which they tell what is flushed, and the lines that they write there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use guest_tests::records::REGION_BYTES;
use lab::{Disk, Host, HostNumber, Lab, RemoteProcess, Stream};

use crate::judge::fio_verify;
use crate::judge::last::Last;
use crate::progress::printable;
use crate::vm::scenario::{Scenario, inside};
use crate::workspace;

/// Writers, one for each vCPU.
pub(crate) const WRITERS: usize = 2;
const FILES_BYTES: u64 = 96 << 20;
/// The system's disk among those of the guest.
const SYSTEM: usize = 2;
const POLL: Duration = Duration::from_millis(50);
/// Name of the console's file in the job folder of host 1.
const CONSOLE: &str = "hvc0.txt";

/// Images that go when the scenario is over. What is written to them stays in the lab.
#[derive(Debug)]
pub(crate) struct Images {
    /// A raw disk, one with a file system, and with a system also one for fio.
    own: Vec<PathBuf>,
    system: Option<PathBuf>,
}

impl Images {
    /// For the writers; and for fio when there is a `system` that has it.
    pub(crate) fn make(name: &str, system: Option<&Path>) -> Result<Self> {
        let folder = workspace::target(&workspace::root()?).join("soak");
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        let path = |kind: &str| folder.join(format!("{name}.{kind}"));
        let mut images =
            Self { own: vec![path("raw"), path("ext4")], system: system.map(Path::to_owned) };
        for (path, bytes) in images.own.iter().zip([(WRITERS * REGION_BYTES) as u64, FILES_BYTES]) {
            File::create(path)
                .and_then(|file| file.set_len(bytes))
                .with_context(|| format!("make {}", path.display()))?;
        }
        let status = Process::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4"])
            .arg(&images.own[1])
            .status()
            .context("start mke2fs (package e2fsprogs)")?;
        ensure!(status.success(), "mke2fs ended with {status}");
        if system.is_some() {
            images.own.push(path("fio"));
            fio_verify::fill(&images.own[2])?;
        }
        Ok(images)
    }

    /// As disks of a host, in the order in which the guest sees them.
    pub(crate) fn disks(&self, host: HostNumber) -> Vec<Disk> {
        let mut all = self.own.clone();
        all.splice(2..2, self.system.clone());
        let disk = |image| Disk { host, image, keep: false, speed: None };
        all.into_iter().map(disk).collect()
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        for path in &self.own {
            // They take no space worth a failure.
            drop(fs::remove_file(path));
        }
    }
}

/// The disks as a host sees them.
#[derive(Clone, Debug)]
pub(crate) struct Disks {
    pub(crate) raw: String,
    pub(crate) files: String,
    /// A system's disk, which is only read, and fio's.
    pub(crate) fio: Option<[String; 2]>,
}

impl Disks {
    /// Those of a host.
    pub(crate) fn of(host: &Host<'_>) -> Result<Self> {
        let disks = host.state()?.disks;
        let paths: Vec<_> =
            disks.iter().filter_map(|path| path.to_str()).map(str::to_owned).collect();
        let (raw, files, fio) = match &paths[..] {
            [raw, files] => (raw, files, None),
            [raw, files, system, fio] => (raw, files, Some([system.clone(), fio.clone()])),
            _ => bail!("the host has {} disks", paths.len()),
        };
        Ok(Self { raw: raw.clone(), files: files.clone(), fio })
    }

    /// All, in the order in which the guest sees them.
    pub(crate) fn all(&self) -> Vec<String> {
        let fio = self.fio.iter().flatten();
        [&self.raw, &self.files].into_iter().chain(fio).cloned().collect()
    }

    /// How a companion lends them.
    pub(crate) fn lent(&self) -> Vec<String> {
        let mode = |number| if number == SYSTEM { "ro" } else { "rw" };
        let all = self.all().into_iter().enumerate();
        all.map(|(number, path)| format!("disk:{}:{path}", mode(number))).collect()
    }

    /// Options of `tessera bootstrap` for them on a slice, and for the console.
    pub(crate) fn devices(&self, lab: &Lab, slice: usize) -> Result<Vec<String>> {
        let first = lab.host(HostNumber::new(1)?)?;
        let mut words = Vec::new();
        for (number, disk) in self.all().iter().enumerate() {
            let access = if number == SYSTEM { ",readonly" } else { "" };
            words.extend(["--disk".to_owned(), format!("{disk}{access},slice={slice}")]);
        }
        words.extend(["--console".to_owned(), format!("file={}", inside(&first, CONSOLE)?)]);
        Ok(words)
    }
}

/// What the writers have told.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// By writer: the last record that was flushed on the raw disk.
    pub(crate) records: [Last; WRITERS],
    /// By writer: the last record that was synced in files.
    pub(crate) files: [Last; WRITERS],
}

impl Told {
    /// Reads the console; a last line without its end does not count.
    pub(crate) fn read(text: &str) -> Self {
        let mut told = Self::default();
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        for line in lines {
            let words: Vec<_> = line.split_whitespace().collect();
            let ["DISK", what @ ("ack" | "file"), writer, number] = words[..] else { continue };
            let (Ok(writer), Ok(number)) = (writer.parse::<usize>(), number.parse()) else {
                continue;
            };
            let lasts = if what == "ack" { &mut told.records } else { &mut told.files };
            if let Some(last) = lasts.get_mut(writer) {
                *last = Last(Some(number));
            }
        }
        told
    }

    /// True when every writer has told something.
    pub(crate) fn all(&self) -> bool {
        self.records.iter().chain(&self.files).all(|last| last.0.is_some())
    }
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [one, two] = self.records;
        let [three, four] = self.files;
        write!(f, "records {one},{two}, files {three},{four}")
    }
}

/// A VM whose guest writes.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    pub(crate) scenario: &'a Scenario<'a>,
    pub(crate) bootstrap: RemoteProcess,
    /// Failures that writers told of, and everything that tessera itself said.
    pub(crate) errors: Vec<String>,
    pub(crate) words: Vec<String>,
    /// What the guest told of a network that stands still.
    pub(crate) network: Vec<String>,
    started: bool,
}

impl<'a> Writing<'a> {
    /// Starts the bootstrap slice with an empty console and waits until the guest's writers work, or until
    /// all have `told` of something; and for a `moment` more.
    pub(crate) fn start(scenario: &'a Scenario<'a>, told: bool, moment: Duration) -> Result<Self> {
        Self::start_through(scenario, &[], told, moment)
    }

    /// The same with words before the command that starts the bootstrap slice.
    pub(crate) fn start_through(
        scenario: &'a Scenario<'a>,
        prefix: &[String],
        told: bool,
        moment: Duration,
    ) -> Result<Self> {
        let until = Instant::now() + Duration::from_secs(scenario.options.timeout());
        let mut vm = Self::begin(scenario, prefix)?;
        vm.wait(until, told)?;
        let end = Instant::now() + moment;
        while Instant::now() < end {
            vm.listen()?;
        }
        Ok(vm)
    }

    /// Starts the bootstrap slice with an empty console, and waits for nothing.
    pub(crate) fn begin(scenario: &'a Scenario<'a>, prefix: &[String]) -> Result<Self> {
        drop(fs::remove_file(console(scenario)?));
        let bootstrap = scenario.start_bootstrap_through(prefix)?;
        let (errors, words, network) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { scenario, bootstrap, errors, words, network, started: false })
    }

    /// Takes what it says, for a moment.
    pub(crate) fn listen(&mut self) -> Result<()> {
        if self.scenario.interrupted.is_set() {
            bail!("interrupted");
        }
        let Some(line) = self.bootstrap.next_line(POLL) else { return Ok(()) };
        let text = printable(&line.text);
        if self.scenario.loud {
            self.scenario.progress.say(&format!("host 1: {text}"));
        }
        if line.stream == Stream::Error {
            self.words.push(text);
        } else if text.starts_with("GUEST disks") {
            self.started = true;
        } else if text.starts_with("DISK error") {
            self.errors.push(text);
        } else if text.starts_with("NET") {
            self.network.push(text);
        }
        Ok(())
    }

    /// Waits until the guest's writers work.
    fn wait(&mut self, until: Instant, told: bool) -> Result<()> {
        while !self.started || told && !self.told()?.all() {
            ensure!(!self.bootstrap.is_over(), "the VM ended early: {}", self.words.join("; "));
            ensure!(Instant::now() < until, "the guest's writers do not start");
            ensure!(self.errors.is_empty(), "{}", self.errors.join("; "));
            self.listen()?;
        }
        Ok(())
    }

    /// What the writers have told so far.
    pub(crate) fn told(&self) -> Result<Told> {
        let bytes = fs::read(console(self.scenario)?).unwrap_or_default();
        Ok(Told::read(&String::from_utf8_lossy(&bytes)))
    }

    /// Waits until the process is over.
    pub(crate) fn wait_over(&mut self, limit: Duration) -> Result<bool> {
        let until = Instant::now() + limit;
        while !self.bootstrap.is_over() && Instant::now() < until {
            self.listen()?;
            thread::yield_now();
        }
        Ok(self.bootstrap.is_over())
    }
}

fn console(scenario: &Scenario<'_>) -> Result<PathBuf> {
    Ok(scenario.lab.host(HostNumber::new(1)?)?.job()?.join(CONSOLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn console_with_a_cut_line_gives_the_last_whole_ones() {
        let told =
            Told::read("noise\r\nDISK ack 0 7\r\nDISK file 1 0\r\nDISK ack 0 15\r\nDISK ack 1 2");
        assert_eq!(told.records, [Last(Some(15)), Last(None)]);
        assert_eq!(told.files, [Last(None), Last(Some(0))]);
        assert!(!told.all());
    }

    proptest! {
        #[test]
        fn any_console_is_read(text in "(DISK (ack|file) [0-9]{0,3} [0-9]{0,25}\n|.{0,20}){0,8}") {
            let _ = Told::read(&text);
        }
    }
}
