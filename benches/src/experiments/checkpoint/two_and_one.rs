//! A checkpoint of a VM on two slices beside one of a VM on one slice, each way beside the same way: a guest that runs on takes the
//! processors that write its memory, on one slice as on two.

use super::vm::{Saved, Written};
use super::{Plan, milliseconds, size};
use crate::real_vm::Companion;
use crate::samples::{Samples, median, ratios};
use anyhow::Result;
use outcome::{Bar, Outcome};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// Two slices may take so many times as long.
const BOUND: f64 = 1.1;
/// A VM runs so long before its checkpoint.
const RUNS: Duration = Duration::from_millis(100);

/// Measures both in turns, while the other one is paused.
///
/// # Errors
/// A VM or a checkpoint fails.
pub(super) fn run(
    guest: &Path,
    (plan, companion): (Plan, Companion),
    folder: &Path,
    outcome: &mut Outcome,
) -> Result<()> {
    let two = Saved::start(guest, (plan.bytes, Some(companion)), folder)?;
    two.pause()?;
    let one = Saved::start(guest, (plan.bytes, None), folder)?;
    one.pause()?;
    let turn = |vm: &Saved, stop: bool| -> Result<Written> {
        vm.resume()?;
        sleep(RUNS);
        let written = vm.write(stop)?;
        vm.forget()?;
        vm.pause()?;
        Ok(written)
    };
    // The first of each.
    turn(&two, true)?;
    turn(&one, true)?;
    let ways = [(&one, true), (&two, true), (&one, false), (&two, false)];
    let mut took: [Vec<f64>; 4] = Default::default();
    for round in 0..plan.turns {
        for what in (0..ways.len()).map(|at| (at + round) % ways.len()) {
            let (vm, stop) = ways[what];
            took[what].push(turn(vm, stop)?.took_ms);
        }
    }
    // What their guests have noted is not asked for.
    for vm in [two, one] {
        vm.resume()?;
        drop(vm);
    }
    let name = size(plan.bytes);
    let names = ["one slice, --stop", "two slices, --stop", "one slice, live", "two slices, live"];
    for (what, took) in names.iter().zip(&took) {
        outcome.rows.push(milliseconds(format!("{name}: {what}"), &Samples::new(took.clone())));
    }
    let [one_stopped, two_stopped, one_live, two_live] = took;
    for (what, two, one) in [("--stop", &two_stopped, &one_stopped), ("live", &two_live, &one_live)]
    {
        let what = format!("{name}: time of a checkpoint, {what}, two slices / one slice");
        let found = median(ratios(two, one));
        outcome.bars.push(Bar { what, found, bound: BOUND, at_most: true });
    }
    Ok(())
}
