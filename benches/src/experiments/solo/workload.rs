//! What the guest does by itself.

use super::PAGES;
use crate::cluster::Cluster;
use crate::experiments::cycles_per_ns;
use crate::microvm::MicroVm;
use anyhow::Result;
use microguest::chain::lay_chain;
use microguest::layout::SHARED;
use microguest::{Job, Kind};

/// Words of a cache line.
const LINE: u64 = 8;

/// Something to do again and again, some milliseconds at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) job: Job,
}

fn job(kind: Kind) -> Job {
    Job { kind: kind as u64, memory: SHARED, pages: PAGES, rounds: 1, ..Job::default() }
}

/// Writes to all of the memory.
pub(super) fn fill() -> Job {
    Job { write: 1, stride: 1, ..job(Kind::Scan) }
}

/// All workloads. The chain comes before the writes, which destroy it.
pub(super) fn all() -> [Workload; 4] {
    let scan = |write, stride| Job { write, stride, ..job(Kind::Scan) };
    let one = |name, job| Workload { name, job };
    [
        // Batches of 65,536 pairs.
        one("compute", Job { rounds: 2, ..job(Kind::Ep) }),
        one("sequential reads", scan(0, LINE)),
        one("random reads, each waiting for the last", Job { rounds: 30_000, ..job(Kind::Chase) }),
        one("sequential writes", scan(1, LINE)),
    ]
}

pub(super) fn is_chase(job: &Job) -> bool {
    job.kind() == Some(Kind::Chase)
}

/// The contents of so many pages, a power of two of them, with the guest's chain in them.
pub(super) fn chain(pages: u64) -> Vec<u8> {
    let words = usize::try_from(pages * 512).expect("a benchmark's memory fits");
    let mut words = vec![0; words];
    lay_chain(&mut words);
    words.into_iter().flat_map(u64::to_ne_bytes).collect()
}

impl Workload {
    /// Lays the chain, if it is about that.
    pub(super) fn prepare(&self, cluster: &Cluster, plain: &MicroVm) -> Result<()> {
        if !is_chase(&self.job) {
            return Ok(());
        }
        let chain = chain(PAGES);
        plain.write(SHARED, &chain)?;
        cluster.write(SHARED, chain)
    }
}

/// Nanoseconds.
pub(super) fn per_access(job: &Job) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let (elapsed, count) = (job.elapsed as f64, job.count.max(1) as f64);
    elapsed / count / cycles_per_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_visits_every_line_and_ends_at_its_start() {
        let chain = chain(4);
        let word = |at: usize| {
            let bytes = chain[at * 8..][..8].try_into().unwrap();
            usize::try_from(u64::from_ne_bytes(bytes)).unwrap()
        };
        let mut at = 0;
        for step in 1..=4 * 64 {
            at = word(at);
            assert_eq!(at % 8, 0);
            assert_eq!(at == 0, step == 4 * 64, "after {step} steps");
        }
    }
}
