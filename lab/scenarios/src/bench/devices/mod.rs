//! What `./x bench net` and `./x bench disk` have in common: Debian as one VM over two hosts, one vCPU
//! each, every device at the first host.
//!
//! ```text
//!   tessera, Debian ─> hosts, scratch disks ─> taps ─> VM up ─> measure ─> power off ─> Outcome written
//! ```

mod counters;
mod scratch;
mod setup;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::distro::System;
use lab::{Command, Host, HostNumber, Lab, Mode};
use outcome::Outcome;

use crate::bench::rig::{self, LAYOUT, Rig};
use crate::distro::visit;
use crate::vm::prepare::{self, Prepared};
use crate::vm::scenario::Scenario;
use crate::vm::{VmOptions, distro};
use crate::workspace;

pub(crate) use counters::Counters;
use scratch::Scratch;
pub(crate) use setup::{LOCAL_CPU, REMOTE_CPU, Setup};

/// Most seconds of the VM, boot and all, unless the options say.
const TIMEOUT: u64 = 14_400;
/// For a tap's settings.
const TAP_LIMIT: Duration = Duration::from_secs(60);

/// Only what is bound to the remote CPU runs there: the guest's other programs stay on the first one, and
/// its scheduler does not look from one CPU at the other.
const ISOLATED: &str = "isolcpus=1";
const PRESET: &str = "isolate";
/// Ticks of emulated hosts: rarer than elsewhere, since each takes the clock's pages from the other CPU, for milliseconds
/// instead of the tenths of one that adapters and processors need. Not much rarer: with 200 ms to 1 s between them
/// answers of a web server took a second in some loads. It was not looked into; a guest's scheduler takes the CPU from
/// one program for another at ticks.
const TIMER_SPACING: [&str; 2] = ["--timer-spacing", "adaptive:300-600/4"];
/// How long pages are kept on emulated hosts: most that still travel are read by one CPU after the other has
/// written them once, and nobody gains by their being kept.
const HOLD: [&str; 2] = ["--hold", "20:1000"];

/// Options of the VM of such an experiment.
fn options(name: &str, words: &[String]) -> Result<VmOptions> {
    let mut options = rig::vm_options(name, &[], words)?;
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

/// What is measured in a VM that is up: a first sketch of the outcome goes in, with its conditions.
pub(crate) type Measure<'a> = &'a mut dyn FnMut(&Setup<'_>, &mut Outcome) -> Result<()>;

/// Brings the VM up, has it measured and writes what was found. `devices` gives the options of tessera
/// for the experiment's devices, from the paths of its disks on the host.
pub(crate) fn run(
    experiment: &Experiment<'_>,
    words: &[String],
    devices: &dyn Fn(&[String]) -> Vec<String>,
    measure: Measure<'_>,
) -> Result<ExitCode> {
    let rig = Rig::new()?;
    let mut options = options(experiment.name, words)?;
    let prepared = prepare::prepare_distro(System::Base, &options, &rig.progress)?;
    let distro = prepared.distro.as_ref().context("the system that was just built")?;
    let folder = workspace::target(&workspace::root()?).join("bench");
    let scratch = Scratch::make(experiment.name, experiment.disks, &folder)?;
    let mut disks = distro::disks(distro, false)?;
    disks.extend(scratch.disks(HostNumber::new(1)?, experiment.disk_speed));
    let lab = prepare::hosts_with_disks(&options, &options.layout()?, disks, &rig.progress)?;
    let mut devices = devices(&scratch_disks(&lab, experiment.disks.len())?);
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
        make_tap(&lab.host(HostNumber::new(1)?)?, *tap)?;
    }
    let (outcome, problems) =
        rig.on(lab, |lab| measured(experiment, &options, &prepared, lab, &rig, measure))?;
    rig::tell(&outcome, &problems, Ok(()))
}

/// Paths of the scratch disks on the first host, beside that of the system.
fn scratch_disks(lab: &Lab, count: usize) -> Result<Vec<String>> {
    let seen = lab.host(HostNumber::new(1)?)?.state()?.disks;
    let paths: Option<Vec<_>> =
        seen.iter().skip(1).map(|path| path.to_str().map(str::to_owned)).collect();
    let paths = paths.context("a disk's path is not UTF-8")?;
    ensure!(paths.len() == count, "the host has {} scratch disks", paths.len());
    Ok(paths)
}

fn measured(
    experiment: &Experiment<'_>,
    options: &VmOptions,
    prepared: &Prepared,
    lab: &Lab,
    rig: &Rig,
    measure: Measure<'_>,
) -> Result<(Outcome, Vec<String>)> {
    let layout = options.layout()?;
    let scenario = Scenario { loud: true, ..rig.scenario(options, &layout, prepared, lab) };
    let distro = prepared.distro.as_ref().context("the system that was just built")?;
    let mut outcome = Outcome::new(experiment.name);
    outcome.conditions.notes.push(format!(
        "Debian over 2 hosts ({}), layout {LAYOUT}, {} MiB; every device at host 1; guest's kernel with \
         {}; tessera with {}",
        lab.substrate(),
        2 * scenario.share(),
        options.cmdline,
        options.bootstrap.join(" ")
    ));
    let mut begun = false;
    let shown = visit::visit(&scenario, distro, &mut |guest, _| {
        begun = true;
        guest.check_system()?;
        measure(&Setup { guest, scenario: &scenario, rig }, &mut outcome)
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
    host.output(&command, TAP_LIMIT).map(drop).context("let answers come by any way")
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
