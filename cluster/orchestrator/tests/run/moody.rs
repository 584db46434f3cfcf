//! A store as leaders may have one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use store::{
    Candidate, CommitError, Key, Leader, Leadership, LocalWatcher, MemoryStore, Page, PageToken,
    Prefix, Read, RenewError, Revision, Store, StoreError, Txn, WatchError,
};
use tokio::time::sleep;

/// In memory, and as slow as is wanted.
#[derive(Clone, Default)]
pub(crate) struct Moody {
    store: MemoryStore,
    pub(crate) commit_ms: Arc<AtomicU64>,
    /// Another one leads.
    pub(crate) is_deposed: Arc<AtomicBool>,
    /// It has failed for good.
    pub(crate) has_ended: Arc<AtomicBool>,
    /// How often it was to forget, which it could not the first time.
    pub(crate) compactions: Arc<AtomicUsize>,
}

impl Store for Moody {
    type Watcher = LocalWatcher;

    async fn get(&self, key: &Key) -> Result<Read, StoreError> {
        self.store.get(key).await
    }

    async fn list(
        &self,
        prefix: &Prefix,
        limit: usize,
        token: Option<&PageToken>,
    ) -> Result<Page, StoreError> {
        self.store.list(prefix, limit, token).await
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, CommitError> {
        sleep(Duration::from_millis(self.commit_ms.load(Ordering::Relaxed))).await;
        self.store.commit(txn).await
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<LocalWatcher, WatchError> {
        self.store.watch(prefix, after).await
    }

    async fn compact(&self, upto: Revision) -> Result<(), StoreError> {
        if self.compactions.fetch_add(1, Ordering::SeqCst) == 0 {
            return Err(StoreError::Unavailable("not now".to_owned()));
        }
        self.store.compact(upto).await
    }

    async fn campaign(&self, candidate: &Candidate) -> Result<Leadership, StoreError> {
        if self.has_ended.load(Ordering::Relaxed) {
            return Err(StoreError::Ended("it could not be synced".to_owned()));
        }
        self.store.campaign(candidate).await
    }

    async fn renew(&self, leadership: &Leadership) -> Result<(), RenewError> {
        if self.is_deposed.load(Ordering::Relaxed) {
            return Err(RenewError::Deposed(leadership.term()));
        }
        self.store.renew(leadership).await
    }

    async fn resign(&self, leadership: Leadership) -> Result<(), StoreError> {
        self.store.resign(leadership).await
    }

    async fn leader(&self) -> Result<Option<Leader>, StoreError> {
        self.store.leader().await
    }
}
