//! What it costs when another slice asks for a page of a chunk that was private.

use super::PAGES;
use crate::cluster::Cluster;
use crate::experiments::cycles_per_ns;
use crate::samples::Samples;
use anyhow::Result;
use dsm::Memory;
use microguest::layout::SHARED;
use microguest::{Job, Kind};
use outcome::{Bar, Outcome, Row};

const CHUNK: u64 = 512;

/// One read, of the n-th page of a chunk.
fn read(chunk: u64, page: u64) -> Job {
    let memory = SHARED + (chunk * CHUNK + page) * 4096;
    Job { kind: Kind::Read as u64, memory, pages: 1, rounds: 1, ..Job::default() }
}

/// Reads pages of every chunk of slice 0 from slice 1, one by one.
pub(super) fn run(memory: Memory, cluster: &mut Cluster, outcome: &mut Outcome) -> Result<()> {
    let mut times: [Vec<u32>; 4] = Default::default();
    for chunk in 0..PAGES / CHUNK {
        times[0].extend(cluster.run(1, 0, read(chunk, 100))?.samples);
        times[1].extend(cluster.run(1, 0, read(chunk, 300))?.samples);
        times[2].extend(cluster.run(0, 0, read(chunk, 200))?.samples);
        times[3].extend(cluster.run(0, 0, read(chunk, 400))?.samples);
    }
    let names = [
        "first remote read of a private chunk",
        "next remote read of the chunk",
        "first local read afterwards, which maps the chunk again",
        "next local read",
    ];
    for (name, cycles) in names.iter().zip(times) {
        let summary = Samples::from_cycles(&cycles, cycles_per_ns()).summary();
        let figures = [("p50 us", summary.p50), ("p90 us", summary.p90)];
        let figures = figures.map(|(column, ns)| (column.to_owned(), ns / 1000.0)).into();
        outcome.rows.push(Row { name: format!("{memory}: {name}"), figures });
    }
    let report = cluster.report(0)?;
    let what = format!("{memory}: local faults per shared chunk");
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let found = report.faults_local as f64 / report.chunks.shared.max(1) as f64;
    // The second read may come while the first one's fault is still mapping.
    outcome.bars.push(Bar { what, found, bound: 2.0, at_most: true });
    Ok(())
}
