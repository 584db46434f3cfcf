//! The threads that work on an image's requests.

use super::ImageOptions;
use super::access::{self, Access, Gate};
use super::failures::Failures;
use super::fenced::Fenced;
use super::file::{self, ImageError, Opened};
use super::guard::Guard;
use super::ring::Ring;
use super::ring_file::RingFile;
use crate::back_end::{DiskDone, DiskReply, DiskRequest};
use crossbeam_channel as blocking;
use imago::{FormatAccess, Storage};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc as opening;
use std::thread::{self, JoinHandle};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::LocalSet;

/// Requests that wait for a thread; one more fails. Front ends bound theirs far below.
const WAITING_MAX: usize = 16 * 1024;
/// Requests that a ring's thread works on at a time.
const TASKS_MAX: u32 = 128;
/// Threads where there is no ring.
const THREADS: usize = 4;

/// What the opened image is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) bytes: u64,
    pub(super) block_bytes: u32,
}

impl Facts {
    fn of<S: Storage>(access: &FormatAccess<S>) -> Self {
        let block = u32::try_from(access.req_align()).unwrap_or(4096);
        Self { bytes: access.size(), block_bytes: block.clamp(512, 4096) }
    }
}

/// A request and its answer, which is a failure when nobody gives another: the thread may end.
struct Job {
    request: DiskRequest,
    answer: Answer,
}

struct Answer(Option<DiskDone>);

impl Answer {
    fn give(mut self, reply: DiskReply) {
        if let Some(done) = self.0.take() {
            done(reply);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done(DiskReply::Failed);
        }
    }
}

#[derive(Debug)]
enum Queue {
    Ring(mpsc::Sender<Job>),
    Threads(blocking::Sender<Job>),
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("request", &self.request).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct Engine {
    /// Nothing once it ends.
    queue: Option<Queue>,
    threads: Vec<JoinHandle<()>>,
    failures: Arc<Failures>,
}

impl Engine {
    /// Opens the image on the threads that will work on it.
    pub(super) fn start(
        options: &ImageOptions,
        opened: Opened,
        guard: &Arc<Guard>,
    ) -> Result<(Self, Facts), ImageError> {
        match options.ring.then(|| Ring::new(Arc::clone(guard))) {
            Some(Ok(ring)) => Self::with_ring(options, opened, ring, guard),
            _ => {
                let direct = options.direct;
                let open = move |other| file::open_other(&other, direct)?.plain();
                let gate = Gate::new(options, guard, open);
                let writable = opened.writable;
                let storage = opened.plain().map_err(|source| wrong(options, source))?;
                Self::with_threads(options, storage, writable, gate)
            }
        }
    }

    fn with_ring(
        options: &ImageOptions,
        opened: Opened,
        ring: Ring,
        guard: &Arc<Guard>,
    ) -> Result<(Self, Facts), ImageError> {
        let writable = opened.writable;
        let (jobs, queue) = mpsc::channel(WAITING_MAX);
        let (opening, result) = opening::channel();
        let failures = Arc::new(Failures::of(options));
        let (copy, shared, guard) = (options.clone(), Arc::clone(&failures), Arc::clone(guard));
        let open = move |ring: &Arc<Ring>| open_on_ring(copy, opened, Arc::clone(ring), guard);
        let run = move || run_ring((open, shared), ring, queue, (&opening, writable));
        let thread = spawn(options, 0, run)?;
        let engine = Self { queue: Some(Queue::Ring(jobs)), threads: vec![thread], failures };
        let gone = || io::Error::other("its I/O thread has ended");
        let facts = result.recv().unwrap_or_else(|_| Err(gone()));
        Ok((engine, facts.map_err(|source| wrong(options, source))?))
    }

    /// Works on any storage by threads that wait.
    pub(super) fn with_threads<S: Storage + 'static>(
        options: &ImageOptions,
        storage: S,
        writable: bool,
        gate: Gate<S>,
    ) -> Result<(Self, Facts), ImageError> {
        let no_thread = |source| ImageError::Thread { path: options.path.clone(), source };
        let opening = runtime().map_err(no_thread)?;
        let access = opening.block_on(access::open(storage, options.format, writable, gate));
        let access = access.map_err(|source| wrong(options, source))?;
        let facts = Facts::of(&access);
        let access = Arc::new(Access::new(access));
        let failures = Arc::new(Failures::of(options));
        let (jobs, queue) = blocking::bounded(WAITING_MAX);
        let mut engine = Self { queue: Some(Queue::Threads(jobs)), threads: Vec::new(), failures };
        for index in 0..THREADS {
            let (runtime, access) = (runtime().map_err(no_thread)?, Arc::clone(&access));
            let (queue, failures) = (queue.clone(), Arc::clone(&engine.failures));
            let run = move || run_thread(&runtime, (&access, &failures), &queue, writable);
            engine.threads.push(spawn(options, index, run)?);
        }
        Ok((engine, facts))
    }

    pub(super) fn has_ring(&self) -> bool {
        matches!(self.queue, Some(Queue::Ring(_)))
    }

    /// Whether requests may wait for room.
    pub(super) fn may_wait(&self, may: bool) {
        self.failures.may_wait(may);
    }

    /// Queues a request; it fails at once when the queue is full.
    pub(super) fn submit(&self, request: DiskRequest, done: DiskDone) {
        let job = Job { request, answer: Answer(Some(done)) };
        // A job that is refused answers when it is dropped.
        match &self.queue {
            Some(Queue::Ring(jobs)) => drop(jobs.try_send(job)),
            Some(Queue::Threads(jobs)) => drop(jobs.try_send(job)),
            None => drop(job),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.may_wait(false);
        drop(self.queue.take());
        for thread in self.threads.drain(..) {
            // A panic there was reported by the panic hook; nothing is left to undo.
            let _ = thread.join();
        }
    }
}

fn wrong(options: &ImageOptions, source: io::Error) -> ImageError {
    ImageError::Format { path: options.path.clone(), format: options.format, source }
}

fn spawn(
    options: &ImageOptions,
    index: usize,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, ImageError> {
    let no_thread = |source| ImageError::Thread { path: options.path.clone(), source };
    thread::Builder::new().name(format!("disk-{index}")).spawn(run).map_err(no_thread)
}

pub(super) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_io().enable_time().build()
}

/// The thread with the ring: opens the image, says how that went, and works until the queue ends.
fn run_ring<O: Future<Output = io::Result<FormatAccess<Fenced<RingFile>>>>>(
    (open, failures): (impl FnOnce(&Arc<Ring>) -> O, Arc<Failures>),
    ring: Ring,
    queue: mpsc::Receiver<Job>,
    (opening, writable): (&opening::Sender<io::Result<Facts>>, bool),
) {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            // Nobody waits any more when this fails.
            let _ = opening.send(Err(error));
            return;
        }
    };
    let (tasks, ring) = (LocalSet::new(), Arc::new(ring));
    let work = async {
        match open(&ring).await {
            Ok(access) => {
                let _ = opening.send(Ok(Facts::of(&access)));
                let access = Rc::new(Access::new(access));
                serve(access, failures, queue, writable).await;
            }
            Err(error) => {
                let _ = opening.send(Err(error));
            }
        }
    };
    // The ring's own tasks end only with an error, on which all operations would hang: then the
    // requests are dropped, which answers them, and those that come find the queue closed.
    tasks.block_on(&runtime, race(work, ring.submit_started(), ring.reap_completed()));
}

/// Runs until the work is done, or the ring is broken.
async fn race(
    work: impl Future<Output = ()>,
    submit: impl Future<Output = io::Error>,
    reap: impl Future<Output = io::Error>,
) {
    let (mut work, mut submit, mut reap) = (pin!(work), pin!(submit), pin!(reap));
    std::future::poll_fn(|context| {
        let broken = reap.as_mut().poll(context).is_ready();
        let ended = work.as_mut().poll(context).is_ready();
        // Last, so that what the work has just started goes along.
        let broken = submit.as_mut().poll(context).is_ready() || broken;
        if ended || broken { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

async fn open_on_ring(
    options: ImageOptions,
    opened: Opened,
    ring: Arc<Ring>,
    guard: Arc<Guard>,
) -> io::Result<FormatAccess<Fenced<RingFile>>> {
    let (writable, direct) = (opened.writable, options.direct);
    let shared = Arc::clone(&ring);
    let gate = Gate::new(&options, &guard, move |other| {
        RingFile::new(Arc::clone(&shared), file::open_other(&other, direct)?)
    });
    let storage = RingFile::new(ring, opened)?;
    access::open(storage, options.format, writable, gate).await
}

/// Works on requests, many at a time.
async fn serve<S: Storage + 'static>(
    access: Rc<Access<S>>,
    failures: Arc<Failures>,
    mut queue: mpsc::Receiver<Job>,
    writable: bool,
) {
    let room = Arc::new(Semaphore::new(TASKS_MAX as usize));
    while let Some(Job { request, answer }) = queue.recv().await {
        // Nobody closes the semaphore. A permit comes back even from a task that panics.
        let permit = Arc::clone(&room).acquire_owned().await;
        let (access, failures) = (Rc::clone(&access), Arc::clone(&failures));
        tokio::task::spawn_local(async move {
            let reply = access::perform(&access, &failures, request).await;
            drop(permit);
            answer.give(reply);
        });
    }
    // All tasks have ended when all permits are here.
    let _ = room.acquire_many(TASKS_MAX).await;
    if writable {
        // Nobody is left to be told; what was to be durable was flushed by the guest.
        let _ = access.flush().await;
    }
}

fn run_thread<S: Storage + 'static>(
    runtime: &Runtime,
    (access, failures): (&Access<S>, &Failures),
    queue: &blocking::Receiver<Job>,
    writable: bool,
) {
    for Job { request, answer } in queue {
        answer.give(runtime.block_on(access::perform(access, failures, request)));
    }
    if writable {
        // As above. Each thread does it; the last one finds all requests done.
        let _ = runtime.block_on(access.flush());
    }
}
