//! What a VM on one slice pays for the memory engine: nothing asked for by other slices, and a second
//! slice that only listens. Against the same guest on the same kind of memory without any engine, for
//! each kind of memory that a user can choose. And what it costs when the second slice does ask.

pub mod after_drain;
mod page_size;
mod sharing_starts;
mod tracing;
mod workload;

use super::{CORES, Setting};
use crate::carrier::Carrier;
use crate::cluster::Cluster;
use crate::microvm::{Alone, MicroVm};
use crate::paging::GuestPages;
use crate::plan::Plan;
use crate::pool::Pool;
use crate::samples::median;
use anyhow::{Context, Result};
use dsm::{HoldPolicy, Mechanisms, Memory};
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
    let plan = if setting.quick {
        Repeats { pairs: 3, turns: 9 }
    } else {
        Repeats { pairs: 13, turns: 25 }
    };
    let Repeats { pairs, turns } = plan;
    let mut conditions = Conditions::now();
    let pool = Pool::enlarged((2 * PAGES + OTHER) / 512);
    conditions.notes = vec![
        format!(
            "{} MiB, guest pages of 2 MiB; {turns} short runs in turns of each of {pairs} pairs of VMs, \
             medians of the ratios of neighbours; of these the median of all pairs",
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
            Ok(()) => on(memory, setting, plan, &mut outcome)?,
            Err(error) => outcome.conditions.notes.push(format!("{memory} left out: {error}")),
        }
    }
    page_size::run(setting, &mut outcome.rows)?;
    Ok(outcome)
}

/// How often all is repeated. Each pair of VMs has memory at other places of the machine, which alone makes
/// one of two alike a few percent faster; turns cannot tell that from the cost of DSM.
#[derive(Clone, Copy, Debug)]
struct Repeats {
    pairs: usize,
    turns: usize,
}

/// A VM on one slice, and one without DSM.
struct Pair {
    cluster: Cluster,
    plain: MicroVm,
    /// Huge pages of both at the start.
    huge: [u64; 2],
}

impl Pair {
    fn new(memory: Memory, setting: Setting<'_>) -> Result<Self> {
        let mut cluster = Cluster::new(&Plan {
            image: setting.image,
            carrier: Carrier::Shm,
            homes: &[PAGES, OTHER],
            places: &[&CORES[..1], &CORES[1..]],
            engines: &CORES,
            hold: HoldPolicy::default(),
            mechanisms: Mechanisms::ALL,
            page_by_page: &[],
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
        Ok(Self { cluster, plain, huge })
    }
}

/// All about one kind of memory.
fn on(memory: Memory, setting: Setting<'_>, plan: Repeats, outcome: &mut Outcome) -> Result<()> {
    let mut found: [Times; 4] = Default::default();
    let mut last = None;
    for _ in 0..plan.pairs {
        // The one before gives its memory back first.
        drop(last.take());
        let pair = last.insert(Pair::new(memory, setting)?);
        for (workload, times) in workload::all().iter().zip(&mut found) {
            workload.prepare(&pair.cluster, &pair.plain)?;
            compare(workload, plan.turns, pair, times)?;
        }
    }
    for (workload, times) in workload::all().iter().zip(found) {
        times.report(memory, workload, outcome);
    }
    let Pair { mut cluster, plain, huge } = last.context("no pair of VMs")?;
    if memory == Memory::default() {
        tracing::run(&mut cluster, &plain, plan.pairs * plan.turns, outcome)?;
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

/// What was found of one workload: times of each turn, and the median ratio of each pair.
#[derive(Default)]
struct Times {
    with: Vec<f64>,
    without: Vec<f64>,
    ratios: Vec<f64>,
}

impl Times {
    fn report(self, memory: Memory, workload: &Workload, outcome: &mut Outcome) {
        let name = workload.name;
        for (what, time) in [("no DSM", median(self.without)), ("one slice", median(self.with))] {
            let figures = vec![("ns per access".to_owned(), time)];
            outcome.rows.push(Row { name: format!("{memory}: {name}, {what}"), figures });
        }
        let pairs: Vec<String> = self.ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
        outcome.conditions.notes.push(format!("{memory}: {name}: by pair {}", pairs.join(", ")));
        let what = format!("{memory}: {name}: time with DSM / without");
        outcome.bars.push(Bar { what, found: median(self.ratios), bound: BOUND, at_most: true });
    }
}

/// Runs a workload with and without DSM in turns.
fn compare(workload: &Workload, turns: usize, pair: &mut Pair, times: &mut Times) -> Result<()> {
    let Pair { cluster, plain, .. } = pair;
    let mut ratios = Vec::new();
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
        times.without.push(a);
        times.with.push(b);
        ratios.push(b / a);
    }
    times.ratios.push(median(ratios));
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
