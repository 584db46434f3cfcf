//! Workers that do jobs: vCPUs of one VM, vCPUs of several slices, or threads of this process.
//!
//! ```text
//!   WorkerPool::start --job--> worker's thread: does it, notes when it began and ended --Done--> WorkerPool::wait
//! ```

use crate::noise;
use crate::placement::{self, Place};
use anyhow::{Context, Result, anyhow};
use crossbeam_channel::{Receiver, Sender, bounded};
use microguest::Job;
use microguest::job::now;
use serde::{Deserialize, Serialize};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// No job takes longer.
const LIMIT: Duration = Duration::from_secs(120);

/// What a job left: itself, the samples it took, and when it was done.
#[derive(Clone, Debug)]
pub struct Done {
    /// The job with its results.
    pub job: Job,
    /// Times in cycles.
    pub samples: Vec<u32>,
    /// When.
    pub span: Span,
}

/// When a job was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The host's time-stamp counter when the worker began; of all workers of a machine on one scale.
    pub began: u64,
    /// The same when it ended.
    pub ended: u64,
    /// Seconds in between that the worker's thread waited for its core.
    pub waited: f64,
}

/// Workers that do jobs, by number from 0.
pub trait WorkerPool {
    /// Gives a worker a job without waiting for it.
    ///
    /// # Errors
    /// No such worker, or it has failed.
    fn start(&mut self, worker: usize, job: Job) -> Result<()>;

    /// Waits for the job that was started last.
    ///
    /// # Errors
    /// The worker has failed, or takes too long.
    fn wait(&mut self, worker: usize) -> Result<Done>;

    /// Gives every worker a job, the n-th worker the n-th, and waits for all.
    ///
    /// # Errors
    /// As for [`Self::start`] and [`Self::wait`].
    fn together(&mut self, jobs: &[Job]) -> Result<Vec<Done>> {
        for (worker, job) in jobs.iter().enumerate() {
            self.start(worker, *job)?;
        }
        (0..jobs.len()).map(|worker| self.wait(worker)).collect()
    }
}

/// Cycles from the first that began to the last that ended.
#[must_use]
pub fn cycles(done: &[Done]) -> u64 {
    let began = done.iter().map(|done| done.span.began).min().unwrap_or(0);
    let ended = done.iter().map(|done| done.span.ended).max().unwrap_or(0);
    ended.saturating_sub(began)
}

/// What a worker answers to a job.
pub(crate) type Answer = Result<Done>;

/// A thread that does jobs.
#[derive(Debug)]
pub(crate) struct Worker {
    jobs: Option<Sender<Job>>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread. `work` does a job; a failure of it is the last thing that the worker does.
    pub(crate) fn start(
        name: String,
        place: Place,
        mut work: impl FnMut(Job) -> Answer + Send + 'static,
    ) -> Result<Self> {
        let (jobs, orders) = bounded::<Job>(1);
        let (results, answers) = bounded(1);
        let thread = Builder::new().name(name).spawn(move || {
            placement::settle(place);
            for job in orders {
                let answer = work(job);
                let failed = answer.is_err();
                if results.send(answer).is_err() || failed {
                    return;
                }
            }
        })?;
        Ok(Self { jobs: Some(jobs), answers, thread: Some(thread) })
    }

    pub(crate) fn give(&self, job: Job) -> Result<()> {
        let sender = self.jobs.as_ref().context("a worker that ends")?;
        sender.send(job).map_err(|_| anyhow!("the worker has ended"))
    }

    pub(crate) fn answer(&self) -> Answer {
        self.answers.recv_timeout(LIMIT).context("the job does not end")?
    }

    /// Lets the thread end when it has done what it has.
    pub(crate) fn dismiss(&mut self) {
        self.jobs = None;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.dismiss();
        // A thread that panicked has said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Does something and notes when.
pub(crate) fn spanned<T>(action: impl FnOnce() -> T) -> (T, Span) {
    let (waited, began) = (noise::waited(), now());
    let result = action();
    let ended = now();
    (result, Span { began, ended, waited: noise::waited() - waited })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_go_from_the_first_begin_to_the_last_end() {
        let span = |began, ended| Span { began, ended, waited: 0.0 };
        let done = |span| Done { job: Job::default(), samples: Vec::new(), span };
        assert_eq!(
            cycles(&[(100, 250), (90, 200), (120, 240)].map(|(a, b)| done(span(a, b)))),
            160
        );
        assert_eq!(cycles(&[]), 0);
    }

    #[test]
    fn worker_ends_after_a_failure() {
        let work = |job: Job| {
            let done = Done { job, samples: Vec::new(), span: Span::default() };
            if job.rounds == 0 { Err(anyhow!("nothing to do")) } else { Ok(done) }
        };
        let worker = Worker::start("test".into(), Place::Anywhere, work).unwrap();
        worker.give(Job { rounds: 3, ..Job::default() }).unwrap();
        assert_eq!(worker.answer().unwrap().job.rounds, 3);
        worker.give(Job::default()).unwrap();
        assert_eq!(worker.answer().unwrap_err().to_string(), "nothing to do");
        assert!(worker.answer().is_err(), "nobody is there any more");
    }
}
