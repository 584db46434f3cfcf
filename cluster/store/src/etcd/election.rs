//! Who leads: whoever has the one key `leader`, which lives as long as its lease.
//!
//! ```text
//!   key is there ──watch──> deleted
//!   no key ── lease ── txn: if there is none, put it under the lease ──> leads; term = the revision of that
//!      └── somebody else was first ── give the lease back, watch
//! ```
//! The revisions in which the key is made grow, so terms do, and a comparison with that revision is the fence of each write. A commit
//! whose result is unknown is looked up; if it comes later, its lease is over by then or soon, and nobody has been told of its term.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use super::client::{Client, Failure, known, number};
use super::proto::compare::{CompareTarget, TargetUnion};
use super::proto::event::EventType;
use super::proto::lease_client::LeaseClient;
use super::proto::request_op::Request;
use super::proto::{
    Compare, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest,
    RequestOp, TxnRequest,
};
use super::status::Meaning;
use super::watch;
use crate::error::{RenewError, StoreError};
use crate::ids::{Revision, Term};
use crate::lease::{BootTime, Candidate, Leader, Leadership};

/// It is looked again whether somebody leads, even if nothing was heard.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

fn unavailable(failure: Failure) -> StoreError {
    StoreError::Unavailable(failure.text())
}

fn lease(channel: Channel) -> LeaseClient<Channel> {
    LeaseClient::new(channel)
}

/// Whole seconds, at least as long.
fn seconds(lease: Duration) -> i64 {
    number(lease.as_secs() + u64::from(lease.subsec_nanos() > 0))
}

struct Granted {
    id: i64,
    lease: Duration,
    asked: BootTime,
}

async fn grant(client: &Client, seconds: i64) -> Result<Granted, StoreError> {
    let request = LeaseGrantRequest { ttl: seconds, id: 0 };
    // If it happens twice, one of the leases ends by itself.
    let call = |channel| async move {
        let asked = BootTime::now();
        lease(channel).lease_grant(request).await.map(|response| {
            let (metadata, granted, extensions) = response.into_parts();
            tonic::Response::from_parts(metadata, (asked, granted), extensions)
        })
    };
    let (asked, granted) = client.again(call).await.map_err(unavailable)?;
    if !granted.error.is_empty() || granted.ttl <= 0 {
        return Err(StoreError::Unavailable(format!("no lease: {}", granted.error)));
    }
    let lease = Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0));
    Ok(Granted { id: granted.id, lease, asked })
}

/// It may be over already.
async fn revoke(client: &Client, id: i64) -> Result<(), Failure> {
    let call =
        |channel| async move { lease(channel).lease_revoke(LeaseRevokeRequest { id }).await };
    match client.again(call).await {
        Ok(_) | Err(Failure::NotDone(Meaning::Refused, _)) => Ok(()),
        Err(failure) => Err(failure),
    }
}

pub(super) async fn campaign(client: &Client, who: &Candidate) -> Result<Leadership, StoreError> {
    who.check()?;
    loop {
        let (leader, revision) = client.leader_key().await?;
        if leader.is_some() {
            until_deleted(client, revision).await;
            continue;
        }
        let granted = grant(client, seconds(who.lease)).await?;
        if let Some(term) = take(client, who, &granted).await? {
            let Granted { id, lease, asked } = granted;
            return Ok(Leadership::new(term, id, lease, who.clock_error, asked));
        }
        // It ends by itself if this fails.
        let _ = revoke(client, granted.id).await;
    }
}

/// Makes the key, if there is none; the term then.
async fn take(
    client: &Client,
    who: &Candidate,
    granted: &Granted,
) -> Result<Option<Term>, StoreError> {
    let key = client.names.leader();
    let value = who.name.clone().into_bytes();
    let put = PutRequest { key: key.clone(), value, lease: granted.id };
    let absent = Compare {
        result: 0,
        target: CompareTarget::Create.into(),
        key,
        target_union: Some(TargetUnion::CreateRevision(0)),
    };
    let request = TxnRequest {
        compare: vec![absent],
        success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
        failure: Vec::new(),
    };
    match client.txn(request).await {
        Ok(response) if response.succeeded => {
            let revision = known(response.header.map_or(0, |header| header.revision))?;
            Ok(Some(Term(revision.0)))
        }
        Ok(_) => Ok(None),
        Err(Failure::Unknown(_)) => {
            let ours = |value: &KeyValue| value.lease == granted.id;
            let (leader, _) = client.leader_key().await?;
            let created = leader.filter(ours).map(|value| known(value.create_revision));
            Ok(created.transpose()?.map(|revision| Term(revision.0)))
        }
        Err(failure) => Err(unavailable(failure)),
    }
}

/// Waits until the key is deleted, or may be: it is looked again in any case.
async fn until_deleted(client: &Client, seen: Revision) {
    let deleted = async {
        let opened = watch::open(client, client.names.leader(), Vec::new(), seen.next()).await;
        let Ok(mut stream) = opened else { return sleep(PAUSE).await };
        while let Ok(Some(response)) = stream.message().await {
            let mut kinds = response.events.iter().map(|event| event.r#type());
            if kinds.any(|kind| kind == EventType::Delete) {
                return;
            }
            if response.canceled {
                break;
            }
        }
        sleep(PAUSE).await;
    };
    // If it takes longer, etcd may have forgotten to say so.
    let _ = timeout(LOOK_EVERY, deleted).await;
}

pub(super) async fn renew(client: &Client, leadership: &Leadership) -> Result<(), RenewError> {
    let asked = BootTime::now();
    let request = LeaseKeepAliveRequest { id: leadership.lease_id };
    let call = |channel| async move {
        let mut client = lease(channel);
        let response = client.lease_keep_alive(tokio_stream::once(request)).await?;
        let mut stream = response.into_inner();
        let none = || tonic::Status::unavailable("no answer");
        stream.message().await?.map(tonic::Response::new).ok_or_else(none)
    };
    let kept = client.again(call).await;
    let kept = kept.map_err(|failure| RenewError::Unavailable(failure.text()))?;
    let deposed = Err(RenewError::Deposed(leadership.term()));
    if kept.ttl <= 0 {
        return deposed;
    }
    // The key may be gone though the lease is not: an operator has deleted it.
    let found = client.leader_key().await;
    let (leader, _) = found.map_err(|error| RenewError::Unavailable(error.to_string()))?;
    let term = number(leadership.term().0);
    if leader.is_none_or(|value| value.create_revision != term) {
        return deposed;
    }
    leadership.renewed(asked);
    Ok(())
}

pub(super) async fn resign(client: &Client, leadership: &Leadership) -> Result<(), StoreError> {
    leadership.ended();
    revoke(client, leadership.lease_id).await.map_err(unavailable)
}

pub(super) async fn leader(client: &Client) -> Result<Option<Leader>, StoreError> {
    let (key, _) = client.leader_key().await?;
    let Some(value) = key else { return Ok(None) };
    let term = Term(known(value.create_revision)?.0);
    let name = String::from_utf8(value.value);
    let name = name.map_err(|_| StoreError::Corrupt("the leader's name is no text".to_owned()))?;
    Ok(Some(Leader { term, name }))
}
