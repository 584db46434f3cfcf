//! What a second slice buys: two serial NAS kernels on a vCPU each, over two slices with a core each,
//! against the same two vCPUs overcommitted on one core of one host.

use super::{CORES, Setting};
use crate::carrier::Carrier;
use crate::cluster::Cluster;
use crate::microvm::{Alone, MicroVm};
use crate::outcome::{Bar, Conditions, Outcome, Row};
use crate::samples::median;
use anyhow::{Result, ensure};
use microguest::layout::SHARED;
use microguest::{Job, Kind};

/// 16 MiB for each vCPU, in its own slice.
const PAGES: u64 = 4096;

/// Name, order, and how much faster two slices must be.
fn kernels(quick: bool) -> [(&'static str, Job, f64); 2] {
    let rounds = |full| if quick { full / 4 } else { full };
    let job = |kind, rounds| Job { kind: kind as u64, pages: PAGES, rounds, ..Job::default() };
    [("EP", job(Kind::Ep, rounds(20_000_000)), 1.95), ("IS", job(Kind::Is, rounds(40)), 1.8)]
}

/// The order for one of the two vCPUs, whose memory is the n-th part.
fn for_vcpu(job: Job, number: u64) -> Job {
    Job { own: number, memory: SHARED + number * PAGES * 4096, ..job }
}

/// Runs the experiment.
///
/// # Errors
/// This machine has no KVM or userfaultfd, or a guest failed.
pub fn run(setting: Setting<'_>) -> Result<Outcome> {
    let rounds = if setting.quick { 2 } else { 7 };
    let mut cluster = Cluster::new(&setting.two_slices(Carrier::Shm, &[PAGES, PAGES]))?;
    let (image, places) = (setting.image, [CORES[0]; 2]);
    let one_core = MicroVm::without_dsm(image, &Alone::of(2 * PAGES), &places)?;
    let mut conditions = Conditions::now();
    conditions.notes.push(format!("medians of {rounds} runs in turns; time of the slower vCPU"));
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (name, job, bound) in kernels(setting.quick) {
        let (mut slices, mut overcommitted) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            for number in [0, 1] {
                one_core.start(usize::try_from(number)?, for_vcpu(job, number))?;
            }
            overcommitted.push(slower([one_core.wait(0)?.job, one_core.wait(1)?.job])?);
            for number in [0, 1] {
                cluster.start(usize::try_from(number)?, 0, for_vcpu(job, number))?;
            }
            slices.push(slower([cluster.wait(0, 0)?.job, cluster.wait(1, 0)?.job])?);
        }
        let [slices, overcommitted] = [slices, overcommitted].map(median);
        for (what, time) in [("two slices", slices), ("one core", overcommitted)] {
            let figures = vec![("ms".to_owned(), time)];
            rows.push(Row { name: format!("{name}, {what}"), figures });
        }
        let what = format!("{name}: one core / two slices");
        bars.push(Bar { what, found: overcommitted / slices, bound, at_most: false });
    }
    Ok(Outcome { name: "npb".into(), conditions, rows, bars, shown: "ms".into() })
}

/// Milliseconds of the slower one.
fn slower(jobs: [Job; 2]) -> Result<f64> {
    ensure!(jobs.iter().all(|job| job.count > 0), "a kernel did nothing: {jobs:?}");
    let cycles = jobs.iter().map(|job| job.elapsed).max().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "cycles of seconds")]
    let cycles = cycles as f64;
    Ok(cycles / super::cycles_per_ns() / 1e6)
}
