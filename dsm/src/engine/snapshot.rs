//! Snapshots of what this slice has, read while the guest runs.
//!
//! ```text
//!   Handle::protect, the guest runs --> a little each turn, and a rest as long --> all protected, what is stored to again and again
//!   at rest: Handle::freeze --> SnapshotReader, for a thread of its own; the guest goes on
//!      stores, and pages that go, are copied first ([`crate::mapping`]) --> all read, or dropped --> given back, a little each turn
//! ```

use super::command::Command;
use super::event_loop::Engine;
use super::handle::Handle;
use super::snapshot_error::SnapshotError;
use crate::error::EngineError;
use crate::snapshot::{Frozen, SnapshotReader};
use crossbeam_channel::{Sender, bounded};
use dsm_protocol::saved::Here;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked for what has been read.
const LOOK_NS: u64 = 2_000_000;

/// Until it is tried again, while a former snapshot is given back.
const AGAIN: Duration = Duration::from_millis(5);

impl Handle {
    /// Protects all memory that the guest may write, while it runs. What it stores to meanwhile is protected once more by
    /// [`Self::freeze`]. What the former snapshot has left is given back first, and memory that is loaded comes first.
    ///
    /// # Errors
    /// The former snapshot is being read, or the engine does not answer within `limit`; then it is protected no longer.
    pub fn protect(&self, limit: Duration) -> Result<(), SnapshotError> {
        let end = Instant::now() + limit;
        let mut refused = SnapshotError::NoAnswer;
        loop {
            let (reply, answer) = bounded(1);
            self.post(Command::Protect { reply });
            let left = end.saturating_duration_since(Instant::now());
            match answer.recv_timeout(left) {
                Ok(Err(error @ (SnapshotError::Busy | SnapshotError::Loading(_)))) => {
                    refused = error;
                    if left.is_zero() {
                        return Err(refused);
                    }
                    thread::sleep(AGAIN);
                }
                Ok(answer) => return answer,
                Err(_) => {
                    self.unprotect();
                    return Err(refused);
                }
            }
        }
    }

    /// Freezes these pages: what they are now can be read from now on. The engine must be at rest; when the guest goes on, each is
    /// copied before it changes.
    ///
    /// # Errors
    /// Memory is not protected, something is under way, or the engine does not answer within `limit`.
    pub fn freeze(&self, here: Here, limit: Duration) -> Result<SnapshotReader, SnapshotError> {
        let (reply, answer) = bounded(1);
        self.post(Command::Freeze { here, reply });
        answer.recv_timeout(limit).unwrap_or(Err(SnapshotError::NoAnswer))
    }

    /// There will be no snapshot.
    pub fn unprotect(&self) {
        self.post(Command::Unprotect);
    }
}

impl Engine {
    /// Begins to protect all memory.
    pub(super) fn begin_protection(&mut self, reply: Sender<Result<(), SnapshotError>>) {
        let loaded = self.store.ram.loaded();
        if loaded.left > 0 {
            // To protect it, it would all have to come at once, on this thread.
            let _ = reply.send(Err(SnapshotError::Loading(loaded)));
        } else if self.store.begin_protection() {
            self.protecting = Some(reply);
        } else {
            let _ = reply.send(Err(SnapshotError::Busy));
        }
    }

    /// Protects a little more, or gives a little back.
    pub(super) fn protect_on(&mut self) -> Result<(), EngineError> {
        if self.store.protection.is_none() {
            return Ok(());
        }
        let begin = self.now();
        self.store.stores_go_on(begin)?;
        if self.store.protection.as_ref().is_none_or(|at| begin < at.next_ns()) {
            return Ok(());
        }
        let node = &self.node;
        let protected = self.store.protect_on(false, &|gfn| node.access(gfn));
        if let Err(error) = protected {
            self.give_up_snapshot(&error);
        }
        let complete = self.store.protection.as_ref().is_none_or(|at| at.is_complete());
        if let Some(reply) = self.protecting.take_if(|_| complete) {
            // Whoever asked may have given up, and says so.
            let _ = reply.send(Ok(()));
        }
        let node = &self.node;
        self.store.unprotect_on(&|gfn| node.access(gfn))?;
        let end = self.now();
        self.store.protection.iter_mut().for_each(|at| at.rest_after(begin, end));
        Ok(())
    }

    /// The kernel refuses to protect memory: there is no snapshot, and the guest runs on.
    fn give_up_snapshot(&mut self, error: &EngineError) {
        let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        tracing::warn!("memory cannot be protected for a snapshot: {error}: {cause}");
        self.store.end_protection();
        if let Some(reply) = self.protecting.take() {
            let _ = reply.send(Err(SnapshotError::Refused));
        }
    }

    /// When there is something to be done about it.
    pub(super) fn protection_due(&self) -> Option<u64> {
        let protection = self.store.protection.as_ref()?;
        Some(if protection.is_busy() { protection.next_ns() } else { self.now() + LOOK_NS })
    }

    /// Freezes what this slice has.
    pub(crate) fn freeze(&mut self, here: &Here) -> Result<SnapshotReader, SnapshotError> {
        if let Some(unrest) = self.unrest() {
            return Err(SnapshotError::NotAtRest(unrest));
        }
        if !self.store.protection.as_ref().is_some_and(|at| at.may_freeze()) {
            return Err(SnapshotError::NotProtected);
        }
        let ram = Arc::clone(&self.store.ram);
        let end = here.frames.last().map_or(0, |range| range.end);
        let frozen = Arc::new(Frozen::new(ram, &here.frames, end));
        let node = &self.node;
        let done = self.store.freeze(Arc::clone(&frozen), &here.replicas, &|gfn| node.access(gfn));
        if let Err(error) = done {
            self.give_up_snapshot(&error);
            return Err(SnapshotError::Refused);
        }
        Ok(SnapshotReader::new(frozen, &here.frames))
    }
}
