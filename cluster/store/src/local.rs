//! A machine that many tasks share: what stores in memory and in a file have in common.
//!
//! ```text
//!   commits ──> Machine ── revision, perhaps not in the file yet
//!                  │ publish
//!                  v
//!   readers <── visible ──signal──> watchers, each with a cursor of its own in the one history
//! ```
//! A watcher has no queue. One that is too slow falls out of the history, and is told.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::entry::{Notice, Page, PageToken, Read};
use crate::error::{RenewError, StoreError, WatchError};
use crate::ids::Revision;
use crate::key::{Key, Prefix};
use crate::lease::{BootTime, Candidate, Leader, Leadership};
use crate::machine::{Held, Limits, Machine};
use crate::store::Watch;

/// A watcher that hears of nothing is told so after so many commits.
const PROGRESS_EVERY: u64 = 1000;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) machine: Machine,
    /// The newest revision that is durable. Nobody is told of a later one.
    visible: Revision,
    /// Why there is nothing more.
    failed: Option<Arc<str>>,
}

/// A machine and who waits for it.
#[derive(Debug)]
pub(crate) struct Local {
    state: Mutex<State>,
    /// Something is visible, or somebody resigned, or it failed.
    signal: watch::Sender<()>,
    watchers: AtomicUsize,
    limits: Limits,
}

impl Local {
    pub(crate) fn new(machine: Machine, limits: Limits) -> Self {
        let visible = machine.revision();
        Self {
            state: Mutex::new(State { machine, visible, failed: None }),
            signal: watch::Sender::new(()),
            watchers: AtomicUsize::new(0),
            limits,
        }
    }

    /// The machine is changed step by step, and no step panics half done.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that the machine has is durable.
    pub(crate) fn publish(&self, state: &mut State) {
        state.visible = state.machine.revision();
        self.wake();
    }

    pub(crate) fn wake(&self) {
        self.signal.send_replace(());
    }

    /// There is nothing more, for this reason; the first one counts.
    pub(crate) fn fail(&self, why: &str) {
        self.lock().failed.get_or_insert_with(|| why.into());
        self.wake();
    }

    fn alive(&self) -> Result<MutexGuard<'_, State>, String> {
        let state = self.lock();
        match &state.failed {
            Some(why) => Err(why.to_string()),
            None => Ok(state),
        }
    }

    /// Why there is nothing more, if it is so.
    pub(crate) fn end(&self) -> Option<StoreError> {
        self.alive().err().map(StoreError::Ended)
    }

    pub(crate) fn get(&self, key: &Key) -> Result<Read, StoreError> {
        let state = self.alive().map_err(StoreError::Ended)?;
        Ok(state.machine.get(key, state.visible))
    }

    pub(crate) fn list(
        &self,
        prefix: &Prefix,
        limit: usize,
        token: Option<&PageToken>,
    ) -> Result<Page, StoreError> {
        let state = self.alive().map_err(StoreError::Ended)?;
        state.machine.list(prefix, limit, token, state.visible)
    }

    pub(crate) fn leader(&self) -> Result<Option<Leader>, StoreError> {
        let state = self.alive().map_err(StoreError::Ended)?;
        Ok(state.machine.leader(BootTime::now()))
    }

    pub(crate) fn renew(&self, leadership: &Leadership) -> Result<(), RenewError> {
        let asked = BootTime::now();
        let mut state = self.alive().map_err(RenewError::Unavailable)?;
        if !state.machine.renew(asked, leadership.term()) {
            return Err(RenewError::Deposed(leadership.term()));
        }
        leadership.renewed(asked);
        Ok(())
    }

    pub(crate) fn resign(&self, leadership: &Leadership) -> Result<(), StoreError> {
        leadership.ended();
        self.alive().map_err(StoreError::Ended)?.machine.resign(leadership.term());
        self.wake();
        Ok(())
    }

    /// Waits for the end of the lease, or for somebody to resign.
    pub(crate) async fn until_free(&self, held: Held) {
        let mut signal = self.signal.subscribe();
        // It may have been given up before this task listened.
        let free = || self.lock().machine.leader(BootTime::now()).is_none();
        while !free() {
            let left = BootTime::now().until(held.until).max(Duration::from_millis(1));
            tokio::select! {
                _ = signal.changed() => {}
                () = tokio::time::sleep(left) => return,
            }
        }
    }

    pub(crate) fn watch(
        self: &Arc<Self>,
        prefix: &Prefix,
        after: Revision,
    ) -> Result<LocalWatcher, WatchError> {
        let state = self.alive().map_err(WatchError::Unavailable)?;
        let oldest = state.machine.compacted();
        if after < oldest {
            return Err(WatchError::Compacted { after, oldest });
        }
        if after > state.visible {
            return Err(WatchError::Future { after, newest: state.visible });
        }
        drop(state);
        let count = self.watchers.fetch_add(1, Ordering::AcqRel);
        let watcher = LocalWatcher {
            local: Arc::clone(self),
            prefix: prefix.clone(),
            seen: after,
            told: after,
            signal: self.signal.subscribe(),
        };
        // It is counted, and is not any more when it is dropped.
        if count >= self.limits.watchers_max {
            Err(WatchError::TooMany(count))
        } else {
            Ok(watcher)
        }
    }
}

/// Checks that a candidate may lead, for a store whose leases are as long as they are asked for.
pub(crate) fn checked(candidate: &Candidate) -> Result<&Candidate, StoreError> {
    candidate.check().map(|()| candidate)
}

/// Who hears of the changes of a store in memory or in a file.
#[derive(Debug)]
pub struct LocalWatcher {
    local: Arc<Local>,
    prefix: Prefix,
    /// Nothing up to here is left to tell.
    seen: Revision,
    /// What it was told last.
    told: Revision,
    signal: watch::Receiver<()>,
}

impl LocalWatcher {
    fn look(&mut self) -> Result<Option<Notice>, WatchError> {
        self.signal.borrow_and_update();
        let state = self.local.alive().map_err(WatchError::Unavailable)?;
        let visible = state.visible;
        let change = state.machine.change(&self.prefix, self.seen, visible);
        drop(state);
        match change {
            Err(_) => Err(WatchError::Slow { heard: self.told }),
            Ok(Some(batch)) => {
                self.seen = batch.revision;
                self.told = batch.revision;
                Ok(Some(Notice::Batch(batch)))
            }
            Ok(None) => {
                self.seen = self.seen.max(visible);
                let due = self.seen.0 - self.told.0 >= PROGRESS_EVERY;
                Ok(due.then(|| {
                    self.told = self.seen;
                    Notice::Progress(self.seen)
                }))
            }
        }
    }
}

impl Watch for LocalWatcher {
    async fn next(&mut self) -> Result<Notice, WatchError> {
        loop {
            if let Some(notice) = self.look()? {
                return Ok(notice);
            }
            // The other end is in `local`.
            let _ = self.signal.changed().await;
        }
    }
}

impl Drop for LocalWatcher {
    fn drop(&mut self) {
        self.local.watchers.fetch_sub(1, Ordering::AcqRel);
    }
}
