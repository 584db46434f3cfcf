//! Reading memory that is homed on another slice: in order against a raw stream over the same
//! transport, scattered, and every fourth page. Beside it stand the parts of the reader's floor.

pub(super) mod beside;
mod floor;
mod scattered;

use super::{CORES, Setting, cycles_per_ns};
use crate::carrier::Carrier;
use crate::cluster::Cluster;
use crate::native::Native;
use crate::paging::GuestPages;
use crate::plan::Plan;
use crate::raw::{Source, stream};
use crate::samples::{median, ratios};
use crate::worker_pool::Done;
use anyhow::{Result, ensure};
use beside::Beside;
use dsm::Memory;
use microguest::layout::SHARED;
use microguest::{Job, Kind};
use outcome::{Bar, Conditions, Outcome, Row};
use scattered::Scattered;

/// Share of the raw stream's bandwidth that reading in order must reach.
const BOUND: f64 = 0.8;
/// Fetching ahead may cost scattered reading so much.
const RANDOM_BOUND: f64 = 0.97;
const PAGE: f64 = 4096.0;

/// Pages of which every fourth is read.
pub(super) const STRIDED: u64 = 4096;
pub(super) const EVERY: u64 = 4;
/// Readings in order of each round, each beside a raw stream.
const TURNS: u64 = 5;
pub(super) const PAGE_WORDS: u64 = 512;
/// Pages of the home of a slice that reads: one chunk.
pub(super) const OWN: u64 = 512;

/// Runs the experiment.
///
/// # Errors
/// This machine has no KVM or userfaultfd, or a guest failed.
pub fn run(setting: Setting<'_>) -> Result<Outcome> {
    let sizes = if setting.quick {
        Sizes { pages: 1 << 14, rounds: 3, scattered: 2 }
    } else {
        Sizes { pages: 1 << 16, rounds: 5, scattered: 4 }
    };
    let Sizes { pages, rounds, scattered } = sizes;
    let mut conditions = Conditions::now();
    conditions.notes.push(format!(
        "{} MiB of slice 1, written there, read in order by slice 0: medians of {} runs in turns with \
         the raw stream of as much memory, bars of the ratios of neighbours; memory prepared at the start on both ({}), as the raw stream's is, and guest pages \
         of 2 MiB, unless said otherwise",
        pages / 256,
        rounds * TURNS,
        Memory::MemfdPrealloc
    ));
    conditions.notes.push(format!(
        "scattered: a word of each of {} pages, memory as it comes, guest pages of 4 KiB; two slices with one home, one fetches \
         ahead, the other does not, take turns in parts of {} pages; medians of {} parts each, bar of the ratios of neighbours",
        scattered::PAGES,
        scattered::PAGES / scattered::PARTS,
        rounds * scattered * scattered::PARTS
    ));
    conditions.notes.push(format!(
        "every fourth page: a word of every {EVERY}th of {STRIDED} pages, memory as scattered; medians of {rounds} \
         runs, MB/s of the pages that were read"
    ));
    conditions.notes.push(format!(
        "single misses: pages of slice 1, missed one by one by a second vCPU of slice 0 on slice 1's core, alone and while the \
         first vCPU reads {} MiB in order; all of {rounds} runs together, the stream's MB/s their median",
        pages / 256
    ));
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for carrier in [Carrier::Shm, Carrier::Tcp] {
        let found = measure(setting, carrier, sizes)?;
        conditions.notes.push(format!("{}: {}", carrier.name(), found.samples()));
        let mut row = |what: &str, bandwidths: Vec<f64>| {
            let bandwidth = median(bandwidths);
            let figures = vec![("MB/s".to_owned(), bandwidth)];
            rows.push(Row { name: format!("{} {what}", carrier.name()), figures });
            bandwidth
        };
        let in_order = median(ratios(&found.ordered, &found.raw));
        row("raw stream, from memory to memory", found.raw);
        row("raw stream, of one frame that stays in the cache", found.raw_cached);
        row("in order", found.ordered);
        row("in order, memory as it comes, guest pages of 4 KiB", found.plain);
        let mapped = row("floor of that: first read of mapped local memory", found.mapped);
        let written = row("floor of that: pages written into a new memory file", found.written);
        // One core does both.
        row("both, one after the other", vec![1.0 / (1.0 / mapped + 1.0 / written)]);
        row("every fourth page", found.strided);
        row("every fourth page, nothing fetched ahead", found.strided_plain);
        row("rounds: native threads, in order", found.native_ordered);
        row("rounds: native threads, scattered", found.native_scattered);
        rows.extend(found.scattered.rows(carrier));
        rows.extend(found.beside.rows(carrier));
        let mut bar = |what: &str, found, bound| {
            let what = format!("{} {what}", carrier.name());
            bars.push(Bar { what, found, bound, at_most: false });
        };
        bar("in order / raw stream", in_order, BOUND);
        bar("scattered, fetching ahead / not", found.scattered.ratio(), RANDOM_BOUND);
    }
    Ok(Outcome { name: "scan".into(), conditions, rows, bars, shown: "MB/s".into() })
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Pages that are read in order.
    pages: u64,
    rounds: u64,
    /// Scattered runs in each round.
    scattered: u64,
}

/// Bandwidths of one carrier, and of threads.
#[derive(Default)]
struct Found {
    raw: Vec<f64>,
    /// The same with a source that stays in the cache.
    raw_cached: Vec<f64>,
    ordered: Vec<f64>,
    /// Without memory prepared, and with small pages in the guest.
    plain: Vec<f64>,
    /// The parts of its floor, see [`floor`].
    mapped: Vec<f64>,
    written: Vec<f64>,
    /// Every fourth page, with and without.
    strided: Vec<f64>,
    strided_plain: Vec<f64>,
    native_ordered: Vec<f64>,
    native_scattered: Vec<f64>,
    /// Scattered, with and without fetching ahead.
    scattered: Scattered,
    /// Single misses beside a stream.
    beside: Beside,
}

impl Found {
    /// What the bars come from, and what is read with a stride, sample by sample.
    fn samples(&self) -> String {
        let list = |what: &str, samples: &[f64]| {
            let samples: Vec<String> = samples.iter().map(|one| format!("{one:.1}")).collect();
            format!("{what} {}", samples.join(", "))
        };
        [
            list("raw", &self.raw),
            list("in order", &self.ordered),
            list("every fourth", &self.strided),
            list("nothing fetched ahead", &self.strided_plain),
        ]
        .join("; ")
    }
}

fn measure(setting: Setting<'_>, carrier: Carrier, sizes: Sizes) -> Result<Found> {
    let Sizes { pages, rounds, scattered } = sizes;
    let mut found = Found::default();
    for round in 0..rounds {
        let plain = setting.two_slices(carrier, &[OWN, OWN]);
        let prepared =
            Plan { memory: Memory::MemfdPrealloc, guest_pages: GuestPages::Large, ..plain.clone() };
        let raw = |source| stream(carrier, usize::try_from(pages)?, source, CORES);
        for turn in 0..TURNS {
            for is_raw in both(round + turn) {
                if is_raw {
                    found.raw.push(raw(Source::Memory)?);
                } else {
                    found.ordered.push(read(&prepared, pages, 1)?);
                }
            }
        }
        found.raw_cached.push(raw(Source::OneFrame)?);
        found.plain.push(read(&plain, pages, 1)?);
        found.mapped.push(floor::mapped(setting.image, pages)?);
        found.written.push(floor::written(pages)?);
        let without = Plan { page_by_page: &[0, 1], ..plain.clone() };
        for _ in 0..scattered {
            found.scattered.measure(setting, carrier)?;
        }
        for ahead in both(round) {
            let (plan, samples) = if ahead {
                (&plain, &mut found.strided)
            } else {
                (&without, &mut found.strided_plain)
            };
            samples.push(read(plan, STRIDED, EVERY * PAGE_WORDS)?);
        }
        found.beside.measure(setting, carrier, pages)?;
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

/// Both of two ways. Whoever comes first has it better or worse: they take turns in that.
pub(super) fn both(turn: u64) -> [bool; 2] {
    let first = turn.is_multiple_of(2);
    [first, !first]
}

/// Has slice 1 write pages, and slice 0 read them, or those that a stride of that many words leads to; the
/// bandwidth is that of the pages that are read. Write prediction learns from each reading, so
/// each has slices of its own.
pub(super) fn read(plan: &Plan<'_>, pages: u64, stride: u64) -> Result<f64> {
    let homes = [OWN, pages];
    let mut cluster = Cluster::new(&Plan { homes: &homes, ..plan.clone() })?;
    let memory = SHARED + OWN * 4096;
    let job = Job { kind: Kind::Scan as u64, memory, pages, rounds: 1, ..Job::default() };
    cluster.run(1, 0, Job { write: 1, stride: 1, ..job })?;
    let done = cluster.run(0, 0, Job { stride, ..job })?;
    let report = cluster.report(0)?;
    let read = pages / (stride / PAGE_WORDS).max(1);
    // Behind the last page memory ends: none is fetched in vain.
    ensure!(report.pages_in == read, "{} pages came, not {read}", report.pages_in);
    Ok(bandwidth(read, &done))
}

/// Megabytes a second of so many pages, of which each was needed.
fn bandwidth(pages: u64, done: &Done) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let (bytes, cycles) = (pages as f64 * PAGE, done.job.elapsed as f64);
    bytes / (cycles / cycles_per_ns()) * 1000.0
}
