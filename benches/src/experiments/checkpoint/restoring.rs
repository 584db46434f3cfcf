//! How long it takes to go on from a checkpoint until the guest does something, for each size of its memory: with all memory read
//! before, and with memory that comes while the guest runs.

use super::vm::Saved;
use super::{Plan, milliseconds, size};
use crate::samples::Samples;
use crate::telling_vm::Vm;
use anyhow::{Context, Result, ensure};
use outcome::{Bar, Outcome};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

/// With the largest memory it may take so many times as long as with the smallest.
const BOUND: f64 = 1.5;

/// Goes on from a checkpoint; how long it took until the guest did something.
///
/// # Errors
/// The VM does not go on.
pub fn one(checkpoint: &Path, lazy: bool) -> Result<Duration> {
    Vm::restore(checkpoint, lazy).map(|(_, took)| took)
}

/// The same in a process of its own, as VMs are: a VM that has ended keeps its memory until its process ends.
fn in_process(guest: &Path, checkpoint: &Path, lazy: bool) -> Result<Duration> {
    let mut program = Command::new(env::current_exe().context("this program's file")?);
    program.arg("checkpoint").arg("--image").arg(guest).args(["--out", "/", "--restored"]);
    program.arg(checkpoint).args(lazy.then_some("--lazy")).stderr(Stdio::inherit());
    let output = program.output().context("start this program once more")?;
    ensure!(output.status.success(), "a VM that goes on has failed: {}", output.status);
    let took = String::from_utf8(output.stdout)?.trim().parse().context("a time")?;
    Ok(Duration::from_nanos(took))
}

/// A checkpoint, and how many milliseconds a VM took to go on from it: eager, and lazy.
struct Turns {
    name: String,
    checkpoint: PathBuf,
    took: [Vec<f64>; 2],
}

impl Turns {
    /// Writes a checkpoint of a VM with so much memory.
    fn new(guest: &Path, bytes: u64, folder: &Path) -> Result<Self> {
        let name = size(bytes);
        let own = folder.join(&name);
        fs::create_dir(&own).with_context(|| format!("make {}", own.display()))?;
        let vm = Saved::start(guest, (bytes, None), &own).with_context(|| name.clone())?;
        vm.write(true)?;
        Ok(Self { name, checkpoint: vm.leave(), took: Default::default() })
    }

    fn tell(self, medians: &mut [Vec<f64>; 2], outcome: &mut Outcome) {
        let name = self.name;
        for ((what, times), medians) in ["eager", "lazy"].iter().zip(self.took).zip(medians) {
            let samples = Samples::new(times);
            eprintln!("{name}: restored in {:.0} ms, {what}", samples.percentile(50));
            medians.push(samples.percentile(50));
            let what = format!("{name}: restore until the first instruction, {what}");
            outcome.rows.push(milliseconds(what, &samples));
        }
    }
}

/// Measures both ways with checkpoints of each size, in turns.
///
/// # Errors
/// A VM or a checkpoint fails.
pub(super) fn run(guest: &Path, plan: Plan, folder: &Path, outcome: &mut Outcome) -> Result<()> {
    let all = plan.sizes.iter().map(|bytes| Turns::new(guest, *bytes, folder));
    let mut all = all.collect::<Result<Vec<_>>>()?;
    // The first of each is not counted.
    for turn in 0..=plan.turns {
        for lazy in if turn % 2 == 0 { [true, false] } else { [false, true] } {
            for Turns { name, checkpoint, took } in &mut all {
                let time = in_process(guest, checkpoint, lazy).with_context(|| name.clone())?;
                if turn > 0 {
                    took[usize::from(lazy)].push(time.as_secs_f64() * 1e3);
                }
            }
        }
    }
    let mut medians: [Vec<f64>; 2] = Default::default();
    all.into_iter().for_each(|turns| turns.tell(&mut medians, outcome));
    let [eager, lazy] = medians.map(Samples::new);
    let ratio = |of: &Samples| of.percentile(100) / of.percentile(0);
    outcome.conditions.notes.push(format!(
        "restore: one slice; until the guest answers its power button; eager, largest / smallest of all sizes: {:.1}",
        ratio(&eager)
    ));
    let what = "restore until the first instruction, lazy: largest / smallest of all sizes".into();
    outcome.bars.push(Bar { what, found: ratio(&lazy), bound: BOUND, at_most: true });
    Ok(())
}
