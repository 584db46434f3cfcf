//! vCPUs of several slices that write: to pages of their own, to one page (false sharing), to one
//! word (true sharing). FragVisor (EuroSys 2020), figures 4 and 5.
//!
//! One page has one writer at a time, so the aggregate progress of all cannot exceed that of one
//! writer: the serial limit. What is lost to it is lost to transfers.

use super::Setting;
use crate::carrier::Carrier;
use crate::cluster::{Cluster, Plan};
use crate::outcome::{Bar, Conditions, Outcome, Row};
use crate::samples::median;
use anyhow::{Context, Result};
use dsm::HoldPolicy;
use microguest::layout::SHARED;
use microguest::{Job, Kind};

/// Share of the serial limit that must be reached with two slices.
const BOUND: f64 = 0.95;

/// Just long enough for whoever waited for a page to touch it once.
const NO_WINDOW: HoldPolicy = HoldPolicy::fixed(10_000);

/// How the slices' writers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
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
    let (rounds, cycles) = if setting.quick { (2, 500_000_000) } else { (7, 2_000_000_000) };
    let mut conditions = Conditions::now();
    conditions.notes.push(format!(
        "two slices, a vCPU each on a core of its own, {cycles} cycles a run; medians of {rounds} \
         runs in turns; serial limit: one vCPU alone on that page"
    ));
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for carrier in [Carrier::Shm, Carrier::Tcp] {
        let windows = [("window on", HoldPolicy::default()), ("window off", NO_WINDOW)];
        for (window, hold) in windows {
            let plan = Plan { hold, ..setting.two_slices(carrier, &[512, 512]) };
            let mut cluster = Cluster::new(&plan)?;
            for sharing in Sharing::ALL {
                let found = measure(&mut cluster, sharing, rounds, cycles)?;
                let name = format!("{} {}, {window}", carrier.name(), sharing.name());
                rows.push(Row { name: name.clone(), figures: found.figures() });
                if sharing != Sharing::None && window == "window on" {
                    let what = format!("{name}: progress / serial limit");
                    bars.push(Bar { what, found: found.ratio, bound: BOUND, at_most: false });
                }
            }
        }
    }
    let shown = "progress / serial".into();
    Ok(Outcome { name: "sharing".into(), conditions, rows, bars, shown })
}

struct Found {
    ratio: f64,
    moves_a_second: f64,
    lost: f64,
}

impl Found {
    fn figures(&self) -> Vec<(String, f64)> {
        vec![
            ("progress / serial".to_owned(), self.ratio),
            ("moves/s".to_owned(), self.moves_a_second),
            ("time without page %".to_owned(), self.lost * 100.0),
        ]
    }
}

fn measure(cluster: &mut Cluster, sharing: Sharing, rounds: u32, cycles: u64) -> Result<Found> {
    let (mut ratios, mut moves, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    let per_second = super::cycles_per_ns() * 1e9;
    for _ in 0..rounds {
        let alone = cluster.run(0, 0, sharing.job(0, cycles))?.job;
        let before = pages_in(cluster)?;
        for slice in [0, 1] {
            cluster.start(slice, 0, sharing.job(u64::try_from(slice)?, cycles))?;
        }
        let jobs = [cluster.wait(0, 0)?.job, cluster.wait(1, 0)?.job];
        let count: u64 = jobs.iter().map(|job| job.count).sum();
        let idle: u64 = jobs.iter().map(|job| job.sum).sum();
        let moved = pages_in(cluster)? - before;
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        {
            ratios.push(count as f64 / alone.count.max(1) as f64);
            moves.push(moved as f64 / (cycles as f64 / per_second));
            losses.push(idle as f64 / (2 * cycles) as f64);
        }
    }
    Ok(Found { ratio: median(ratios), moves_a_second: median(moves), lost: median(losses) })
}

fn pages_in(cluster: &mut Cluster) -> Result<u64> {
    let first = cluster.report(0)?.pages_in;
    first.checked_add(cluster.report(1)?.pages_in).context("count pages")
}
