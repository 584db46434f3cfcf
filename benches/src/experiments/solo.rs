//! What a VM on one slice pays for the memory engine: nothing asked for by other slices, and a second
//! slice that only listens. Against the same guest on the same memory without any engine.

use super::{CORES, Setting, cycles_per_ns};
use crate::carrier::Carrier;
use crate::cluster::{Cluster, Plan};
use crate::microvm::MicroVm;
use crate::outcome::{Bar, Conditions, Outcome, Row};
use crate::paging::GuestPages;
use crate::placement::Place;
use crate::samples::{Samples, median};
use anyhow::Result;
use dsm::{HoldPolicy, Tracing};
use microguest::layout::SHARED;
use microguest::{Job, Kind};

/// 64 MiB: more than the caches hold.
const PAGES: u64 = 1 << 14;
/// The engine's memory may cost so much time more.
const BOUND: f64 = 1.02;
/// Tracing may cost so much time more.
const TRACED: f64 = 1.01;
/// Short runs of each round with tracing on or off.
const TURNS: u32 = 8;
const CORE: Place = CORES[0];

fn job(kind: Kind) -> Job {
    Job { kind: kind as u64, memory: SHARED, pages: PAGES, rounds: 4, ..Job::default() }
}

/// A fourth of a job.
fn short(job: Job) -> Job {
    Job { rounds: job.rounds.div_ceil(4), cycles: job.cycles / 4, ..job }
}

/// Name, and what to run; the last counts words on one page: no memory to speak of.
fn workloads() -> [(&'static str, Job); 4] {
    let scan = |write, stride| Job { write, stride, ..job(Kind::Scan) };
    [
        ("sequential reads", scan(0, 1)),
        ("sequential writes", scan(1, 1)),
        ("scattered reads", Job { rounds: 200, ..scan(0, 0) }),
        ("compute", Job { cycles: 250_000_000, pages: 1, ..job(Kind::Count) }),
    ]
}

/// Runs the experiment.
///
/// # Errors
/// This machine has no KVM or userfaultfd, or a guest failed.
pub fn run(setting: Setting<'_>) -> Result<Outcome> {
    let rounds = if setting.quick { 3 } else { 15 };
    let mut cluster = Cluster::new(&Plan {
        image: setting.image,
        carrier: Carrier::Shm,
        homes: &[PAGES, 512],
        places: &[&[CORE], &[]],
        engines: &[],
        hold: HoldPolicy::default(),
    })?;
    let plain = MicroVm::without_dsm(setting.image, PAGES, &[CORE], GuestPages::Small)?;
    let mut conditions = Conditions::now();
    conditions.notes.push(format!(
        "{} MiB in a memfd with pages of 4 KiB (shmem_enabled: {}); medians of {rounds} runs in turns",
        PAGES / 256,
        huge_pages()
    ));
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (name, job) in workloads() {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        let mut by_tracing = <[Vec<f64>; 2]>::default();
        // The first run backs the memory.
        plain.run(0, job)?;
        cluster.run(0, 0, job)?;
        for _ in 0..rounds {
            without.push(per_access(&plain.run(0, job)?.job));
            with.push(per_access(&cluster.run(0, 0, job)?.job));
            // On, off, off, on: what drifts meets both.
            for turn in 0..TURNS {
                let off = matches!(turn % 4, 1 | 2);
                cluster.set_trace(if off { Tracing::Off } else { Tracing::On })?;
                let time = per_access(&cluster.run(0, 0, short(job))?.job);
                by_tracing[usize::from(off)].push(time);
            }
        }
        let [with, without] = [with, without].map(median);
        // Nothing of the trace runs now and then here: whatever else the machine does only adds to a time.
        let [traced, untraced] = by_tracing.map(|times| Samples::new(times).percentile(0));
        let times = [
            ("no DSM", without),
            ("one slice", with),
            ("one slice, traced (least)", traced),
            ("one slice, untraced (least)", untraced),
        ];
        for (what, time) in times {
            let figures = vec![("ns per access".to_owned(), time)];
            rows.push(Row { name: format!("{name}, {what}"), figures });
        }
        let what = format!("{name}: time with DSM / without");
        bars.push(Bar { what, found: with / without, bound: BOUND, at_most: true });
        let what = format!("{name}: least time with tracing / without");
        bars.push(Bar { what, found: traced / untraced, bound: TRACED, at_most: true });
    }
    let faults = cluster.faults(0)?;
    let what = "faults that needed another slice".to_owned();
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    bars.push(Bar { what, found: faults as f64, bound: 0.0, at_most: true });
    let trace = cluster.trace()?;
    let what = "pages traced, and vCPUs sampled".to_owned();
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let found = trace.pages.len() as f64 + trace.samples_asked as f64;
    bars.push(Bar { what, found, bound: 0.0, at_most: true });
    let shown = "ns per access".into();
    Ok(Outcome { name: "solo".into(), conditions, rows, bars, shown })
}

fn huge_pages() -> String {
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let chosen = text.split(['[', ']']).nth(1);
    chosen.unwrap_or("unknown").to_owned()
}

fn per_access(job: &Job) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let (elapsed, count) = (job.elapsed as f64, job.count.max(1) as f64);
    elapsed / count / cycles_per_ns()
}
