//! The workloads of the microguest as threads of an ordinary process, for comparison: the same
//! code, the same clock, memory of the same kind (a memfd in pages of 4 KiB), and no VM.
#![expect(unsafe_code, reason = "a job names its memory by address")]
// UNSAFETY: a job is bounded by the memory before it runs, and the threads end before the memory does.

use crate::placement::Place;
use crate::worker_pool::{Answer, Done, Worker, WorkerPool, spanned};
use anyhow::{Context, Result, bail, ensure};
use dsm::GuestRam;
use microguest::layout::{SAMPLES, SHARED};
use microguest::{Job, run};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads that wait for jobs, and their memory, whose addresses in jobs are those of a guest: from
/// [`SHARED`] on.
#[derive(Debug)]
pub struct Native {
    threads: Vec<Worker>,
}

impl Native {
    /// Threads at these places, with so many pages of memory.
    ///
    /// # Errors
    /// There is no memory, or no thread can be started.
    pub fn new(pages: u64, places: &[Place]) -> Result<Self> {
        let first = SHARED / 4096;
        let ram = Arc::new(GuestRam::new(std::slice::from_ref(&(first..first + pages)))?);
        Self::over(&ram, places)
    }

    /// Threads at these places, over memory from [`SHARED`] on whose faults somebody else answers.
    ///
    /// # Errors
    /// No thread can be started, or the memory lies elsewhere.
    pub fn over(ram: &Arc<GuestRam>, places: &[Place]) -> Result<Self> {
        let [(SHARED, host, bytes)] = ram.slots()[..] else {
            bail!("memory that does not lie from {SHARED:#x} on");
        };
        let (host, pages) = (u64::try_from(host)?, bytes / 4096);
        let start = |(number, place): (usize, &Place)| {
            let (keep, samples) = (Arc::clone(ram), (0..SAMPLES / 2).map(|_| AtomicU64::new(0)));
            let samples: Vec<AtomicU64> = samples.collect();
            Worker::start(format!("native{number}"), *place, move |job| {
                // Lives as long as this thread does.
                let _keep = &keep;
                one(job, host, pages, &samples)
            })
        };
        let threads = places.iter().enumerate().map(start).collect::<Result<_>>()?;
        Ok(Self { threads })
    }

    /// Runs a job to its end.
    ///
    /// # Errors
    /// As for [`WorkerPool::start`] and [`WorkerPool::wait`].
    pub fn run(&mut self, thread: usize, job: Job) -> Result<Done> {
        self.start(thread, job)?;
        self.wait(thread)
    }
}

impl WorkerPool for Native {
    fn start(&mut self, worker: usize, job: Job) -> Result<()> {
        self.threads.get(worker).context("no such thread")?.give(job)
    }

    fn wait(&mut self, worker: usize) -> Result<Done> {
        self.threads.get(worker).context("no such thread")?.answer()
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        self.threads.iter_mut().for_each(Worker::dismiss);
    }
}

/// Runs a job on memory at `host`, which stands for [`SHARED`].
fn one(job: Job, host: u64, pages: u64, samples: &[AtomicU64]) -> Answer {
    let bytes = job.pages.checked_mul(4096).context("a job with too many pages")?;
    let offset = if bytes == 0 { Some(0) } else { job.memory.checked_sub(SHARED) };
    let offset = offset.filter(|offset| offset.is_multiple_of(8));
    let end = offset.and_then(|offset| offset.checked_add(bytes));
    let fits = end.is_some_and(|end| end <= pages * 4096);
    ensure!(fits, "a job at {:#x}, {bytes} bytes, where there are {pages} pages", job.memory);
    let mut own = Job {
        memory: host + offset.unwrap_or(0),
        samples: u64::try_from(samples.as_ptr().expose_provenance())?,
        samples_max: SAMPLES,
        ..job
    };
    // SAFETY: the memory was just seen to be there, and all threads touch it by whole words; the samples
    // are this thread's alone.
    let ((), span) = spanned(|| unsafe { run(&mut own) });
    let taken = usize::try_from(own.taken.min(SAMPLES))?;
    let halves = samples.iter().flat_map(|pair| {
        let pair = pair.load(Ordering::Relaxed).to_le_bytes();
        let [a, b, c, d, e, f, g, h] = pair;
        [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
    });
    let samples = halves.take(taken).collect();
    Ok(Done { job: Job { memory: job.memory, ..own }, samples, span })
}

#[cfg(test)]
mod tests {
    use super::*;
    use microguest::Kind;

    fn job(kind: Kind) -> Job {
        Job { kind: kind as u64, memory: SHARED, pages: 64, rounds: 64, ..Job::default() }
    }

    #[test]
    fn one_thread_reads_what_the_other_wrote() {
        let mut native = Native::new(64, &[Place::Anywhere; 2]).unwrap();
        let done = native.run(1, job(Kind::Write)).unwrap();
        assert_eq!((done.job.count, done.samples.len()), (64, 64));
        assert!(done.samples.iter().all(|cycles| *cycles > 0));
        assert_eq!(native.run(0, job(Kind::Read)).unwrap().job.sum, 7 * 64);
        let scan = Job { stride: 1, rounds: 1, ..job(Kind::Scan) };
        assert_eq!(native.run(0, scan).unwrap().job.sum, 7 * 64);
    }

    #[test]
    fn jobs_outside_the_memory_are_refused() {
        let outside = [
            Job { pages: 65, ..job(Kind::Write) },
            Job { memory: SHARED + 4096, ..job(Kind::Write) },
            Job { memory: SHARED - 4096, ..job(Kind::Write) },
            Job { memory: SHARED + 4, pages: 1, ..job(Kind::Write) },
            Job { pages: u64::MAX, ..job(Kind::Write) },
        ];
        for job in outside {
            let mut native = Native::new(64, &[Place::Anywhere]).unwrap();
            assert!(native.run(0, job).is_err(), "{job:?}");
        }
    }

    #[test]
    fn threads_take_turns() {
        let mut native = Native::new(1, &[Place::Anywhere; 2]).unwrap();
        let turns = |own| Job { own, all: 2, pages: 1, cycles: u64::MAX, ..job(Kind::PingPong) };
        let done = native.together(&[turns(0), turns(1)]).unwrap();
        assert!(done.iter().all(|done| done.job.count == 64 && done.samples.len() == 63));
    }
}
