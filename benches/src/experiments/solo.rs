//! What a VM on one slice pays for the memory engine: nothing asked for by other slices, and a second
//! slice that only listens. Against the same guest on the same kind of memory without any engine, for
//! each kind of memory that a user can choose. And what it costs when the second slice does ask.

mod page_size;
mod sharing_starts;
mod tracing;
mod workload;

use super::{CORES, Setting};
use crate::carrier::Carrier;
use crate::cluster::{Cluster, Plan};
use crate::microvm::{Alone, MicroVm};
use crate::paging::GuestPages;
use crate::pool::Pool;
use crate::samples::median;
use anyhow::{Context, Result};
use dsm::{HoldPolicy, Memory};
use microguest::Job;
use outcome::{Bar, Conditions, Outcome, Row};
use std::thread::sleep;
use std::time::{Duration, Instant};
use workload::{Workload, per_access};

/// 64 MiB: more than the caches hold.
const PAGES: u64 = 1 << 14;
/// Pages of the slice that only listens.
const OTHER: u64 = 512;
/// The engine's memory may cost so much time more.
const BOUND: f64 = 1.02;
const HUGE: u64 = 2 << 20;
/// How long the memory may take to come to rest on huge pages.
const REST: Duration = Duration::from_secs(15);

/// Runs the experiment.
///
/// # Errors
/// This machine has no KVM or userfaultfd, or a guest failed.
pub fn run(setting: Setting<'_>) -> Result<Outcome> {
    let turns = if setting.quick { 15 } else { 121 };
    let mut conditions = Conditions::now();
    let pool = Pool::enlarged((2 * PAGES + OTHER) / 512);
    conditions.notes = vec![
        format!(
            "{} MiB, guest pages of 2 MiB; medians of {turns} short runs in turns, ratios of neighbours",
            PAGES / 256
        ),
        format!(
            "transparent huge pages: {}; of memory files: {}; {}",
            chosen("enabled"),
            chosen("shmem_enabled"),
            pool.describe()
        ),
    ];
    let mut outcome = Outcome {
        name: "solo".into(),
        conditions,
        rows: Vec::new(),
        bars: Vec::new(),
        shown: "ns per access".into(),
    };
    for memory in [Memory::Memfd, Memory::Anonymous, Memory::Hugetlbfs] {
        // The slices and the VM without DSM.
        let all = 0..2 * PAGES + OTHER;
        match memory.check(std::slice::from_ref(&all)) {
            Ok(()) => on(memory, setting, turns, &mut outcome)?,
            Err(error) => outcome.conditions.notes.push(format!("{memory} left out: {error}")),
        }
    }
    page_size::run(setting, &mut outcome.rows)?;
    Ok(outcome)
}

/// All about one kind of memory.
fn on(memory: Memory, setting: Setting<'_>, turns: usize, outcome: &mut Outcome) -> Result<()> {
    let mut cluster = Cluster::new(&Plan {
        image: setting.image,
        carrier: Carrier::Shm,
        homes: &[PAGES, OTHER],
        places: &[&CORES[..1], &CORES[1..]],
        engines: &CORES,
        hold: HoldPolicy::default(),
        fetch_ahead: true,
        memory,
        guest_pages: GuestPages::Large,
    })?;
    let alone = Alone { pages: PAGES, memory, collapse: true, guest_pages: GuestPages::Large };
    let plain = MicroVm::without_dsm(setting.image, &alone, &CORES[..1])?;
    // The first run backs the memory.
    let fill = workload::fill();
    plain.run(0, fill)?;
    cluster.run(0, 0, fill)?;
    let huge = huge_at_rest(&cluster, &plain)?;
    for workload in workload::all() {
        workload.prepare(&cluster, &plain)?;
        compare(memory, &workload, turns, &mut cluster, &plain, outcome)?;
    }
    if memory == Memory::default() {
        tracing::run(&mut cluster, &plain, turns, outcome)?;
    }
    let after = [cluster.huge_bytes()?, plain.huge_bytes()?].map(|bytes| bytes / HUGE);
    for (what, [with, without]) in [("at the start", huge), ("at the end", after)] {
        let figures =
            vec![("with DSM".to_owned(), count(with)), ("without".to_owned(), count(without))];
        outcome.rows.push(Row { name: format!("{memory}: huge pages {what}"), figures });
        let what = format!("{memory}: difference in huge pages {what}");
        let found = count(with.abs_diff(without));
        outcome.bars.push(Bar { what, found, bound: 0.0, at_most: true });
    }
    let report = cluster.report(0)?;
    let asked = cluster.faults(0)? + report.faults_local + report.chunks.shared;
    let what = format!("{memory}: faults and chunks shared");
    outcome.bars.push(Bar { what, found: count(asked), bound: 0.0, at_most: true });
    if let Some(mean) = report.chunks.collapse_ns.checked_div(report.chunks.collapsed) {
        let figures = vec![("mean us".to_owned(), count(mean) / 1000.0)];
        outcome.rows.push(Row { name: format!("{memory}: collapse of a chunk"), figures });
    }
    sharing_starts::run(memory, &mut cluster, outcome)
}

/// Runs a workload with and without DSM in turns.
fn compare(
    memory: Memory,
    workload: &Workload,
    turns: usize,
    cluster: &mut Cluster,
    plain: &MicroVm,
    outcome: &mut Outcome,
) -> Result<()> {
    let (mut with, mut without, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut here, mut there) = (workload.job, workload.job);
    for turn in 0..turns {
        let mut one_plain = || timed(&mut there, |job| Ok(plain.run(0, job)?.job));
        let mut one_slice = || timed(&mut here, |job| Ok(cluster.run(0, 0, job)?.job));
        let (a, b) = if turn % 2 == 0 {
            let a = one_plain()?;
            (a, one_slice()?)
        } else {
            let b = one_slice()?;
            (one_plain()?, b)
        };
        without.push(a);
        with.push(b);
        ratios.push(b / a);
    }
    let name = workload.name;
    for (what, time) in [("no DSM", median(without)), ("one slice", median(with))] {
        let figures = vec![("ns per access".to_owned(), time)];
        outcome.rows.push(Row { name: format!("{memory}: {name}, {what}"), figures });
    }
    let what = format!("{memory}: {name}: time with DSM / without");
    outcome.bars.push(Bar { what, found: median(ratios), bound: BOUND, at_most: true });
    Ok(())
}

/// One turn; the job goes on where it stopped.
fn timed(job: &mut Job, run: impl FnOnce(Job) -> Result<Job>) -> Result<f64> {
    let done = run(*job)?;
    if workload::is_chase(job) {
        job.word = done.sum;
    }
    Ok(per_access(&done))
}

/// Huge pages with and without DSM, once their number stays as it is.
fn huge_at_rest(cluster: &Cluster, plain: &MicroVm) -> Result<[u64; 2]> {
    let start = Instant::now();
    loop {
        let now = [cluster.huge_bytes()?, plain.huge_bytes()?];
        if now == [PAGES * 4096; 2] || start.elapsed() > REST {
            return Ok(now.map(|bytes| bytes / HUGE));
        }
        sleep(Duration::from_millis(50));
    }
}

/// What is chosen in a file of the kernel that lists the choices.
fn chosen(file: &str) -> String {
    let text = std::fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{file}"));
    let text = text.context("no such file").unwrap_or_default();
    text.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned()
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn count(number: u64) -> f64 {
    number as f64
}
