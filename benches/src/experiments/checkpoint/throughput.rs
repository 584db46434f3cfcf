//! How fast a checkpoint is written to a disk, beside a stream of as many bytes to the same folder.

use super::vm::Saved;
use super::{Plan, float, size};
use crate::real_vm::Companion;
use crate::samples::{Samples, median, ratios};
use anyhow::{Context, Result};
use outcome::{Bar, Outcome, Row};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// As much of the stream's rate a checkpoint must have.
const BOUND: f64 = 0.8;
const BLOCK: usize = 1 << 20;

/// Measures the rates in turns.
///
/// # Errors
/// The VM, a checkpoint or the disk fails.
pub(super) fn run(
    guest: &Path,
    (plan, companion): (Plan, Companion),
    folder: &Path,
    outcome: &mut Outcome,
) -> Result<()> {
    let vm = Saved::start(guest, (plan.bytes, Some(companion)), folder)?;
    let first = vm.write(false)?;
    vm.forget()?;
    let mut rates: [Vec<f64>; 3] = Default::default();
    for turn in 0..plan.turns {
        let order = [[0, 1, 2], [2, 0, 1], [1, 2, 0]][turn % 3];
        for what in order {
            rates[what].push(match what {
                0 => stream(folder, first.bytes)?,
                _ => {
                    let rate = vm.write(what == 2)?.rate();
                    vm.forget()?;
                    rate
                }
            });
        }
    }
    // What its guest has noted is not asked for.
    drop(vm);
    let name = size(plan.bytes);
    let [raw, live, stopped] = &rates;
    for (what, rates) in [("raw stream, fsync", raw), ("live", live), ("--stop", stopped)] {
        let samples = Samples::new(rates.clone());
        let figures = [("MB/s", 50), ("least MB/s", 0), ("most MB/s", 100)];
        let figures = figures.map(|(column, at)| (column.to_owned(), samples.percentile(at)));
        outcome.rows.push(Row { name: format!("{name}, disk: {what}"), figures: figures.to_vec() });
    }
    for (what, of) in [("live", live), ("--stop", stopped)] {
        let what = format!("{name}: bytes per second of a checkpoint, {what} / raw stream");
        let found = median(ratios(of, raw));
        outcome.bars.push(Bar { what, found, bound: BOUND, at_most: false });
    }
    Ok(())
}

/// Writes so many bytes one after the other, and waits until they are on the disk; megabytes in a second.
fn stream(folder: &Path, bytes: u64) -> Result<f64> {
    let path = folder.join("raw");
    let block: Vec<u8> = (0..=u8::MAX).cycle().take(BLOCK).collect();
    let start = Instant::now();
    let mut file = File::create(&path).with_context(|| format!("make {}", path.display()))?;
    let mut left = usize::try_from(bytes)?;
    while left > 0 {
        let some = left.min(BLOCK);
        file.write_all(&block[..some])?;
        left -= some;
    }
    file.sync_all()?;
    let took = start.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(float(bytes) / took / 1e6)
}
