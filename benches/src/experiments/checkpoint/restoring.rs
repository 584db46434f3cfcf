//! How long it takes to go on from a checkpoint until the guest does something, for each size of its memory: with all memory read
//! before, and with memory that comes while the guest runs.

use super::vm::Saved;
use super::{Plan, milliseconds, size};
use crate::samples::Samples;
use crate::telling_vm::Vm;
use anyhow::{Context, Result};
use outcome::{Bar, Outcome};
use std::fs;
use std::path::Path;

/// With the largest memory it may take so many times as long as with the smallest.
const BOUND: f64 = 1.5;

/// Measures both ways in turns, with checkpoints of each size.
///
/// # Errors
/// A VM or a checkpoint fails.
pub(super) fn run(guest: &Path, plan: Plan, folder: &Path, outcome: &mut Outcome) -> Result<()> {
    let mut medians: [Vec<f64>; 2] = Default::default();
    for bytes in plan.sizes {
        let name = size(*bytes);
        let vm = Saved::start(guest, (*bytes, None), folder).with_context(|| name.clone())?;
        vm.write(true)?;
        let checkpoint = vm.leave();
        let mut took: [Vec<f64>; 2] = Default::default();
        // The first of each is not counted.
        for turn in 0..=plan.turns {
            for lazy in if turn % 2 == 0 { [true, false] } else { [false, true] } {
                let (vm, time) = Vm::restore(&checkpoint, lazy).with_context(|| name.clone())?;
                drop(vm);
                if turn > 0 {
                    took[usize::from(lazy)].push(time.as_secs_f64() * 1e3);
                }
            }
        }
        fs::remove_dir_all(&checkpoint).context("remove a checkpoint")?;
        for ((what, times), medians) in ["eager", "lazy"].iter().zip(took).zip(&mut medians) {
            let samples = Samples::new(times);
            eprintln!("{name}: restored in {:.0} ms, {what}", samples.percentile(50));
            medians.push(samples.percentile(50));
            let what = format!("{name}: restore until the first instruction, {what}");
            outcome.rows.push(milliseconds(what, &samples));
        }
    }
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
