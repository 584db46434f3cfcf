//! A checkpoint of a VM on two slices beside one of a VM on one slice with no memory engine.

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
    let mut took: [Vec<f64>; 3] = Default::default();
    for round in 0..plan.turns {
        for what in [[0, 1, 2], [2, 0, 1], [1, 2, 0]][round % 3] {
            let (vm, stop) = [(&one, true), (&two, true), (&two, false)][what];
            took[what].push(turn(vm, stop)?.took_ms);
        }
    }
    // What their guests have noted is not asked for.
    for vm in [two, one] {
        vm.resume()?;
        drop(vm);
    }
    let name = size(plan.bytes);
    let [plain, stopped, live] = took;
    for (what, took) in [
        ("one slice, --stop", &plain),
        ("two slices, --stop", &stopped),
        ("two slices, live", &live),
    ] {
        outcome.rows.push(milliseconds(format!("{name}: {what}"), &Samples::new(took.clone())));
    }
    for (what, of) in [("--stop", &stopped), ("live", &live)] {
        let what = format!("{name}: time of a checkpoint, two slices, {what} / one slice, --stop");
        let found = median(ratios(of, &plain));
        outcome.bars.push(Bar { what, found, bound: BOUND, at_most: true });
    }
    Ok(())
}
