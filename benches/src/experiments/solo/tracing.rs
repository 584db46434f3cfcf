//! What it costs a slice by itself that pages are traced. Nothing is traced where nobody else asks for
//! a page, and a bar checks that. Times of neighbouring turns are compared: the least of all turns differ by
//! more than the bound from run to run, with what the caches happen to hold.

use super::workload::{Workload, all};
use super::{Outcome, count, timed};
use crate::cluster::Cluster;
use crate::microvm::MicroVm;
use crate::samples::{median, ratios};
use anyhow::Result;
use dsm::Tracing;
use outcome::{Bar, Row};

/// Tracing may cost so much time more.
const BOUND: f64 = 1.01;

/// Runs the workloads that leave the memory as it is with the trace on and off, in turns.
pub(super) fn run(
    cluster: &mut Cluster,
    plain: &MicroVm,
    turns: usize,
    outcome: &mut Outcome,
) -> Result<()> {
    for workload in all().iter().filter(|workload| workload.job.write == 0) {
        workload.prepare(cluster, plain)?;
        compare(workload, cluster, turns, outcome)?;
    }
    cluster.set_trace(Tracing::On)?;
    let trace = cluster.trace()?;
    let found = count(u64::try_from(trace.pages.len())? + trace.samples_asked);
    let what = "pages traced, and vCPUs sampled".to_owned();
    outcome.bars.push(Bar { what, found, bound: 0.0, at_most: true });
    Ok(())
}

fn compare(
    workload: &Workload,
    cluster: &mut Cluster,
    turns: usize,
    outcome: &mut Outcome,
) -> Result<()> {
    let mut times = <[Vec<f64>; 2]>::default();
    let mut job = workload.job;
    for turn in 0..2 * turns {
        // On, off, off, on: what drifts meets both.
        let off = matches!(turn % 4, 1 | 2);
        cluster.set_trace(if off { Tracing::Off } else { Tracing::On })?;
        times[usize::from(off)].push(timed(&mut job, |job| Ok(cluster.run(0, 0, job)?.job))?);
    }
    let [on, off] = times;
    let found = median(ratios(&on, &off));
    let name = workload.name;
    for (what, times) in [("traced", on), ("untraced", off)] {
        let figures = vec![("ns per access".to_owned(), median(times))];
        outcome.rows.push(Row { name: format!("{name}, {what}"), figures });
    }
    let what = format!("{name}: time with tracing / without");
    outcome.bars.push(Bar { what, found, bound: BOUND, at_most: true });
    Ok(())
}
