//! A store in etcd, for several orchestrators.
//!
//! | here | in etcd |
//! |---|---|
//! | object `vms/a` | key `ROOT/objects/vms/a` |
//! | revision | revision; those of other keys of the same etcd count too, so some are missing |
//! | transaction | `Txn`: comparisons of `mod_revision`, and of the leader's `create_revision` |
//! | term | `create_revision` of the key `ROOT/leader`, which lives as long as its lease |
//! | watcher | `Watch` with fragments |
//!
//! Only what is used of etcd's protocol is in `proto/etcd.proto`. All reads are linearisable.

mod client;
mod connection;
mod convert;
mod election;
mod fragments;
mod options;
mod status;
mod watch;

mod proto;

use std::sync::Arc;
use std::time::Duration;

pub use self::options::{EtcdOptions, EtcdOptionsError, EtcdTls};
pub use self::watch::EtcdWatcher;

use self::client::{Client, Failure, header_revision, number};
use self::connection::Connection;
use self::options::Names;
use self::proto::RangeRequest;
use self::status::Meaning;
use crate::entry::{PAGE_MAX, Page, PageToken, Read};
use crate::error::{CommitError, RenewError, StoreError, WatchError};
use crate::ids::Revision;
use crate::key::{Key, Prefix};
use crate::lease::{Candidate, Leader, Leadership};
use crate::store::Store;
use crate::txn::Txn;

/// A store in etcd.
#[derive(Clone, Debug)]
pub struct EtcdStore {
    client: Arc<Client>,
    queue_max: usize,
    outage_max: Duration,
}

impl EtcdStore {
    /// One below the root. It connects when it is first used, so that etcd may start later.
    ///
    /// # Errors
    /// Where the options are wrong.
    pub fn new(options: &EtcdOptions) -> Result<Self, EtcdOptionsError> {
        let client = Client {
            connection: Connection::new(options::endpoints(options)?),
            names: Names::new(&options.root)?,
            timeout: options.timeout,
        };
        let (queue_max, outage_max) = (options.queue_max, options.outage_max);
        Ok(Self { client: Arc::new(client), queue_max, outage_max })
    }

    /// Why a read at a revision failed.
    async fn read_error(&self, failure: Failure, asked: Revision) -> StoreError {
        match failure {
            // etcd says which one is the oldest only to watchers.
            Failure::NotDone(Meaning::Compacted, _) => {
                StoreError::Compacted { asked, oldest: asked.next() }
            }
            Failure::NotDone(Meaning::Future, _) => match self.client.leader_key().await {
                Ok((_, newest)) => StoreError::Future { asked, newest },
                Err(error) => error,
            },
            failure => StoreError::Unavailable(failure.text()),
        }
    }
}

impl Store for EtcdStore {
    type Watcher = EtcdWatcher;

    async fn get(&self, key: &Key) -> Result<Read, StoreError> {
        let names = &self.client.names;
        let request = RangeRequest { key: names.object(key.as_str()), ..RangeRequest::default() };
        let unavailable = |failure: Failure| StoreError::Unavailable(failure.text());
        let response = self.client.range(request).await.map_err(unavailable)?;
        let revision = header_revision(response.header.map(|header| header.revision))?;
        let entry = response.kvs.into_iter().next().map(|value| convert::entry(names, value));
        Ok(Read { revision, entry: entry.transpose()? })
    }

    async fn list(
        &self,
        prefix: &Prefix,
        limit: usize,
        token: Option<&PageToken>,
    ) -> Result<Page, StoreError> {
        if limit == 0 || limit > PAGE_MAX {
            return Err(StoreError::PageSize(limit));
        }
        let names = &self.client.names;
        let key = match token {
            None => names.object(prefix.as_str()),
            // The first key after it.
            Some(token) => [names.object(token.after.as_str()), vec![0]].concat(),
        };
        let asked = token.map_or(Revision::ZERO, |token| token.revision);
        let request = RangeRequest {
            key,
            range_end: names.end(prefix.as_str()),
            limit: i64::try_from(limit).unwrap_or(i64::MAX),
            revision: number(asked.0),
            keys_only: false,
        };
        let response = match self.client.range(request).await {
            Ok(response) => response,
            Err(failure) => return Err(self.read_error(failure, asked).await),
        };
        let newest = header_revision(response.header.map(|header| header.revision))?;
        let revision = token.map_or(newest, |token| token.revision);
        let values = response.kvs.into_iter();
        let entries: Vec<_> =
            values.map(|value| convert::entry(names, value)).collect::<Result<_, _>>()?;
        let last = entries.last().filter(|_| response.more);
        let next = last.map(|entry| PageToken { revision, after: entry.key.clone() });
        Ok(Page { revision, entries, next })
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, CommitError> {
        txn.check()?;
        match self.client.txn(convert::request(&self.client.names, &txn)).await {
            Ok(response) => convert::result(&txn, response),
            Err(Failure::NotDone(Meaning::Full, text)) => Err(CommitError::Full(text)),
            Err(Failure::NotDone(_, text)) => Err(CommitError::Unavailable(text)),
            Err(Failure::Unknown(text)) => Err(CommitError::Unknown(text)),
        }
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<EtcdWatcher, WatchError> {
        // etcd may miss a deletion in just the revision that it has compacted to, so this is asked before.
        let request = RangeRequest {
            key: self.client.names.leader(),
            revision: number(after.0.max(1)),
            keys_only: true,
            ..RangeRequest::default()
        };
        if let Err(failure) = self.client.range(request).await {
            return Err(match self.read_error(failure, after).await {
                StoreError::Compacted { oldest, .. } => WatchError::Compacted { after, oldest },
                StoreError::Future { newest, .. } => WatchError::Future { after, newest },
                error => WatchError::Unavailable(error.to_string()),
            });
        }
        let client = Arc::clone(&self.client);
        Ok(watch::start(client, prefix.clone(), after, self.queue_max, self.outage_max))
    }

    async fn compact(&self, upto: Revision) -> Result<(), StoreError> {
        match self.client.compact(number(upto.0)).await {
            // It has been.
            Ok(()) | Err(Failure::NotDone(Meaning::Compacted, _)) => Ok(()),
            Err(failure) => Err(self.read_error(failure, upto).await),
        }
    }

    async fn campaign(&self, candidate: &Candidate) -> Result<Leadership, StoreError> {
        election::campaign(&self.client, candidate).await
    }

    async fn renew(&self, leadership: &Leadership) -> Result<(), RenewError> {
        election::renew(&self.client, leadership).await
    }

    async fn resign(&self, leadership: Leadership) -> Result<(), StoreError> {
        election::resign(&self.client, &leadership).await
    }

    async fn leader(&self) -> Result<Option<Leader>, StoreError> {
        election::leader(&self.client).await
    }
}
