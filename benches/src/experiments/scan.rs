//! Reading memory that is homed on another slice: in order against a raw stream over the same
//! transport, and scattered.

use super::{CORES, Setting, cycles_per_ns};
use crate::carrier::Carrier;
use crate::cluster::Cluster;
use crate::crew::Done;
use crate::native::Native;
use crate::outcome::{Bar, Conditions, Outcome, Row};
use crate::raw::stream;
use crate::samples::median;
use anyhow::{Result, ensure};
use microguest::layout::SHARED;
use microguest::{Job, Kind};

/// Share of the raw stream's bandwidth that reading in order must reach.
const BOUND: f64 = 0.8;
const PAGE: f64 = 4096.0;

/// Runs the experiment.
///
/// # Errors
/// This machine has no KVM or userfaultfd, or a guest failed.
pub fn run(setting: Setting<'_>) -> Result<Outcome> {
    let (pages, rounds): (u64, u64) = if setting.quick { (4096, 1) } else { (1 << 16, 3) };
    let mut conditions = Conditions::now();
    conditions.notes.push(format!(
        "{} MiB of slice 1, written there, read by slice 0; scattered: a word \
         of each page; medians of {rounds} runs in turns",
        pages / 256
    ));
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for carrier in [Carrier::Shm, Carrier::Tcp] {
        let [raw, ordered, scattered, native_ordered, native_scattered] =
            measure(setting, carrier, pages, rounds)?;
        let mut row = |what: &str, bandwidth: f64| {
            let figures = vec![("MB/s".to_owned(), bandwidth)];
            rows.push(Row { name: format!("{} {what}", carrier.name()), figures });
        };
        row("raw stream", raw);
        row("in order", ordered);
        row("scattered", scattered);
        row("rounds: native threads, in order", native_ordered);
        row("rounds: native threads, scattered", native_scattered);
        let what = format!("{} in order / raw stream", carrier.name());
        bars.push(Bar { what, found: ordered / raw, bound: BOUND, at_most: false });
    }
    Ok(Outcome { name: "scan".into(), conditions, rows, bars, shown: "MB/s".into() })
}

/// Bandwidths of the raw stream, of reading in order and of reading scattered.
fn measure(setting: Setting<'_>, carrier: Carrier, pages: u64, rounds: u64) -> Result<[f64; 5]> {
    let (mut raw, mut ordered, mut scattered) = (Vec::new(), Vec::new(), Vec::new());
    let (mut native_ordered, mut native_scattered) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        raw.push(stream(carrier, usize::try_from(pages)?, CORES)?);
        for (stride, found) in [(1, &mut ordered), (0, &mut scattered)] {
            // A slice learns its habits: each reading has slices of its own.
            let mut cluster = Cluster::new(&setting.two_slices(carrier, &[512, pages]))?;
            let job = Job {
                kind: Kind::Scan as u64,
                memory: SHARED + 512 * 4096,
                pages,
                rounds: 1,
                ..Job::default()
            };
            cluster.run(1, 0, Job { write: 1, stride: 1, ..job })?;
            let done = cluster.run(0, 0, Job { stride, ..job })?;
            let report = cluster.report(0)?;
            ensure!(report.pages_in == pages, "{} pages came, not {pages}", report.pages_in);
            found.push(bandwidth(pages, &done));
        }
        // Last: a cluster wants to be alone. What the other core wrote is read, as above.
        let mut native = Native::new(pages, &CORES)?;
        for (stride, found) in [(1, &mut native_ordered), (0, &mut native_scattered)] {
            let job =
                Job { kind: Kind::Scan as u64, memory: SHARED, pages, rounds: 1, ..Job::default() };
            native.run(1, Job { write: 1, stride: 1, ..job })?;
            found.push(bandwidth(pages, &native.run(0, Job { stride, ..job })?));
        }
    }
    Ok([raw, ordered, scattered, native_ordered, native_scattered].map(median))
}

/// Megabytes a second of so many pages, of which each was needed.
fn bandwidth(pages: u64, done: &Done) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let (bytes, cycles) = (pages as f64 * PAGE, done.job.elapsed as f64);
    bytes / (cycles / cycles_per_ns()) * 1000.0
}
