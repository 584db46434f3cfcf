//! Four vCPUs that write without any synchronisation, to four, two, or one page: FragVisor's
//! figure 5 (EuroSys 2020), over two slices with two vCPUs and a core each.
//!
//! The serial limit is one core's work. With every vCPU on a page of its own two cores work; with all
//! on one page one slice works at a time.

use super::{CORES, Setting, alone, cycles_per_ns};
use crate::carrier::Carrier;
use crate::cluster::Cluster;
use crate::native::Native;
use crate::placement::Place;
use crate::plan::Plan;
use crate::samples::median;
use crate::worker_pool::WorkerPool;
use anyhow::Result;
use microguest::layout::SHARED;
use microguest::{Job, Kind};
use outcome::{Bar, Conditions, Outcome, Row};

/// Share of the serial limit that must be reached.
const BOUND: f64 = 0.95;
pub(super) const PAIRS: [[Place; 2]; 2] = [[CORES[0]; 2], [CORES[1]; 2]];
/// Pages of the four vCPUs: two of slice 0, two of slice 1.
pub(super) const PATTERNS: [(&str, [u64; 4]); 4] = [
    ("no sharing", [0, 1, 512, 513]),
    ("low sharing", [0, 1, 0, 1]),
    ("moderate sharing", [0, 0, 0, 512]),
    ("max sharing", [0, 0, 0, 0]),
];

/// Runs the experiment.
///
/// # Errors
/// This machine has no KVM or userfaultfd, or a guest failed.
pub fn run(setting: Setting<'_>) -> Result<Outcome> {
    let (rounds, cycles) = if setting.quick { (5, 500_000_000) } else { (17, 1_000_000_000) };
    let mut conditions = Conditions::now();
    conditions.notes.push(format!(
        "two slices with two vCPUs and a core each, shm, {cycles} cycles a run; medians of {rounds} \
         runs in turns; serial limit: the mean of one vCPU of each slice alone, one before and one \
         after all; native threads: two on each of two cores"
    ));
    let plan = setting.two_slices(Carrier::Shm, &[512, 512]);
    let mut cluster = Cluster::new(&Plan { places: &[&PAIRS[0], &PAIRS[1]], ..plan })?;
    let mut native = Native::new(1024, PAIRS.as_flattened())?;
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (name, pages) in PATTERNS {
        let (mut slices, mut threads) = (Found::default(), Found::default());
        for _ in 0..rounds {
            slices.add(&mut cluster, pages, cycles)?;
            threads.add(&mut native, pages, cycles)?;
        }
        let ratio = median(slices.ratios.clone());
        rows.push(slices.row(name.to_owned()));
        rows.push(threads.row(format!("{name}, native threads")));
        let what = format!("{name}: writes / serial limit");
        bars.push(Bar { what, found: ratio, bound: BOUND, at_most: false });
    }
    let shown = "writes / serial".into();
    Ok(Outcome { name: "writes".into(), conditions, rows, bars, shown })
}

fn job(page: u64, word: u64, cycles: u64) -> Job {
    Job {
        kind: Kind::Count as u64,
        memory: SHARED,
        pages: 1024,
        own: page,
        stride: 1,
        word: word * 64,
        write: 1,
        cycles,
        rounds: u64::MAX,
        ..Job::default()
    }
}

/// What was found of one pattern, by round.
#[derive(Default)]
pub(super) struct Found {
    pub(super) ratios: Vec<f64>,
    /// Million writes a second.
    speeds: Vec<f64>,
}

impl Found {
    pub(super) fn add(
        &mut self,
        pool: &mut dyn WorkerPool,
        pages: [u64; 4],
        cycles: u64,
    ) -> Result<()> {
        // One of each slice, before and after, as in `sharing`.
        let words = [0, 1, 2, 3];
        let jobs = words.map(|word| job(pages[word], word as u64, cycles));
        let first = alone(pool, 0, jobs[0])?;
        let done = pool.together(&jobs)?;
        let second = alone(pool, 2, jobs[2])?;
        let count: u64 = done.iter().map(|done| done.job.count).sum();
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let (count, limit, ns) =
            (count as f64, (first + second) as f64 / 2.0, cycles as f64 / cycles_per_ns());
        self.ratios.push(count / limit.max(1.0));
        self.speeds.push(count / ns * 1000.0);
        Ok(())
    }

    fn row(self, name: String) -> Row {
        let figure = |what: &str, found| (what.to_owned(), median(found));
        let figures =
            vec![figure("writes / serial", self.ratios), figure("million writes/s", self.speeds)];
        Row { name, figures }
    }
}
