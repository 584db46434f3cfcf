//! Calls of etcd: each within its time, and again on another member where that is safe.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::connection::{Connected, Connection};
use super::options::Names;
use super::proto::kv_client::KvClient;
use super::proto::{
    CompactionRequest, KeyValue, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use super::status::{Meaning, meaning, text};
use crate::error::StoreError;
use crate::ids::Revision;

/// A page of the largest values, with room to spare.
const ANSWER_BYTES_MAX: usize = 48 << 20;
/// Before the same is asked of another member.
const PAUSE: Duration = Duration::from_millis(50);

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It has surely not happened.
    NotDone(Meaning, String),
    /// Nobody knows.
    Unknown(String),
}

impl Failure {
    pub(super) fn text(self) -> String {
        match self {
            Self::NotDone(_, text) | Self::Unknown(text) => text,
        }
    }
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) connection: Connection,
    pub(super) names: Names,
    pub(super) timeout: Duration,
}

impl Client {
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    async fn connected(&self, deadline: Instant) -> Result<Connected, Failure> {
        let connected = self.connection.get(deadline).await;
        connected.map_err(|why| Failure::NotDone(Meaning::Lost, why))
    }

    /// Calls once.
    pub(super) async fn once<T>(
        &self,
        connected: &Connected,
        until: Instant,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        match timeout_at(until, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => match meaning(&status) {
                Meaning::Lost => {
                    self.connection.failed(connected).await;
                    Err(Failure::Unknown(text(&status)))
                }
                known => Err(Failure::NotDone(known, text(&status))),
            },
            Err(_) => {
                self.connection.failed(connected).await;
                Err(Failure::Unknown("no answer in time".to_owned()))
            }
        }
    }

    /// Calls again where nobody knows, for calls that may happen twice. Half of the time is for the first member.
    pub(super) async fn again<T, F>(&self, call: impl Fn(Channel) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = self.deadline();
        loop {
            let connected = self.connected(deadline).await?;
            let until = deadline.min(Instant::now() + self.timeout / 2);
            let answer = self.once(&connected, until, call(connected.channel.clone())).await;
            match answer {
                Err(Failure::Unknown(_)) if Instant::now() + PAUSE < deadline => {
                    sleep(PAUSE.mul_f64(fastrand::f64() + 0.5)).await;
                }
                answer => return answer,
            }
        }
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        let request = &request;
        let call = |channel| async move { kv(channel).range(request.clone()).await };
        self.again(call).await
    }

    /// The key of whoever leads, and the newest revision.
    pub(super) async fn leader_key(&self) -> Result<(Option<KeyValue>, Revision), StoreError> {
        let request = RangeRequest { key: self.names.leader(), ..RangeRequest::default() };
        let unavailable = |failure: Failure| StoreError::Unavailable(failure.text());
        let response = self.range(request).await.map_err(unavailable)?;
        let revision = header_revision(response.header.map(|header| header.revision))?;
        Ok((response.kvs.into_iter().next(), revision))
    }

    /// Commits once.
    pub(super) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Failure> {
        let deadline = self.deadline();
        let connected = self.connected(deadline).await?;
        let mut client = kv(connected.channel.clone());
        self.once(&connected, deadline, client.txn(request)).await
    }

    pub(super) async fn compact(&self, revision: i64) -> Result<(), Failure> {
        let request = CompactionRequest { revision, physical: false };
        let call = |channel| async move { kv(channel).compact(request).await };
        self.again(call).await.map(drop)
    }
}

fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

/// The revision that an answer names.
pub(super) fn header_revision(revision: Option<i64>) -> Result<Revision, StoreError> {
    revision
        .map_or_else(|| Err(StoreError::Corrupt("an answer without a revision".to_owned())), known)
}

/// A revision of etcd.
pub(super) fn known(revision: i64) -> Result<Revision, StoreError> {
    let number = u64::try_from(revision).ok().filter(|number| *number > 0);
    number.map(Revision).ok_or_else(|| StoreError::Corrupt(format!("revision {revision}")))
}

/// A revision for etcd; no real one is too large.
pub(super) fn number(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}
