//! A store that ends with the process: for tests and simulations, and what the others are compared with.

use std::sync::Arc;

use crate::entry::{Page, PageToken, Read};
use crate::error::{CommitError, RenewError, StoreError, WatchError};
use crate::ids::Revision;
use crate::key::{Key, Prefix};
use crate::lease::{BootTime, Candidate, Leader, Leadership};
use crate::local::{Local, LocalWatcher, checked};
use crate::machine::{Limits, Machine};
use crate::store::Store;
use crate::txn::Txn;

/// A store in memory.
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<Local>);

impl MemoryStore {
    /// An empty one.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self(Arc::new(Local::new(Machine::new(limits), limits)))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Store for MemoryStore {
    type Watcher = LocalWatcher;

    async fn get(&self, key: &Key) -> Result<Read, StoreError> {
        self.0.get(key)
    }

    async fn list(
        &self,
        prefix: &Prefix,
        limit: usize,
        token: Option<&PageToken>,
    ) -> Result<Page, StoreError> {
        self.0.list(prefix, limit, token)
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, CommitError> {
        let mut state = self.0.lock();
        let revision = state.machine.commit(BootTime::now(), &txn)?;
        if let Some(upto) = state.machine.excess() {
            // It is not newer than what was just committed.
            let _ = state.machine.compact(upto);
        }
        self.0.publish(&mut state);
        Ok(revision)
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<LocalWatcher, WatchError> {
        self.0.watch(prefix, after)
    }

    async fn compact(&self, upto: Revision) -> Result<(), StoreError> {
        let compacted = self.0.lock().machine.compact(upto);
        self.0.wake();
        compacted
    }

    async fn campaign(&self, candidate: &Candidate) -> Result<Leadership, StoreError> {
        let Candidate { lease, clock_error, .. } = *checked(candidate)?;
        loop {
            let asked = BootTime::now();
            let won = self.0.lock().machine.campaign(asked, candidate);
            match won {
                Ok(term) => return Ok(Leadership::new(term, 0, lease, clock_error, asked)),
                Err(held) => self.0.until_free(held).await,
            }
        }
    }

    async fn renew(&self, leadership: &Leadership) -> Result<(), RenewError> {
        self.0.renew(leadership)
    }

    async fn resign(&self, leadership: Leadership) -> Result<(), StoreError> {
        self.0.resign(&leadership)
    }

    async fn leader(&self) -> Result<Option<Leader>, StoreError> {
        self.0.leader()
    }
}
