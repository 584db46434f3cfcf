//! Reading memory that is homed on another slice: in order against a raw stream over the same
//! transport, and scattered. Beside it stand the parts of the reader's floor.

mod floor;

use super::{CORES, Setting, cycles_per_ns};
use crate::carrier::Carrier;
use crate::cluster::{Cluster, Plan};
use crate::crew::Done;
use crate::native::Native;
use crate::raw::stream;
use crate::samples::median;
use anyhow::{Result, ensure};
use microguest::layout::SHARED;
use microguest::{Job, Kind};
use outcome::{Bar, Conditions, Outcome, Row};

/// Share of the raw stream's bandwidth that reading in order must reach.
const BOUND: f64 = 0.8;
/// Fetching ahead may cost scattered reading so much.
const RANDOM_BOUND: f64 = 0.97;
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
        let found = measure(setting, carrier, pages, rounds)?;
        let mut row = |what: &str, bandwidths: Vec<f64>| {
            let bandwidth = median(bandwidths);
            let figures = vec![("MB/s".to_owned(), bandwidth)];
            rows.push(Row { name: format!("{} {what}", carrier.name()), figures });
            bandwidth
        };
        let raw = row("raw stream", found.raw);
        let touch = row("first touch of local memory", found.first_touch);
        let mapped = row("first read of mapped local memory", found.mapped);
        let written = row("pages written into a new memory file", found.written);
        // One core does both.
        row("both, one after the other", vec![1.0 / (1.0 / mapped + 1.0 / written)]);
        let ordered = row("in order", found.ordered);
        let scattered = row("scattered", found.scattered);
        let plain = row("scattered, nothing fetched ahead", found.scattered_plain);
        row("rounds: native threads, in order", found.native_ordered);
        row("rounds: native threads, scattered", found.native_scattered);
        let mut bar = |what: &str, found, bound| {
            let what = format!("{} {what}", carrier.name());
            bars.push(Bar { what, found, bound, at_most: false });
        };
        bar("in order / raw stream", ordered / raw, BOUND);
        bar("in order / slower of raw stream and first touch", ordered / raw.min(touch), BOUND);
        bar("scattered, fetching ahead / not", scattered / plain, RANDOM_BOUND);
    }
    Ok(Outcome { name: "scan".into(), conditions, rows, bars, shown: "MB/s".into() })
}

/// Bandwidths of one carrier, and of threads.
#[derive(Default)]
struct Found {
    raw: Vec<f64>,
    /// A guest that touches memory of its own slice for the first time.
    first_touch: Vec<f64>,
    /// The parts of the floor, see [`floor`].
    mapped: Vec<f64>,
    written: Vec<f64>,
    ordered: Vec<f64>,
    scattered: Vec<f64>,
    /// The same without fetching ahead.
    scattered_plain: Vec<f64>,
    native_ordered: Vec<f64>,
    native_scattered: Vec<f64>,
}

fn measure(setting: Setting<'_>, carrier: Carrier, pages: u64, rounds: u64) -> Result<Found> {
    let mut found = Found::default();
    for _ in 0..rounds {
        found.raw.push(stream(carrier, usize::try_from(pages)?, CORES)?);
        found.mapped.push(floor::mapped(setting.image, pages)?);
        found.written.push(floor::written(pages)?);
        let ways = [
            (1, true, &mut found.ordered),
            (0, true, &mut found.scattered),
            (0, false, &mut found.scattered_plain),
        ];
        for (stride, fetch_ahead, remote) in ways {
            // A slice learns its habits: each reading has slices of its own.
            let homes = [512, pages];
            let plan = Plan { fetch_ahead, ..setting.two_slices(carrier, &homes) };
            let mut cluster = Cluster::new(&plan)?;
            let job = Job {
                kind: Kind::Scan as u64,
                memory: SHARED + 512 * 4096,
                pages,
                rounds: 1,
                ..Job::default()
            };
            let written = cluster.run(1, 0, Job { write: 1, stride: 1, ..job })?;
            found.first_touch.push(bandwidth(pages, &written));
            let done = cluster.run(0, 0, Job { stride, ..job })?;
            let report = cluster.report(0)?;
            ensure!(report.pages_in == pages, "{} pages came, not {pages}", report.pages_in);
            remote.push(bandwidth(pages, &done));
        }
        // Last: a cluster wants to be alone. What the other core wrote is read, as above.
        let mut native = Native::new(pages, &CORES)?;
        let ways = [(1, &mut found.native_ordered), (0, &mut found.native_scattered)];
        for (stride, times) in ways {
            let job =
                Job { kind: Kind::Scan as u64, memory: SHARED, pages, rounds: 1, ..Job::default() };
            native.run(1, Job { write: 1, stride: 1, ..job })?;
            times.push(bandwidth(pages, &native.run(0, Job { stride, ..job })?));
        }
    }
    Ok(found)
}

/// Megabytes a second of so many pages, of which each was needed.
fn bandwidth(pages: u64, done: &Done) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let (bytes, cycles) = (pages as f64 * PAGE, done.job.elapsed as f64);
    bytes / (cycles / cycles_per_ns()) * 1000.0
}
