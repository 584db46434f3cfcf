//! Slices that share memory: slice 0 in this process, each other one in a process of its own, as on
//! hosts of their own.
//!
//! In one process they would share an address space, and whatever one slice takes from its guest would
//! interrupt the cores of all.
//!
//! ```text
//!   Cluster::new: --fork--> child: Slice, then requests from its socket until that ends
//!        |                      ^
//!        +--- Request, Answer --+   (JSON, a line each)
//! ```
#![expect(unsafe_code, reason = "fork, and the end of a child with its parent")]
// UNSAFETY: the process has one thread when it forks.

use crate::plan::Plan;
use crate::slice::Slice;
use crate::worker_pool::{Done, Span, WorkerPool};
use anyhow::{Context, Result, anyhow, bail, ensure};
use dsm::{Report, TraceReport, Tracing};
use microguest::Job;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use transport::Transport;

/// No request takes longer.
const LIMIT: Duration = Duration::from_secs(130);
/// How long a thread that has ended may still be seen.
const LAST_MOMENT: Duration = Duration::from_millis(200);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Start(usize, Vec<u64>),
    Wait(usize),
    Report,
    SetTrace(Tracing),
    /// Others end from now on.
    ExpectEnd,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Started,
    Switched,
    Expecting,
    Done(Vec<u64>, Vec<u32>, Span),
    Report(Box<Report>),
    Failed(String),
}

/// A slice in another process.
#[derive(Debug)]
struct Remote {
    stream: BufReader<UnixStream>,
    process: libc::pid_t,
}

/// Slices that share memory.
#[derive(Debug)]
pub struct Cluster {
    own: Option<Slice>,
    others: Vec<Remote>,
    /// Slice, and number within it, of all vCPUs.
    vcpus: Vec<(usize, usize)>,
}

impl Cluster {
    /// Starts engines and vCPUs. The process must have no other thread.
    ///
    /// # Errors
    /// KVM, userfaultfd or the transport refuse.
    pub fn new(plan: &Plan<'_>) -> Result<Self> {
        alone()?;
        let count = u16::try_from(plan.homes.len())?;
        let mut ends: Vec<Option<Box<dyn Transport>>> =
            plan.carrier.mesh(count)?.into_iter().map(Some).collect();
        let by_slice = plan.places.iter().map(|places| places.len()).enumerate();
        let vcpus = by_slice.flat_map(|(slice, vcpus)| (0..vcpus).map(move |vcpu| (slice, vcpu)));
        let mut cluster = Self { own: None, others: Vec::new(), vcpus: vcpus.collect() };
        for local in 1..count {
            cluster.others.push(fork(plan, local, &mut ends)?);
            ends[usize::from(local)] = None;
        }
        let end = ends.first_mut().and_then(Option::take).context("a plan without slices")?;
        cluster.own = Some(Slice::new(plan, 0, end)?);
        for slice in 1..plan.homes.len() {
            // Its guest runs once it answers.
            cluster.report(slice)?;
        }
        Ok(cluster)
    }

    /// Gives a vCPU of a slice a job without waiting for it.
    ///
    /// # Errors
    /// The slice has failed.
    pub fn start(&mut self, slice: usize, vcpu: usize, job: Job) -> Result<()> {
        match slice.checked_sub(1) {
            None => self.own()?.start(vcpu, job),
            Some(other) => match self.ask(other, &Request::Start(vcpu, words(&job)))? {
                Answer::Started => Ok(()),
                answer => bail!("slice {slice} answers {answer:?}"),
            },
        }
    }

    /// Waits for a job that was started.
    ///
    /// # Errors
    /// The slice has failed.
    pub fn wait(&mut self, slice: usize, vcpu: usize) -> Result<Done> {
        match slice.checked_sub(1) {
            None => self.own()?.wait(vcpu),
            Some(other) => match self.ask(other, &Request::Wait(vcpu))? {
                Answer::Done(words, samples, span) => Ok(Done { job: job(&words)?, samples, span }),
                answer => bail!("slice {slice} answers {answer:?}"),
            },
        }
    }

    /// Runs a job to its end.
    ///
    /// # Errors
    /// The slice has failed.
    pub fn run(&mut self, slice: usize, vcpu: usize, job: Job) -> Result<Done> {
        self.start(slice, vcpu, job)?;
        self.wait(slice, vcpu)
    }

    /// What the engine of a slice counted.
    ///
    /// # Errors
    /// The slice has failed.
    pub fn report(&mut self, slice: usize) -> Result<Report> {
        match slice.checked_sub(1) {
            None => self.own()?.report(),
            Some(other) => match self.ask(other, &Request::Report)? {
                Answer::Report(report) => Ok(*report),
                answer => bail!("slice {slice} answers {answer:?}"),
            },
        }
    }

    /// Faults of a slice that needed another.
    ///
    /// # Errors
    /// The slice has failed.
    pub fn faults(&mut self, slice: usize) -> Result<u64> {
        let faults = self.report(slice)?.faults;
        Ok(faults.read + faults.write + faults.upgrade)
    }

    /// Writes memory through slice 0's engine.
    ///
    /// # Errors
    /// No memory there, or the engine has failed.
    pub fn write(&self, address: u64, bytes: Vec<u8>) -> Result<()> {
        self.own()?.write(address, bytes)
    }

    /// Bytes of memory that slice 0 has mapped in huge pages.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn huge_bytes(&self) -> Result<u64> {
        self.own()?.huge_bytes()
    }

    /// What the engine of slice 0 knows of pages.
    ///
    /// # Errors
    /// The slice has failed.
    pub fn trace(&self) -> Result<TraceReport> {
        self.own()?.trace()
    }

    /// Switches the trace of all slices.
    ///
    /// # Errors
    /// A slice has failed.
    pub fn set_trace(&mut self, tracing: Tracing) -> Result<()> {
        for other in 0..self.others.len() {
            match self.ask(other, &Request::SetTrace(tracing))? {
                Answer::Switched => {}
                answer => bail!("slice {} answers {answer:?}", other + 1),
            }
        }
        self.own()?.set_trace(tracing)
    }

    fn own(&self) -> Result<&Slice> {
        self.own.as_ref().context("slice 0 is gone")
    }

    fn ask(&mut self, other: usize, request: &Request) -> Result<Answer> {
        let remote = self.others.get_mut(other).context("no such slice")?;
        send(remote.stream.get_mut(), request)?;
        let mut line = String::new();
        remote.stream.read_line(&mut line).context("wait for another slice")?;
        match serde_json::from_str(&line).context("another slice is gone")? {
            Answer::Failed(cause) => Err(anyhow!("slice {}: {cause}", other + 1)),
            answer => Ok(answer),
        }
    }
}

/// All vCPUs, slice by slice.
impl WorkerPool for Cluster {
    fn start(&mut self, worker: usize, job: Job) -> Result<()> {
        let (slice, vcpu) = *self.vcpus.get(worker).context("no such vCPU")?;
        Self::start(self, slice, vcpu, job)
    }

    fn wait(&mut self, worker: usize) -> Result<Done> {
        let (slice, vcpu) = *self.vcpus.get(worker).context("no such vCPU")?;
        Self::wait(self, slice, vcpu)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            own.expect_end();
        }
        for other in 0..self.others.len() {
            // One that has failed need not expect anything.
            let _ = self.ask(other, &Request::ExpectEnd);
        }
        for remote in self.others.drain(..) {
            // Closing is not enough: slices that were forked later hold this end, too. One that has ended needs none.
            let _ = remote.stream.get_ref().shutdown(Shutdown::Both);
            // SAFETY: a child of this process that nobody else waits for; no status wanted.
            unsafe { libc::waitpid(remote.process, std::ptr::null_mut(), 0) };
        }
        self.own = None;
    }
}

/// Makes sure that this process has one thread. One that was just joined may be seen for a moment.
pub(crate) fn alone() -> Result<()> {
    let start = Instant::now();
    loop {
        let threads = std::fs::read_dir("/proc/self/task").context("count threads")?.count();
        if threads == 1 {
            return Ok(());
        }
        let others = threads - 1;
        ensure!(start.elapsed() < LAST_MOMENT, "no other threads are wanted, not {others}");
        std::thread::yield_now();
    }
}

/// The order of a job as words, for its way to another process.
fn words(job: &Job) -> Vec<u64> {
    job.words().to_vec()
}

fn job(words: &[u64]) -> Result<Job> {
    Ok(Job::from_words(words.try_into().context("a job of another size")?))
}

fn send(stream: &mut UnixStream, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line).context("send to another slice")
}

fn fork(plan: &Plan<'_>, local: u16, ends: &mut [Option<Box<dyn Transport>>]) -> Result<Remote> {
    let (near, far) = UnixStream::pair().context("make a socket to another slice")?;
    near.set_read_timeout(Some(LIMIT))?;
    // SAFETY: this process has one thread, so the child may do what it likes.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()).context("fork"),
        0 => {
            drop(near);
            // SAFETY: plain arguments; the child ends when its parent does.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let end = ends[usize::from(local)].take();
            ends.fill_with(|| None);
            let code = match end.context("a transport").and_then(|end| child(plan, local, end, far))
            {
                Ok(()) => 0,
                Err(error) => {
                    eprintln!("slice {local}: {error:#}");
                    1
                }
            };
            // SAFETY: ends the child without what its parent would do at its end.
            unsafe { libc::_exit(code) }
        }
        process => Ok(Remote { stream: BufReader::new(near), process }),
    }
}

/// The other process: does what is asked until nobody asks any more.
fn child(plan: &Plan<'_>, local: u16, end: Box<dyn Transport>, stream: UnixStream) -> Result<()> {
    let slice = Slice::new(plan, local, end)?;
    let mut answers = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let answer = match serde_json::from_str(&line?)? {
            Request::Start(vcpu, words) => {
                job(&words).and_then(|job| slice.start(vcpu, job)).map(|()| Answer::Started)
            }
            Request::Wait(vcpu) => {
                let done = slice.wait(vcpu);
                done.map(|done| Answer::Done(words(&done.job), done.samples, done.span))
            }
            Request::Report => slice.report().map(|report| Answer::Report(Box::new(report))),
            Request::ExpectEnd => {
                slice.expect_end();
                Ok(Answer::Expecting)
            }
            Request::SetTrace(tracing) => slice.set_trace(tracing).map(|()| Answer::Switched),
        };
        let answer = answer.unwrap_or_else(|error| Answer::Failed(format!("{error:#}")));
        send(&mut answers, &answer)?;
    }
    Ok(())
}
