//! What a store is asked, whichever it is.
//!
//! All is asynchronous: who asks is a gRPC service on tokio, and one of the stores is behind a network. What blocks (a file) has a thread
//! of its own. Which store an orchestrator has is known when it starts, so it is generic over this trait, and no call is boxed.
//!
//! ```text
//!   commit ──> Ok(revision)            all of it is written, and durable
//!         ├──> Unknown                 all or nothing: ask (request), before anything else is tried
//!         └──> any other error         nothing is written, and never will be
//! ```
//! Every history of commits and reads is linearisable: as if each had happened at one moment between its call and its answer.

use std::time::Duration;

use crate::entry::{Notice, Page, PageToken, Read};
use crate::error::{CommitError, Lost, RenewError, StoreError, WatchError};
use crate::ids::Revision;
use crate::key::{Key, Prefix};
use crate::lease::{BootTime, Candidate, Leader, Leadership};
use crate::txn::Txn;

/// Where the orchestrator's state is. Copies are one store.
pub trait Store: Clone + Send + Sync + 'static {
    /// What [`Store::watch`] gives.
    type Watcher: Watch;

    /// The newest state of one object.
    fn get(&self, key: &Key) -> impl Future<Output = Result<Read, StoreError>> + Send;

    /// At most `limit` objects below the prefix, in the order of keys. All pages that follow from the token show the state of the first.
    fn list(
        &self,
        prefix: &Prefix,
        limit: usize,
        token: Option<&PageToken>,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Writes all or nothing; the revision that it made, or the newest one if it had nothing to change.
    ///
    /// If the future is dropped before it is done, the result is unknown.
    fn commit(&self, txn: Txn) -> impl Future<Output = Result<Revision, CommitError>> + Send;

    /// Everything that changes below the prefix after a revision, in order, without a gap, each commit at once.
    fn watch(
        &self,
        prefix: &Prefix,
        after: Revision,
    ) -> impl Future<Output = Result<Self::Watcher, WatchError>> + Send;

    /// Forgets how objects were before a revision. Stores in memory and in a file do it by themselves too, within their limits.
    fn compact(&self, upto: Revision) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Waits until nobody else leads, and leads. The lease ends by itself if the future is dropped, or what it gives.
    fn campaign(
        &self,
        candidate: &Candidate,
    ) -> impl Future<Output = Result<Leadership, StoreError>> + Send;

    /// Begins the lease anew.
    fn renew(&self, leadership: &Leadership)
    -> impl Future<Output = Result<(), RenewError>> + Send;

    /// Leads no more, so that others need not wait for the end of the lease.
    fn resign(&self, leadership: Leadership)
    -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Who leads.
    fn leader(&self) -> impl Future<Output = Result<Option<Leader>, StoreError>> + Send;
}

/// Somebody who hears of changes.
pub trait Watch: Send {
    /// The next one. Nothing is lost if the future is dropped. After an error there is nothing more.
    fn next(&mut self) -> impl Future<Output = Result<Notice, WatchError>> + Send;
}

/// A lease is renewed so many times as often as it must be.
const RENEWALS: u32 = 4;

/// Renews the lease until it is lost. Whoever leads has this running, and stops when it ends.
pub async fn keep<S: Store>(store: &S, leadership: &Leadership) -> Lost {
    let tenure = leadership.tenure();
    let (term, lease) = (leadership.term(), leadership.lease());
    let step = lease / RENEWALS;
    loop {
        let left = BootTime::now().until(tenure.until());
        if left == Duration::ZERO {
            return Lost::Expired { term, lease };
        }
        tokio::time::sleep(step.min(left / 2).max(Duration::from_millis(1))).await;
        let left = BootTime::now().until(tenure.until());
        match tokio::time::timeout(left, store.renew(leadership)).await {
            Ok(Ok(())) => {}
            Ok(Err(RenewError::Deposed(term))) => {
                leadership.ended();
                return Lost::Deposed(term);
            }
            // There may be time for another try.
            Ok(Err(RenewError::Unavailable(error))) => {
                tracing::warn!(%term, error, "the lease of the leader was not renewed");
            }
            Err(_) => tracing::warn!(%term, "the lease of the leader was not renewed in time"),
        }
    }
}
