//! An `io_uring` whose operations are futures of one thread.
//!
//! ```text
//!  future: pushed --submit--> with the kernel --reap--> done --poll--> result
//!                                  |
//!                                  +--dropped: waits here until the kernel is done with the buffer
//! ```
#![expect(unsafe_code, reason = "submission queue entries name memory by address")]
// UNSAFETY: an entry's memory must stay until its completion. `Operation` borrows it for that long:
// it ends only with the completion, also when it is dropped early.

use io_uring::{IoUring, squeue::Entry};
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

const ENTRIES: u32 = 256;

/// An operation's place; its index is the entry's user data.
#[derive(Debug)]
enum Slot {
    Free,
    Waiting(Option<Waker>),
    Done(i32),
}

struct Inner {
    uring: IoUring,
    slots: Vec<Slot>,
    free: Vec<usize>,
}

pub(super) struct Ring {
    inner: Mutex<Inner>,
    /// Rung when entries wait to be submitted, so that those of many tasks go together.
    pushed: Notify,
}

impl Ring {
    /// An error where the kernel has no `io_uring` or forbids it.
    pub(super) fn new() -> io::Result<Self> {
        let inner = Inner { uring: IoUring::new(ENTRIES)?, slots: Vec::new(), free: Vec::new() };
        Ok(Self { inner: Mutex::new(inner), pushed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an operation; its result is that of the system call.
    ///
    /// # Safety
    /// The memory that the entry names is valid for `'a`, and nobody else uses it meanwhile.
    pub(super) unsafe fn start<'a>(&'a self, entry: Entry) -> io::Result<Operation<'a>> {
        let mut inner = self.lock();
        let slot = inner.take_slot();
        let entry = entry.user_data(slot as u64);
        // SAFETY: by the caller, the entry's memory outlives the operation, which is returned or, if
        // it is not pushed, never starts.
        while unsafe { inner.uring.submission().push(&entry) }.is_err() {
            if let Err(error) = inner.submit() {
                inner.free_slot(slot);
                return Err(error);
            }
        }
        drop(inner);
        self.pushed.notify_one();
        Ok(Operation { ring: self, slot: Some(slot), memory: PhantomData })
    }

    /// Submits what tasks push, for ever.
    pub(super) async fn submit_pushed(&self) -> io::Error {
        loop {
            self.pushed.notified().await;
            if let Err(error) = self.lock().submit() {
                return error;
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

    fn submit(&mut self) -> io::Result<()> {
        loop {
            match self.uring.submit() {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Completions must be taken first.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EAGAIN)) => {
                    self.reap();
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn reap(&mut self) {
        for entry in self.uring.completion() {
            let slot = usize::try_from(entry.user_data()).ok();
            let Some(slot) = slot.and_then(|slot| self.slots.get_mut(slot)) else { continue };
            if let Slot::Waiting(Some(waker)) = std::mem::replace(slot, Slot::Done(entry.result()))
            {
                waker.wake();
            }
        }
    }

    /// The result of a finished operation, whose slot is free then.
    fn take_result(&mut self, slot: usize) -> Option<i32> {
        let Slot::Done(result) = self.slots[slot] else { return None };
        self.free_slot(slot);
        Some(result)
    }
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
        let Some(result) = inner.take_result(slot) else {
            inner.slots[slot] = Slot::Waiting(Some(context.waker().clone()));
            return Poll::Pending;
        };
        drop(inner);
        self.slot = None;
        Poll::Ready(usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)))
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        let mut inner = self.ring.lock();
        while inner.take_result(slot).is_none() {
            // An error other than an interruption would mean that the ring is gone with the kernel
            // still owning the buffer; then it is better to stay here than to free it.
            let _ = inner.uring.submit_and_wait(1);
            inner.reap();
        }
    }
}
