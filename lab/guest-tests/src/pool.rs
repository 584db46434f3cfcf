//! One worker process per CPU, forked once and given jobs through shared memory.
//!
//! A fork costs hundreds of page faults over a DSM, so the workers outlive the tests. The runner
//! never takes part in a test: it posts a job to some of the workers and sleeps until all replied,
//! one died, or the time limit passed. In the last two cases every worker is killed and the pool
//! is built anew, so that a hang in one test is a failure of that test alone.
//!
//! ```text
//! idle --post(seq+1, futex wake)--> running --reply(done = seq, futex wake of the board)--> idle
//!   running --limit or death of any of these workers--> killed --start--> idle
//! ```
#![expect(unsafe_code, reason = "shared slots and job pointers")]
// UNSAFETY: views a mapping as slots, and carries function pointers through it.

use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::affinity::{Cpu, MOST_CPUS};
use crate::arena::{Arena, PAGE};
use crate::pipes::Pipes;
use crate::sys::{self, Ended, Forked, Pid, Sharing};

/// Numbers that go with a job.
pub(crate) type Args = [u64; 4];
/// Work for one worker. An error text becomes the detail of the failed test.
pub(crate) type Job = fn(&Env<'_>) -> Result<()>;

const MOST_TEXT: usize = 512;
const VALUES: usize = 8;
/// Looks at the job word before an idle worker goes to sleep.
const IDLE_LOOKS: u32 = 20_000;

/// One page per worker: the job from the runner, the reply from the worker.
#[repr(C, align(4096))]
struct Slot {
    seq: AtomicU32,
    done: AtomicU32,
    job: AtomicUsize,
    rank: AtomicUsize,
    ranks: AtomicUsize,
    args: [AtomicU64; 4],
    values: [AtomicU64; VALUES],
    failed: AtomicU32,
    text_len: AtomicUsize,
    text: [AtomicU32; MOST_TEXT / 4],
    members: [AtomicUsize; MOST_CPUS],
    pids: [AtomicU32; MOST_CPUS],
}

const _: () = assert!(size_of::<Slot>() == PAGE, "a slot is one page");

/// What a job sees.
pub(crate) struct Env<'a> {
    slot: &'static Slot,
    /// The shared area.
    pub(crate) arena: Arena,
    /// Pipes that all workers share.
    pub(crate) pipes: &'a Pipes,
    /// Place of this worker among those of the job, from 0.
    pub(crate) rank: usize,
    /// How many workers do the job.
    pub(crate) ranks: usize,
    /// Numbers from the runner.
    pub(crate) args: Args,
}

impl Env<'_> {
    /// CPU of a worker of the job.
    pub(crate) fn cpu(&self, rank: usize) -> usize {
        self.slot.members[rank].load(Ordering::Relaxed)
    }

    /// Process id of a worker of the job.
    pub(crate) fn pid(&self, rank: usize) -> Pid {
        Pid::try_from(self.slot.pids[rank].load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// An argument as a size.
    pub(crate) fn size(&self, index: usize) -> usize {
        usize::try_from(self.args[index]).unwrap_or(usize::MAX)
    }

    /// Hands a number back to the runner.
    pub(crate) fn give(&self, index: usize, value: u64) {
        self.slot.values[index].store(value, Ordering::Relaxed);
    }
}

/// Numbers that one worker gave back.
pub(crate) type Values = [u64; VALUES];

struct Worker {
    pid: Pid,
}

/// The workers.
pub(crate) struct Pool {
    cpus: Vec<Cpu>,
    workers: Vec<Option<Worker>>,
    slots: &'static [Slot],
    replies: &'static AtomicU32,
    pipes: Pipes,
    deadline: Instant,
    limit: Duration,
    /// The area that jobs share.
    pub(crate) arena: Arena,
}

impl Pool {
    /// Maps the shared memory and forks a worker for each CPU. The caller has one thread.
    pub(crate) fn new(cpus: &[Cpu]) -> Result<Self> {
        let count = cpus.len().min(MOST_CPUS);
        // The last slot is the board with the count of replies.
        let base = sys::map((count + 1) * PAGE, Sharing::Shared, None).context("cannot map")?;
        // SAFETY: page-aligned, zeroed (valid for atomics), of this length, never unmapped.
        let slots: &'static [Slot] =
            unsafe { slice::from_raw_parts(base.as_ptr().cast(), count + 1) };
        sys::block_signal(libc::SIGUSR1).context("cannot block SIGUSR1")?;
        let mut pool = Self {
            cpus: cpus[..count].to_vec(),
            workers: (0..count).map(|_| None).collect(),
            slots: &slots[..count],
            replies: &slots[count].done,
            pipes: Pipes::new().context("cannot make pipes")?,
            deadline: Instant::now(),
            limit: Duration::from_secs(120),
            arena: Arena::new().context("cannot map the arena")?,
        };
        for index in 0..count {
            pool.start(index)?;
        }
        Ok(pool)
    }

    /// Sets the time at which [`Pool::run`] gives up.
    pub(crate) fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
        self.deadline = Instant::now() + limit;
    }

    /// Forks the worker of one CPU.
    pub(crate) fn start(&mut self, index: usize) -> Result<()> {
        let slot = &self.slots[index];
        let last = slot.seq.load(Ordering::Relaxed);
        match sys::fork().with_context(|| format!("cannot fork a worker for cpu {index}"))? {
            Forked::Parent(pid) => self.workers[index] = Some(Worker { pid }),
            Forked::Child => self.serve(index, last),
        }
        Ok(())
    }

    /// Kills the worker of one CPU.
    pub(crate) fn retire(&mut self, index: usize) {
        if let Some(worker) = self.workers[index].take() {
            put_down(worker.pid);
        }
    }

    /// Runs a job on some workers (indexes of CPUs) and waits for all replies.
    ///
    /// # Errors
    /// The text of the first worker that failed, a worker that died, or the time limit.
    pub(crate) fn run(&mut self, members: &[usize], job: Job, args: Args) -> Result<Vec<Values>> {
        for &index in members {
            if self.workers[index].is_none() {
                self.start(index)?;
            }
        }
        self.arena.clear_variables();
        let before = self.replies.load(Ordering::Acquire);
        for (rank, &index) in members.iter().enumerate() {
            self.post(members, rank, index, job, args);
        }
        let awaited = before.wrapping_add(u32::try_from(members.len())?);
        if let Err(error) = self.await_replies(members, awaited) {
            for index in 0..self.workers.len() {
                self.retire(index);
            }
            self.pipes.drain();
            return Err(error);
        }
        members.iter().map(|&index| self.reply(index)).collect()
    }

    fn post(&self, members: &[usize], rank: usize, index: usize, job: Job, args: Args) {
        let slot = &self.slots[index];
        slot.job.store(job as *const () as usize, Ordering::Relaxed);
        slot.rank.store(rank, Ordering::Relaxed);
        slot.ranks.store(members.len(), Ordering::Relaxed);
        for (to, from) in slot.args.iter().zip(args) {
            to.store(from, Ordering::Relaxed);
        }
        for (rank, &member) in members.iter().enumerate() {
            slot.members[rank].store(self.cpus[member].id, Ordering::Relaxed);
            let pid = self.workers[member].as_ref().map_or(0, |worker| worker.pid);
            slot.pids[rank].store(pid.unsigned_abs(), Ordering::Relaxed);
        }
        slot.seq.fetch_add(1, Ordering::AcqRel);
        sys::futex_wake(&slot.seq);
    }

    fn await_replies(&self, members: &[usize], awaited: u32) -> Result<()> {
        loop {
            let now = self.replies.load(Ordering::Acquire);
            if now == awaited {
                return Ok(());
            }
            for &index in members {
                let Some(worker) = &self.workers[index] else { continue };
                if let Some(ended) = sys::wait_for(worker.pid, false).unwrap_or(None) {
                    bail!("worker of cpu {} died: {ended:?}", self.cpus[index].id);
                }
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let silent = |index: &&usize| {
                    let slot = &self.slots[**index];
                    slot.done.load(Ordering::Relaxed) != slot.seq.load(Ordering::Relaxed)
                };
                let silent: Vec<_> =
                    members.iter().filter(silent).map(|&index| self.cpus[index].id).collect();
                bail!("timeout after {} s, no reply from cpus {silent:?}", self.limit.as_secs());
            }
            sys::futex_wait(self.replies, now, left.min(Duration::from_secs(1)));
        }
    }

    fn reply(&self, index: usize) -> Result<Values> {
        let slot = &self.slots[index];
        if slot.failed.load(Ordering::Relaxed) == 0 {
            return Ok(
                [0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| slot.values[i].load(Ordering::Relaxed))
            );
        }
        let len = slot.text_len.load(Ordering::Relaxed).min(MOST_TEXT);
        let words = slot.text.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let text: Vec<u8> = words.take(len).collect();
        bail!("cpu {}: {}", self.cpus[index].id, String::from_utf8_lossy(&text));
    }

    /// The life of a worker.
    fn serve(&self, index: usize, mut last: u32) -> ! {
        let cpu = self.cpus[index].id;
        let ready = sys::die_with_parent().and_then(|()| sys::lead_group());
        let pinned = ready.and_then(|()| sys::pin_to(cpu));
        let slot = &self.slots[index];
        loop {
            // The runner sits on the first CPU, which must not be kept busy by waiting.
            let looks = if index == 0 { 1 } else { IDLE_LOOKS };
            await_change(&slot.seq, last, looks);
            last = slot.seq.load(Ordering::Acquire);
            let result = match &pinned {
                Ok(()) => panic::catch_unwind(AssertUnwindSafe(|| self.work(slot)))
                    .unwrap_or_else(|_| Err(anyhow!("the worker panicked"))),
                Err(error) => Err(anyhow!("cannot set up the worker of cpu {cpu}: {error}")),
            };
            answer(slot, result);
            slot.done.store(last, Ordering::Release);
            self.replies.fetch_add(1, Ordering::AcqRel);
            sys::futex_wake(self.replies);
        }
    }

    fn work(&self, slot: &'static Slot) -> Result<()> {
        // SAFETY: the runner, of which this process is a fork, stored a pointer of type Job there.
        let job = unsafe { mem::transmute::<usize, Job>(slot.job.load(Ordering::Relaxed)) };
        let env = Env {
            slot,
            arena: self.arena,
            pipes: &self.pipes,
            rank: slot.rank.load(Ordering::Relaxed),
            ranks: slot.ranks.load(Ordering::Relaxed),
            args: [0, 1, 2, 3].map(|i: usize| slot.args[i].load(Ordering::Relaxed)),
        };
        job(&env)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for index in 0..self.workers.len() {
            self.retire(index);
        }
    }
}

fn answer(slot: &Slot, result: Result<()>) {
    slot.failed.store(u32::from(result.is_err()), Ordering::Relaxed);
    let Err(error) = result else { return };
    let text = format!("{error:#}").into_bytes();
    slot.text_len.store(text.len(), Ordering::Relaxed);
    for (word, bytes) in slot.text.iter().zip(text.chunks(4)) {
        let mut four = [0; 4];
        four[..bytes.len()].copy_from_slice(bytes);
        word.store(u32::from_le_bytes(four), Ordering::Relaxed);
    }
}

fn await_change(word: &AtomicU32, old: u32, looks: u32) {
    for look in 1..=looks {
        if word.load(Ordering::Acquire) != old {
            return;
        }
        std::hint::spin_loop();
        if look % 1024 == 0 {
            sys::yield_cpu();
        }
    }
    while word.load(Ordering::Acquire) == old {
        sys::futex_wait(word, old, Duration::from_secs(3600));
    }
}

/// Kills a worker with its own children and reaps it; gives up on one that not even SIGKILL ends within 5 s.
fn put_down(pid: Pid) {
    // A failure means that it is gone already, which the wait below tells as well.
    let _ = sys::kill(pid, libc::SIGKILL);
    let _ = sys::kill(-pid, libc::SIGKILL);
    for _ in 0..500 {
        match sys::wait_for(pid, false) {
            Ok(None) => thread::sleep(Duration::from_millis(10)),
            Ok(Some(Ended::Exit(_) | Ended::Signal(_))) | Err(_) => return,
        }
    }
}
