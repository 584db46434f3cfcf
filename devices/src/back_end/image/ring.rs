//! An `io_uring` whose operations are futures of one thread.
//!
//! ```text
//!  future: started --submit--> with the kernel --reap--> done --poll--> result
//!             |                    |
//!             |                    +--dropped: waits here until the kernel is done with the buffer
//!             +--the fence is over, or dropped: never gets there
//! ```
//! Operations of many tasks go to the kernel together, some time after they were started. So the fence is looked at
//! where that happens ([`Inner::submit`]), for each system call anew: an operation that changes the file is kept here
//! until a look right before the call finds the fence open. While it is late they stay here and the thread goes on, with reads as
//! well. When it is over they fail. Between look and call the entries are only copied into the ring.
#![expect(unsafe_code, reason = "submission queue entries name memory by address")]
// UNSAFETY: an entry's memory must stay until its completion. `Operation` borrows it for that long:
// it ends only with the completion, also when it is dropped early.

use super::fenced::Over;
use super::guard::{Guard, LOOK_AGAIN};
use crate::fence::{Fence, Standing};
use io_uring::{EnterFlags, IoUring, squeue::Entry};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::sleep;

const ENTRIES: u32 = 256;

/// An operation's place; its index is the entry's user data.
#[derive(Debug)]
enum Slot {
    Free,
    Waiting(Option<Waker>),
    Done(i32),
    /// It never came to the kernel: the fence was over.
    Refused,
}

/// Whether an operation is behind the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It changes nothing outside.
    Read,
    /// It changes the file, or what is durable of it.
    Change,
}

struct Inner {
    uring: IoUring,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Not with the kernel yet.
    reads: VecDeque<Entry>,
    changes: VecDeque<Entry>,
}

pub(super) struct Ring {
    inner: Mutex<Inner>,
    guard: Arc<Guard>,
    /// Rung when entries wait to be submitted, so that those of many tasks go together.
    started: Notify,
}

impl Ring {
    /// An error where the kernel has no `io_uring` or forbids it.
    pub(super) fn new(guard: Arc<Guard>) -> io::Result<Self> {
        let inner = Inner {
            uring: IoUring::new(ENTRIES)?,
            slots: Vec::new(),
            free: Vec::new(),
            reads: VecDeque::new(),
            changes: VecDeque::new(),
        };
        Ok(Self { inner: Mutex::new(inner), guard, started: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an operation; its result is that of the system call.
    ///
    /// # Safety
    /// The memory that the entry names is valid for `'a`, and nobody else uses it meanwhile.
    pub(super) unsafe fn start<'a>(&'a self, entry: Entry, effect: Effect) -> Operation<'a> {
        let mut inner = self.lock();
        let slot = inner.take_slot();
        let entry = entry.user_data(slot as u64);
        match effect {
            Effect::Read => inner.reads.push_back(entry),
            Effect::Change => inner.changes.push_back(entry),
        }
        drop(inner);
        self.started.notify_one();
        Operation { ring: self, slot: Some(slot), memory: PhantomData }
    }

    /// Submits what may be submitted. False: some of it waits for the fence.
    pub(super) fn submit(&self) -> io::Result<bool> {
        self.lock().submit(&self.guard)
    }

    /// Submits what tasks start, for ever.
    pub(super) async fn submit_started(&self) -> io::Error {
        loop {
            match self.submit() {
                Ok(true) => self.started.notified().await,
                Ok(false) => sleep(LOOK_AGAIN).await,
                Err(error) => return error,
            }
        }
    }

    /// The ring's descriptor, readable when operations are done.
    fn watch(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let inner = self.lock();
        // SAFETY: the ring keeps its descriptor open, and is locked here.
        let ring = unsafe { BorrowedFd::borrow_raw(inner.uring.as_raw_fd()) };
        let copy = ring.try_clone_to_owned()?;
        // SAFETY: the descriptor is open, and owned by what watches it.
        let watched = unsafe { AsyncFd::register_with_interest(copy, Interest::READABLE) };
        watched.map_err(io::Error::from)
    }

    /// Wakes tasks whose operations are done, for ever.
    pub(super) async fn reap_completed(&self) -> io::Error {
        let waited = match self.watch() {
            Ok(waited) => waited,
            Err(error) => return error,
        };
        loop {
            match waited.readable().await {
                Ok(mut ready) => {
                    self.lock().reap();
                    // What completes from here on makes it ready again.
                    ready.clear_ready();
                }
                Err(error) => return error,
            }
        }
    }
}

impl Inner {
    fn take_slot(&mut self) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() - 1
        });
        self.slots[slot] = Slot::Waiting(None);
        slot
    }

    fn free_slot(&mut self, slot: usize) {
        self.slots[slot] = Slot::Free;
        self.free.push(slot);
    }

    /// Gives the kernel what the fence lets through. False: some of it waits.
    fn submit(&mut self, guard: &Guard) -> io::Result<bool> {
        loop {
            let waits = !self.changes.is_empty();
            let standing = if waits { guard.look(Fence::now()) } else { Standing::Open };
            if standing == Standing::Over {
                while let Some(entry) = self.changes.pop_front() {
                    self.end(slot_of(entry.get_user_data()), Slot::Refused);
                }
            }
            let batch = self.fill(standing == Standing::Open);
            if batch.slots.is_empty() {
                return Ok(self.changes.is_empty());
            }
            self.enter(guard, &batch)?;
        }
    }

    /// Puts entries into the ring, which is empty.
    fn fill(&mut self, changes: bool) -> Batch {
        let mut batch = Batch { slots: Vec::new(), changes: false };
        let mut queue = self.uring.submission();
        while !queue.is_full() {
            let read = self.reads.pop_front();
            let change = || if changes { self.changes.pop_front() } else { None };
            batch.changes |= read.is_none();
            let Some(entry) = read.or_else(change) else { break };
            batch.slots.push(slot_of(entry.get_user_data()));
            // SAFETY: its memory outlives the operation, by the caller of `start`; and the operation ends only when
            // the kernel is done with the entry, or never gets it.
            let pushed = unsafe { queue.push(&entry) };
            debug_assert!(pushed.is_ok(), "there is room");
        }
        batch
    }

    /// Has the kernel take what is in the ring; the fence has just been looked at. On an error the ring must not be
    /// used any more: it holds entries that nobody may submit.
    fn enter(&mut self, guard: &Guard, batch: &Batch) -> io::Result<()> {
        loop {
            let result = self.uring.submit();
            let left = self.uring.submission().len();
            if left == 0 {
                return Ok(());
            }
            let error = match result {
                Err(error) if !passes(&error) => error,
                // It also stops at an entry that makes no sense, whose completion says so.
                _ => {
                    self.reap();
                    // Rare, so that the thread may sleep here: no entry can be taken out of the ring again.
                    if !batch.changes || guard.pass() {
                        continue;
                    }
                    Over::error(guard)
                }
            };
            for slot in batch.slots.iter().rev().take(left) {
                self.end(*slot, Slot::Refused);
            }
            return Err(error);
        }
    }

    /// Takes an entry back that the kernel has not got.
    fn withdraw(&mut self, slot: usize) -> bool {
        let before = self.reads.len() + self.changes.len();
        self.reads.retain(|entry| slot_of(entry.get_user_data()) != slot);
        self.changes.retain(|entry| slot_of(entry.get_user_data()) != slot);
        self.reads.len() + self.changes.len() < before
    }

    /// Ends an operation and wakes its task.
    fn end(&mut self, slot: usize, how: Slot) {
        let Some(slot) = self.slots.get_mut(slot) else { return };
        if let Slot::Waiting(Some(waker)) = std::mem::replace(slot, how) {
            waker.wake();
        }
    }

    fn reap(&mut self) {
        loop {
            while let Some(entry) = { self.uring.completion().next() } {
                self.end(slot_of(entry.user_data()), Slot::Done(entry.result()));
            }
            if !self.uring.submission().cq_overflow() {
                return;
            }
            // The kernel keeps more completions than the ring has room for, until it is asked. It fails only when it is
            // interrupted.
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: there is no argument.
            let _ = unsafe { self.uring.submitter().enter::<()>(0, 0, flags, None) };
        }
    }

    /// The result of a finished operation, whose slot is free then.
    fn take_result(&mut self, slot: usize, guard: &Guard) -> Option<io::Result<usize>> {
        let result = match self.slots[slot] {
            Slot::Done(result) => {
                usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
            }
            Slot::Refused => Err(Over::error(guard)),
            Slot::Free | Slot::Waiting(_) => return None,
        };
        self.free_slot(slot);
        Some(result)
    }
}

/// True for an error after which the same call may succeed: it was interrupted, or completions must be taken first.
fn passes(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    matches!(code, Some(libc::EINTR | libc::EBUSY | libc::EAGAIN))
}

/// What is in the ring.
struct Batch {
    /// In their order.
    slots: Vec<usize>,
    /// Some of it changes something.
    changes: bool,
}

/// The slot that user data names. There is no slot of the highest number.
fn slot_of(user_data: u64) -> usize {
    usize::try_from(user_data).unwrap_or(usize::MAX)
}

/// An operation under way.
pub(super) struct Operation<'a> {
    ring: &'a Ring,
    /// Nothing once the result has been taken.
    slot: Option<usize>,
    memory: PhantomData<&'a mut [u8]>,
}

impl Future for Operation<'_> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(slot) = self.slot else {
            return Poll::Ready(Err(io::Error::other("the operation has ended")));
        };
        let mut inner = self.ring.lock();
        let Some(result) = inner.take_result(slot, &self.ring.guard) else {
            inner.slots[slot] = Slot::Waiting(Some(context.waker().clone()));
            return Poll::Pending;
        };
        drop(inner);
        self.slot = None;
        Poll::Ready(result)
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        let mut inner = self.ring.lock();
        if inner.withdraw(slot) {
            inner.free_slot(slot);
            return;
        }
        let flags = EnterFlags::GETEVENTS.bits();
        while inner.take_result(slot, &self.ring.guard).is_none() {
            // Submits nothing: who waits here has not looked at the fence.
            // SAFETY: there is no argument.
            let waited = unsafe { inner.uring.submitter().enter::<()>(0, 1, flags, None) };
            // An error other than an interruption would mean that the ring is gone with the kernel
            // still owning the buffer; then it is better to stay here than to free it.
            let _ = waited;
            inner.reap();
        }
    }
}

#[cfg(test)]
mod tests;
