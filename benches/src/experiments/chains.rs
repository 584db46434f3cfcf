//! The chains of misses as threads of an ordinary process: what the same accesses cost where cores share memory
//! by their caches. Beside the figures of slices it says what the workload itself is.

use super::{CORES, cycles_per_ns};
use crate::native::Native;
use crate::samples::Samples;
use crate::worker_pool::WorkerPool;
use anyhow::{Result, ensure};
use microguest::layout::SHARED;
use microguest::{Job, Kind};

/// Times of a read miss, a write miss and an upgrade on lines of so many pages that the other core wrote.
///
/// # Errors
/// There is no memory.
pub fn measure(pages: u64, rounds: u64) -> Result<[(&'static str, Samples); 3]> {
    let mut native = Native::new(pages, &CORES)?;
    let job = |kind: Kind| Job {
        kind: kind as u64,
        memory: SHARED,
        pages,
        rounds: pages,
        ..Job::default()
    };
    let mut found = ["read miss", "write miss", "upgrade"].map(|name| (name, Samples::default()));
    for _ in 0..rounds {
        for ((name, samples), kind) in found.iter_mut().zip([Kind::Read, Kind::Write, Kind::Write])
        {
            native.run(1, job(Kind::Write))?;
            if *name == "upgrade" {
                native.run(0, job(Kind::Read))?;
            }
            native.start(0, job(kind))?;
            let done = native.wait(0)?;
            ensure!(done.samples.len() as u64 == pages, "{} samples", done.samples.len());
            samples.extend(&Samples::from_cycles(&done.samples, cycles_per_ns()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_every_round_gives_a_sample() {
        for (name, samples) in measure(64, 3).unwrap() {
            assert_eq!(samples.summary().count, 192, "{name}");
        }
    }
}
