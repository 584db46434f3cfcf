//! Clients that watch the VM: each has a bounded queue, and one that does not keep up is ended.
//!
//! ```text
//!   watch --snapshot, or what has changed since its token--> watching --change--> a place in its queue
//!                                                              |  \--no place--> slow: the queue is read, then SLOW_CONSUMER
//!                                                              +--the client goes, or the process ends--> gone
//! ```

use crate::problem::{Problem, status};
use control::v1::watch_vm_response::{Bookmark, Kind};
use control::v1::{Vm, WatchVmResponse};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_stream::Stream;
use tonic::Status;

/// Watchers at a time.
pub const WATCHERS_MAX: usize = 1024;
/// Changes that may wait for a client.
pub const QUEUE_MAX: usize = 32;
/// Between two bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(10);
const BOOKMARKS_MIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Watcher {
    queue: mpsc::Sender<WatchVmResponse>,
    slow: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Vm>,
    /// Grows by one with each change.
    revision: u64,
    all: BTreeMap<u64, Watcher>,
    next: u64,
    /// The process ends.
    over: bool,
}

/// All watchers. Clones are of the same.
#[derive(Clone, Debug)]
pub(crate) struct Watchers {
    state: Arc<Mutex<State>>,
    /// Tells a token of this process from those of others.
    process: u64,
    /// Somebody has begun to watch.
    begun: Arc<Notify>,
}

impl Watchers {
    pub(crate) fn new() -> Self {
        let process = RandomState::new().hash_one(0);
        Self { state: Arc::default(), process, begun: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn token(&self, revision: u64) -> String {
        format!("{:016x}-{revision}", self.process)
    }

    /// The revision in a token of this process.
    fn revision(&self, token: &str, newest: u64) -> Result<u64, Status> {
        let parts = token.split_once('-');
        let own = parts.filter(|(process, _)| *process == format!("{:016x}", self.process));
        let revision = own.and_then(|(_, revision)| revision.parse().ok());
        revision.filter(|revision| *revision <= newest).ok_or_else(|| {
            let text = "the token is of another process, or none: begin without one";
            status(&Problem::ResumeTokenExpired, text)
        })
    }

    /// Waits until somebody watches.
    pub(crate) async fn wanted(&self) {
        loop {
            let begun = self.begun.notified();
            if !self.state().all.is_empty() {
                return;
            }
            begun.await;
        }
    }

    /// How the VM stands now: whoever watches is told if that is another state.
    pub(crate) fn publish(&self, vm: Vm) {
        self.state().publish(vm, &|revision| self.token(revision));
    }

    /// A new watcher of a VM that stands like this.
    pub(crate) fn watch(
        &self,
        vm: Vm,
        token: &str,
        bookmarks: Option<Duration>,
    ) -> Result<Watch, Status> {
        let mut state = self.state();
        state.publish(vm.clone(), &|revision| self.token(revision));
        let since = match token {
            "" => None,
            token => Some(self.revision(token, state.revision)?),
        };
        if state.all.len() >= WATCHERS_MAX || state.over {
            let text = format!("{WATCHERS_MAX} clients watch already");
            return Err(status(&Problem::TooManyWatchers, &text));
        }
        let (queue, items) = mpsc::channel(QUEUE_MAX);
        let resume_token = self.token(state.revision);
        let first = match since {
            None => Some(Kind::Snapshot(vm)),
            Some(since) if since < state.revision => Some(Kind::Change(vm)),
            Some(_) => None,
        };
        if let Some(kind) = first {
            // The queue is new.
            let resume_token = resume_token.clone();
            let _ = queue.try_send(WatchVmResponse { kind: Some(kind), resume_token });
        }
        let (slow, number) = (Arc::new(AtomicBool::new(false)), state.next);
        state.next += 1;
        state.all.insert(number, Watcher { queue, slow: Arc::clone(&slow) });
        drop(state);
        self.begun.notify_waiters();
        let period = bookmarks.unwrap_or(BOOKMARKS).max(BOOKMARKS_MIN);
        let mut bookmarks = interval(period);
        bookmarks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        bookmarks.reset();
        Ok(Watch { items, bookmarks, slow, seen: resume_token, number, all: self.clone() })
    }

    /// The process ends: so do all watches, when their queues are read.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.over = true;
        state.all.clear();
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.state().all.len()
    }
}

impl State {
    fn publish(&mut self, vm: Vm, token: &dyn Fn(u64) -> String) {
        if self.last.as_ref() == Some(&vm) {
            return;
        }
        self.revision += 1;
        let resume_token = token(self.revision);
        let change = WatchVmResponse { kind: Some(Kind::Change(vm.clone())), resume_token };
        self.last = Some(vm);
        // Whoever has no place, or is gone, is none any more.
        self.all.retain(|_, watcher| match watcher.queue.try_send(change.clone()) {
            Ok(()) => true,
            Err(error) => {
                let full = matches!(error, mpsc::error::TrySendError::Full(_));
                watcher.slow.store(full, Ordering::SeqCst);
                false
            }
        });
    }
}

/// What a watcher reads.
#[derive(Debug)]
pub struct Watch {
    items: mpsc::Receiver<WatchVmResponse>,
    bookmarks: Interval,
    slow: Arc<AtomicBool>,
    /// The token of what was read last.
    seen: String,
    number: u64,
    all: Watchers,
}

impl Stream for Watch {
    type Item = Result<WatchVmResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.items.poll_recv(context) {
            Poll::Ready(Some(item)) => {
                self.bookmarks.reset();
                self.seen.clone_from(&item.resume_token);
                return Poll::Ready(Some(Ok(item)));
            }
            Poll::Ready(None) if self.slow.swap(false, Ordering::SeqCst) => {
                let text = format!("more than {QUEUE_MAX} changes have waited: watch again");
                return Poll::Ready(Some(Err(status(&Problem::SlowConsumer, &text))));
            }
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {}
        }
        if self.bookmarks.poll_tick(context).is_pending() {
            return Poll::Pending;
        }
        let (kind, resume_token) = (Some(Kind::Bookmark(Bookmark {})), self.seen.clone());
        Poll::Ready(Some(Ok(WatchVmResponse { kind, resume_token })))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.all.state().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests;
