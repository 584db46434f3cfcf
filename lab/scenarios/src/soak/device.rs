//! `./x soak device-slice`: the slice with the guest's disks, and nothing else, dies while both vCPUs write.
//!
//! ```text
//!   host 1: vCPU 0    host 2: vCPU 1    host 3: disks (no vCPU, no memory)
//!   both write ─> host 3's slice killed ─> an I/O error for each writer ─> the guest powers off by itself
//! ```

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lab::HostNumber;
use serde_json::Value;

use crate::soak::disks::{Disks, Images, WRITERS, Writing};
use crate::soak::moments::random;
use crate::soak::rig::{Rig, RigOptions, exit};
use crate::vm::VmOptions;
use crate::vm::scenario::Scenario;

const LAYOUT: &str = "1+1+0";
/// Number of the slice with the disks.
const VICTIM: usize = 2;
/// From the loss to the guest's own end.
const END_LIMIT: Duration = Duration::from_secs(300);

/// What `./x soak device-slice` takes.
#[derive(Args, Debug)]
pub struct DeviceOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// How often
    #[arg(long, default_value_t = 1)]
    tries: u32,
    /// Latest moment of the kill, in seconds after every writer has flushed something
    #[arg(long, default_value_t = 10)]
    within: u64,
    #[command(flatten)]
    rig: RigOptions,
}

/// Kills the slice as often as wanted.
///
/// # Errors
/// Something that is needed is missing, or somebody interrupts; a bad end is no error.
pub fn run(options: &DeviceOptions) -> Result<ExitCode> {
    let mut vm = options.vm.clone();
    vm.layout.get_or_insert(LAYOUT.parse()?);
    vm.device_slices = 1;
    let rig = Rig::new(&vm, options.rig, |layout| {
        ensure!(layout.to_string() == LAYOUT, "--layout {layout}: this is about {LAYOUT}");
        Ok(())
    })?;
    let images = Images::make(&vm.name, None)?;
    let host = HostNumber::new(VICTIM + 1)?;
    let lab = rig.hosts(&vm, images.disks(host))?;
    let disks = Disks::of(&lab.host(host)?)?;
    vm.lend = disks.lent();
    vm.bootstrap = [disks.devices(&lab, VICTIM)?, vm.bootstrap].concat();
    let line = vm.cmdline.clone();
    let mut good = 0;
    for number in 1..=options.tries {
        vm.cmdline = format!("tessera.disks={number} {line}");
        let moment = Duration::from_millis(random(options.within * 1000));
        let result = one(&rig.scenario(&vm, &lab), moment);
        rig.check()?;
        let verdict = match result {
            Ok(said) => {
                good += 1;
                format!("good ({said})")
            }
            Err(error) => format!("BAD: {error:#}"),
        };
        rig.say(&format!("try {number} of {}: {verdict}", options.tries));
    }
    drop(lab);
    println!("{good} of {} losses of the disks' slice were errors and nothing else", options.tries);
    Ok(exit(good == options.tries))
}

fn one(scenario: &Scenario<'_>, moment: Duration) -> Result<String> {
    let companions = scenario.start_companions()?;
    let mut vm = Writing::start(scenario, true, moment)?;
    ensure!(vm.errors.is_empty(), "before the kill: {}", vm.errors.join("; "));
    let told = vm.told()?;
    companions.get(VICTIM - 1).context("the victim exists")?.kill()?;
    let killed = Instant::now();
    let mut told_after = None;
    while !vm.bootstrap.is_over() && killed.elapsed() < END_LIMIT {
        vm.listen()?;
        if vm.errors.len() == WRITERS {
            told_after.get_or_insert_with(|| killed.elapsed());
        }
    }
    let over = vm.bootstrap.is_over();
    if !over {
        vm.bootstrap.kill()?;
    }
    let (exit, mut problems) = (vm.bootstrap.wait(Duration::from_secs(30)), Vec::new());
    companions.into_iter().for_each(|companion| companion.finish(&mut problems));
    ensure!(over, "the VM hangs; errors so far: {:?}; {}", vm.errors, vm.words.join("; "));
    judge_errors(&vm.errors)?;
    let exit = exit?;
    ensure!(exit.success(), "tessera ended with {exit}: {}", vm.words.join("; "));
    let report = scenario.read_report(&mut problems)?.unwrap_or_default();
    judge_report(&report)?;
    ensure!(problems.is_empty(), "{}", problems.join("; "));
    let after = told_after.unwrap_or_default().as_secs_f64();
    Ok(format!("before: {told}; errors on both vCPUs after {after:.1} s: {}", vm.errors.join("; ")))
}

/// Every writer failed by an I/O error, or because its file system is read-only after one.
fn judge_errors(errors: &[String]) -> Result<()> {
    for writer in 0..WRITERS {
        let begins = format!("DISK error {writer} ");
        let line = errors.iter().find(|line| line.starts_with(&begins));
        let line = line.with_context(|| format!("writer {writer} saw no error: {errors:?}"))?;
        // The guest's kernel may go on with the line.
        let right = ["(os error 5)", "(os error 30)"].iter().any(|error| line.contains(error));
        ensure!(right, "writer {writer} did not see an I/O error: {line}");
    }
    Ok(())
}

/// The report names the slice, and that the guest ended by itself.
fn judge_report(report: &Value) -> Result<()> {
    let lost = report.get("lost_devices").and_then(Value::as_array);
    let lost: Vec<_> =
        lost.into_iter().flatten().filter_map(|one| one.get("slice")?.as_u64()).collect();
    ensure!(lost == [VICTIM as u64], "the report names the lost slices {lost:?}, not [{VICTIM}]");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn errors(lines: [&str; 2]) -> Vec<String> {
        lines.map(str::to_owned).to_vec()
    }

    #[test]
    fn only_io_errors_of_both_writers_are_good() {
        let one = "DISK error 0 flush the raw disk: Input/output error (os error 5)";
        let two = "DISK error 1 files: Read-only file system (os error 30)";
        assert!(judge_errors(&errors([two, one])).is_ok());
        let interrupted = format!("{one}[    5.007012] EXT4-fs (vdb): failed (error -5)");
        assert!(judge_errors(&errors([two, &interrupted])).is_ok());
        assert!(judge_errors(&errors([one, one])).is_err());
        let wrong = "DISK error 1 wrong data: None stands where record 4 was";
        assert!(judge_errors(&errors([one, wrong])).is_err());
    }

    #[test]
    fn report_must_name_the_slice() {
        assert!(judge_report(&json!({ "lost_devices": [{ "slice": 2, "cause": "x" }] })).is_ok());
        assert!(judge_report(&json!({ "lost_devices": [] })).is_err());
        assert!(judge_report(&json!({})).is_err());
    }
}
