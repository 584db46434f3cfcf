//! vCPUs of several slices that write: to pages of their own, to one page (false sharing), to one
//! word (true sharing). FragVisor (EuroSys 2020), figures 4 and 5.
//!
//! One page has one writer at a time, so the aggregate progress of all cannot exceed that of one
//! writer: the serial limit. What is lost to it is lost to transfers.

use super::{CORES, Setting, alone};
use crate::carrier::Carrier;
use crate::cluster::Cluster;
use crate::native::Native;
use crate::plan::Plan;
use crate::samples::{Samples, median};
use crate::worker_pool::WorkerPool;
use anyhow::{Context, Result, ensure};
use dsm::HoldPolicy;
use microguest::layout::SHARED;
use microguest::{Job, Kind};
use outcome::{Bar, Conditions, Outcome, Row};

/// Nobody waits longer for a turn, in cycles: some ten seconds.
const PATIENCE: u64 = 30_000_000_000;
/// Turns of each: few enough for a machine whose cores are busy with something else.
const TURNS: u64 = 200;
/// Share of the serial limit that must be reached with two slices.
const BOUND: f64 = 0.95;

/// Just long enough for whoever waited for a page to touch it once.
const NO_WINDOW: HoldPolicy = HoldPolicy::fixed(10_000);

/// How the slices' writers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    None,
    False,
    True,
}

impl Sharing {
    const ALL: [Self; 3] = [Self::None, Self::False, Self::True];

    fn name(self) -> &'static str {
        match self {
            Self::None => "no sharing",
            Self::False => "false sharing",
            Self::True => "true sharing",
        }
    }

    /// The order for one of the slices.
    fn job(self, own: u64, cycles: u64) -> Job {
        let base = Job {
            kind: Kind::Count as u64,
            memory: SHARED,
            pages: 1024,
            own,
            all: 2,
            cycles,
            // A gap of that many cycles is time without the page.
            rounds: 20_000,
            ..Job::default()
        };
        match self {
            // Slice 1's own page lies in its own half.
            Self::None => Job { own: own * 512, stride: 1, write: 2, ..base },
            Self::False => Job { word: own * 64, write: 2, ..base },
            Self::True => Job { write: 2, ..base },
        }
    }
}

/// Runs the experiment.
///
/// # Errors
/// This machine has no KVM or userfaultfd, or a guest failed.
pub fn run(setting: Setting<'_>) -> Result<Outcome> {
    let quick = setting.quick;
    let (on, off, cycles) = if quick { (5, 2, 500_000_000) } else { (25, 5, 1_000_000_000) };
    let mut conditions = Conditions::now();
    conditions.notes.push(format!(
        "two slices, a vCPU each on a core of its own, {cycles} cycles a run; medians of {on} \
         runs in turns, {off} with the window off; serial limit: the mean of each vCPU (or thread) alone on that page, \
         one before and one after both"
    ));
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for carrier in [Carrier::Shm, Carrier::Tcp] {
        let windows = [("window on", HoldPolicy::default()), ("window off", NO_WINDOW)];
        for ((window, hold), rounds) in windows.into_iter().zip([on, off]) {
            let plan = Plan { hold, ..setting.two_slices(carrier, &[512, 512]) };
            let mut cluster = Cluster::new(&plan)?;
            // The threads know nothing of carriers and windows: once is enough.
            let first = carrier == Carrier::Shm && window == "window on";
            let mut native = if first { Some(Native::new(1024, &CORES)?) } else { None };
            for sharing in Sharing::ALL {
                let (mut slices, mut threads) = (Found::default(), Found::default());
                for _ in 0..rounds {
                    slices.add_slices(&mut cluster, sharing, cycles)?;
                    if let Some(native) = &mut native {
                        threads.add(native, sharing, cycles)?;
                    }
                }
                let name = format!("{} {}, {window}", carrier.name(), sharing.name());
                if sharing != Sharing::None && window == "window on" {
                    let what = format!("{name}: progress / serial limit");
                    let found = median(slices.ratios.clone());
                    bars.push(Bar { what, found, bound: BOUND, at_most: false });
                }
                rows.push(slices.row(name));
                if first {
                    rows.push(threads.row(format!("native threads {}", sharing.name())));
                }
            }
            let name = format!("{} ping-pong, {window}", carrier.name());
            rows.push(ping_pong(&mut cluster, name)?);
            if let Some(native) = &mut native {
                rows.push(ping_pong(native, "native threads ping-pong".into())?);
            }
        }
    }
    let shown = "progress / serial".into();
    Ok(Outcome { name: "sharing".into(), conditions, rows, bars, shown })
}

/// What was found, by round.
#[derive(Default)]
pub(super) struct Found {
    /// Progress of both against that of one.
    pub(super) ratios: Vec<f64>,
    /// Share of the time without the page.
    losses: Vec<f64>,
    /// Pages moved a second, where slices move them.
    moves: Vec<f64>,
}

impl Found {
    /// One worker alone, both, the other alone: what this machine's other guests take of a core for a
    /// while, or of one core more than of the other, goes into both figures of a round.
    pub(super) fn add(
        &mut self,
        pool: &mut dyn WorkerPool,
        sharing: Sharing,
        cycles: u64,
    ) -> Result<()> {
        let first = alone(pool, 0, sharing.job(0, cycles))?;
        let done = pool.together(&[0, 1].map(|own| sharing.job(own, cycles)))?;
        let second = alone(pool, 1, sharing.job(1, cycles))?;
        let count: u64 = done.iter().map(|done| done.job.count).sum();
        let idle: u64 = done.iter().map(|done| done.job.sum).sum();
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        {
            self.ratios.push(count as f64 / ((first + second) as f64 / 2.0).max(1.0));
            self.losses.push(idle as f64 / (2 * cycles) as f64 * 100.0);
        }
        Ok(())
    }

    fn add_slices(&mut self, cluster: &mut Cluster, sharing: Sharing, cycles: u64) -> Result<()> {
        let before = pages_in(cluster)?;
        self.add(cluster, sharing, cycles)?;
        let moved = pages_in(cluster)? - before;
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        self.moves.push(moved as f64 / (cycles as f64 / (super::cycles_per_ns() * 1e9)));
        Ok(())
    }

    fn row(self, name: String) -> Row {
        let mut figures = vec![("progress / serial".to_owned(), median(self.ratios))];
        if !self.moves.is_empty() {
            figures.push(("moves/s".to_owned(), median(self.moves)));
        }
        figures.push(("time without page %".to_owned(), median(self.losses)));
        Row { name, figures }
    }
}

/// Two workers take turns in raising a word; the time from one own turn to the next.
pub(super) fn ping_pong(pool: &mut dyn WorkerPool, name: String) -> Result<Row> {
    turns_of_pages(pool, name, 0)
}

/// The same, with a word in each of so many more pages that are written in a turn, far from one another.
pub(super) fn turns_of_pages(
    pool: &mut dyn WorkerPool,
    name: String,
    more_pages: u64,
) -> Result<Row> {
    let job = |own| Job {
        kind: Kind::PingPong as u64,
        memory: SHARED,
        pages: if more_pages == 0 { 1 } else { 1024 },
        rounds: TURNS,
        stride: more_pages,
        own,
        all: 2,
        cycles: PATIENCE,
        ..Job::default()
    };
    let done = pool.together(&[job(0), job(1)])?;
    ensure!(done.iter().all(|done| done.job.count == TURNS), "{name} gave up: {:?}", done[0].job);
    let summary = Samples::from_cycles(&done[0].samples, super::cycles_per_ns()).summary();
    let figures = vec![
        ("round trip p50 us".to_owned(), summary.p50 / 1000.0),
        ("p99 us".to_owned(), summary.p99 / 1000.0),
    ];
    Ok(Row { name, figures })
}

fn pages_in(cluster: &mut Cluster) -> Result<u64> {
    let first = cluster.report(0)?.pages_in;
    first.checked_add(cluster.report(1)?.pages_in).context("count pages")
}
