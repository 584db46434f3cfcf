//! What `./x bench net` and `./x bench disk` have in common: Debian as one VM over two hosts, one vCPU
//! each, every device at the first host.
//!
//! ```text
//!   tessera, Debian ─> hosts, scratch disks ─> taps ─> VM up ─> measure ─> power off ─> Outcome written
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use lab::{Command, Disk, Host, HostNumber, Mode};
use outcome::{Conditions, Outcome};
use serde::Deserialize;

use crate::distro::guest::Guest;
use crate::distro::visit;
use crate::interrupt::Interrupted;
use crate::progress::Progress;
use crate::vm::VmOptions;
use crate::vm::attend::Attendant;
use crate::vm::distro;
use crate::vm::scenario::{self, Prepared, Scenario};
use crate::workspace;

/// Most seconds of the VM, boot and all, unless the options say.
const TIMEOUT: u64 = 14_400;
const LAYOUT: &str = "1+1";
/// For one look at the counters of a slice.
const COUNTER_LIMIT: Duration = Duration::from_secs(60);

/// vCPU of the first host, where the devices are.
pub(crate) const LOCAL_CPU: u16 = 0;
/// vCPU of the second host.
pub(crate) const REMOTE_CPU: u16 = 1;

/// Only what is bound to the remote CPU runs there: the guest's other programs stay on the first one, and
/// its scheduler does not look from one CPU at the other.
const ISOLATED: &str = "isolcpus=1";
const PRESET: &str = "isolate";
/// Ticks of emulated hosts: rarer than elsewhere, since each takes the clock's pages from the other CPU, for milliseconds
/// instead of the tenths of one that adapters and processors need. Not much rarer: with 200 ms to 1 s between them
/// answers of a web server took a second in some loads. It was not looked into; a guest's scheduler takes the CPU from
/// one program for another at ticks.
const TIMER_SPACING: [&str; 2] = ["--timer-spacing", "adaptive:300-600"];
/// How long pages are kept on emulated hosts: most that still travel are read by one CPU after the other has
/// written them once, and nobody gains by their being kept.
const HOLD: [&str; 2] = ["--hold", "20:1000"];

/// Options of the VM, as `./x demo` has them.
#[derive(Parser)]
#[command(no_binary_name = true, args_override_self = true, disable_help_flag = true)]
struct Wanted {
    #[command(flatten)]
    vm: VmOptions,
}

fn options(name: &str, words: &[String]) -> Result<VmOptions> {
    let own = ["--layout", LAYOUT, "--name"].map(str::to_owned).into_iter();
    let words = own.chain([format!("bench-{name}")]).chain(words.iter().cloned());
    let wanted = Wanted::try_parse_from(words).map_err(|error| {
        anyhow!("what stands after `--` goes to the VM, as in ./x demo: {error}")
    })?;
    let mut options = wanted.vm;
    options.timeout.get_or_insert(TIMEOUT);
    options.guest_preset.get_or_insert_with(|| PRESET.to_owned());
    options.cmdline = format!("{ISOLATED} {}", options.cmdline).trim_end().to_owned();
    let layout = options.layout()?.to_string();
    ensure!(layout == LAYOUT, "--layout {layout}: this experiment compares the vCPUs of {LAYOUT}");
    Ok(options)
}

/// A network device at the first host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tap {
    pub(crate) name: &'static str,
    /// The host's address with the length of its prefix.
    pub(crate) address: &'static str,
}

/// An experiment with devices.
#[derive(Debug)]
pub(crate) struct Experiment<'a> {
    pub(crate) name: &'a str,
    /// Bytes of each scratch disk.
    pub(crate) disks: &'a [u64],
    /// Most megabytes a second of each, on emulated hosts.
    pub(crate) disk_speed: Option<u32>,
    /// Taps beside that of every VM.
    pub(crate) taps: &'a [Tap],
}

/// A VM that runs, to be measured.
#[derive(Debug)]
pub(crate) struct Bed<'a> {
    pub(crate) guest: &'a Guest<'a>,
    pub(crate) scenario: &'a Scenario<'a>,
    pub(crate) progress: &'a Progress,
}

/// Counters of one slice.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Counters {
    /// The slice's process on its host.
    pub(crate) process: u32,
    pub(crate) memory: MemoryCounters,
}

/// What of them is looked at.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct MemoryCounters {
    pub(crate) device_pages: u64,
    pub(crate) device_page_moves: u64,
    pub(crate) device_frame_page_moves: u64,
    pub(crate) pages_in: u64,
    pub(crate) pages_out: u64,
}

impl Bed<'_> {
    pub(crate) fn host(&self, number: usize) -> Result<Host<'_>> {
        self.scenario.lab.host(HostNumber::new(number)?)
    }

    /// Fails when somebody wants the end.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.scenario.interrupted.is_set(), "interrupted");
        Ok(())
    }

    /// Counters of all slices, in order. The guest does not notice.
    pub(crate) fn counters(&self) -> Result<Vec<Counters>> {
        self.ask(&[])
    }

    /// The same, after all slices have forgotten which pages devices used so far.
    pub(crate) fn forget_device_pages(&self, device: u16) -> Result<Vec<Counters>> {
        self.ask(&["--forget-device-pages", "--of-device", &device.to_string()])
    }

    fn ask(&self, more: &[&str]) -> Result<Vec<Counters>> {
        let ask = |host: Host<'_>| {
            let program = self.scenario.program()?;
            let control = self.scenario.control(host.number());
            let words = [&program, "counters", "--control", &control];
            let words = words.into_iter().chain(more.iter().copied());
            let said = host.output(&Command::new(words), COUNTER_LIMIT).with_context(|| {
                format!("ask the slice on host {}; `tessera counters` must be known", host.number())
            })?;
            serde_json::from_str(&said).context("read the counters of a slice")
        };
        self.scenario.lab.hosts().map(ask).collect()
    }
}

/// Files that go when the experiment is over.
#[derive(Debug)]
struct Scratch(Vec<PathBuf>);

impl Scratch {
    /// Sparse files; what is written to them stays in the lab.
    fn make(name: &str, sizes: &[u64], folder: &Path) -> Result<Self> {
        let mut scratch = Self(Vec::new());
        for (number, bytes) in sizes.iter().enumerate() {
            let path = folder.join(format!("bench-{name}-{number}.raw"));
            scratch.0.push(path.clone());
            File::create(&path)
                .and_then(|file| file.set_len(*bytes))
                .with_context(|| format!("make {}", path.display()))?;
        }
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in &self.0 {
            // It takes no space worth a failure.
            drop(fs::remove_file(path));
        }
    }
}

/// What is measured in a VM that is up: a first sketch of the outcome goes in, with its conditions.
pub(crate) type Measure<'a> = &'a mut dyn FnMut(&Bed<'_>, &mut Outcome) -> Result<()>;

/// Brings the VM up, has it measured and writes what was found. `devices` gives the options of tessera
/// for the experiment's devices, from the paths of its disks on the host.
pub(crate) fn run(
    experiment: &Experiment<'_>,
    words: &[String],
    devices: &dyn Fn(&[String]) -> Vec<String>,
    measure: Measure<'_>,
) -> Result<ExitCode> {
    let progress = Arc::new(Progress::new());
    let interrupted = Interrupted::listen()?;
    let mut options = options(experiment.name, words)?;
    let layout = options.layout()?;
    let prepared = scenario::prepare_distro(&options, &progress)?;
    let distro = prepared.distro.as_ref().context("the system that was just built")?;
    let folder = workspace::target(&workspace::root()?).join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let scratch = Scratch::make(experiment.name, experiment.disks, &folder)?;
    let mut disks = distro::disks(distro, false)?;
    let host = HostNumber::new(1)?;
    let speed = experiment.disk_speed;
    disks.extend(scratch.0.iter().map(|path| Disk {
        host,
        image: path.clone(),
        keep: false,
        speed,
    }));
    let lab = Arc::new(scenario::hosts_with_disks(&options, &layout, disks, &progress)?);
    let seen = lab.host(host)?.state()?.disks;
    let paths: Option<Vec<_>> =
        seen.iter().skip(1).map(|path| path.to_str().map(str::to_owned)).collect();
    let paths = paths.context("a disk's path is not UTF-8")?;
    ensure!(paths.len() == experiment.disks.len(), "the host has {} scratch disks", paths.len());
    let mut devices = devices(&paths);
    if lab.mode() == Mode::Machines {
        for [name, value] in [TIMER_SPACING, HOLD] {
            if !options.bootstrap.iter().any(|word| word.starts_with(name)) {
                devices.extend([name.to_owned(), value.to_owned()]);
            }
        }
    }
    devices.append(&mut options.bootstrap);
    options.bootstrap = devices;
    for tap in experiment.taps {
        make_tap(&lab.host(host)?, *tap)?;
    }
    let attendant = Attendant::of(&lab, &interrupted);
    let scenario = Scenario {
        options: &options,
        layout: &layout,
        prepared: &prepared,
        lab: &lab,
        interrupts: None,
        progress: &progress,
        interrupted: &interrupted,
        loud: true,
    };
    let result = measured(experiment, &scenario, &prepared, measure);
    attendant.end();
    let (outcome, problems) = result?;
    let path = outcome.write(&folder)?;
    print!("\n{}", outcome.table());
    for problem in &problems {
        println!("problem: {problem}");
    }
    println!("written: {} and beside it", path.display());
    let good = problems.is_empty() && outcome.holds();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measured(
    experiment: &Experiment<'_>,
    scenario: &Scenario<'_>,
    prepared: &Prepared,
    measure: Measure<'_>,
) -> Result<(Outcome, Vec<String>)> {
    let distro = prepared.distro.as_ref().context("the system that was just built")?;
    let progress: &Progress = scenario.progress;
    let mut conditions = Conditions::now();
    conditions.notes.push(format!(
        "Debian over 2 hosts ({}), layout {LAYOUT}, {} MiB; every device at host 1; guest's kernel with \
         {}; tessera with {}",
        scenario.lab.substrate(),
        2 * scenario.share(),
        scenario.options.cmdline,
        scenario.options.bootstrap.join(" ")
    ));
    let mut outcome = Outcome {
        name: experiment.name.to_owned(),
        conditions,
        rows: Vec::new(),
        bars: Vec::new(),
        shown: String::new(),
    };
    let mut begun = false;
    let shown = visit::visit(scenario, distro, &mut |guest, _| {
        begun = true;
        guest.check_system()?;
        measure(&Bed { guest, scenario, progress }, &mut outcome)
    })?;
    if !begun || outcome.rows.is_empty() {
        bail!("nothing was measured: {}", shown.problems.join("\n"));
    }
    let mut problems = shown.problems;
    if outcome.bars.is_empty() {
        problems.push("no figure that a bar is about was measured".to_owned());
    }
    outcome.conditions.notes.extend(problems.iter().map(|problem| format!("problem: {problem}")));
    Ok((outcome, problems))
}

/// A tap beside the first one. Until the guest is told better it has the same address on both, and may
/// answer through either: the host takes that.
fn make_tap(host: &Host<'_>, tap: Tap) -> Result<()> {
    host.tap(tap.name, tap.address)?;
    let line = "for name in all default \"$1\"; do \
                echo 0 >/proc/sys/net/ipv4/conf/$name/rp_filter; done";
    let command = Command::new(["sh", "-c", line, "sh", tap.name]);
    host.output(&command, COUNTER_LIMIT).map(drop).context("let answers come by any way")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_of_the_vm_are_those_of_the_demo() {
        let found = options("net", &words("--name other --memory 768 -- --hold 1:2")).unwrap();

        assert_eq!((found.name.as_str(), found.share(2)), ("other", 384));
        assert_eq!(found.bootstrap, ["--hold", "1:2"]);
        assert_eq!(found.timeout(), TIMEOUT);
        assert_eq!(found.guest_preset.as_deref(), Some(PRESET));
    }

    #[test]
    fn other_layouts_and_unknown_options_are_refused() {
        assert!(options("net", &words("--layout 2+0")).is_err());
        assert!(options("net", &words("--layuot 1+1")).is_err());
    }
}
