//! Transactions and entries in the words of etcd, and back.

use super::client::{header_revision, known, number};
use super::options::Names;
use super::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use super::proto::request_op::Request;
use super::proto::response_op::Response;
use super::proto::{
    Compare as WireCompare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp,
    TxnRequest, TxnResponse,
};
use crate::entry::Entry;
use crate::error::{CommitError, Conflict, StoreError};
use crate::ids::{Revision, Term};
use crate::txn::{Compare, Txn, Write};

pub(super) fn entry(names: &Names, value: KeyValue) -> Result<Entry, StoreError> {
    let key = names.parse(&value.key).map_err(StoreError::Corrupt)?;
    let (created, modified) = (known(value.create_revision)?, known(value.mod_revision)?);
    Ok(Entry { key, value: value.value.into(), created, modified })
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// When a key was written, without what.
fn look(key: Vec<u8>) -> RequestOp {
    let keys_only = true;
    op(Request::RequestRange(RangeRequest { key, keys_only, ..RangeRequest::default() }))
}

/// The key of the leader is as old as its term.
fn fence(names: &Names, term: Term) -> WireCompare {
    WireCompare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: names.leader(),
        target_union: Some(TargetUnion::CreateRevision(number(term.0))),
    }
}

fn compare(names: &Names, compare: &Compare) -> WireCompare {
    let revision = compare.expected().map_or(0, |revision| number(revision.0));
    WireCompare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: names.object(compare.key().as_str()),
        target_union: Some(TargetUnion::ModRevision(revision)),
    }
}

fn write(names: &Names, write: &Write) -> RequestOp {
    let key = names.object(write.key().as_str());
    match write {
        Write::Put(_, value) => {
            op(Request::RequestPut(PutRequest { key, value: value.to_vec(), lease: 0 }))
        }
        Write::Delete(_) => {
            let range_end = Vec::new();
            op(Request::RequestDeleteRange(DeleteRangeRequest { key, range_end }))
        }
    }
}

/// If a comparison does not hold, etcd says in the same revision what there is instead.
pub(super) fn request(names: &Names, txn: &Txn) -> TxnRequest {
    let fence = txn.term.map(|term| fence(names, term));
    let leader = txn.term.map(|_| look(names.leader()));
    let compares = txn.compares.iter();
    TxnRequest {
        compare: fence.into_iter().chain(compares.clone().map(|c| compare(names, c))).collect(),
        success: txn.writes.iter().map(|one| write(names, one)).collect(),
        failure: leader
            .into_iter()
            .chain(compares.map(|compare| look(names.object(compare.key().as_str()))))
            .collect(),
    }
}

/// What a transaction came to.
pub(super) fn result(txn: &Txn, response: TxnResponse) -> Result<Revision, CommitError> {
    // What etcd says is a contradiction: it may have written.
    let strange = |what: &dyn std::fmt::Display| CommitError::Unknown(format!("etcd says {what}"));
    let revision = header_revision(response.header.map(|header| header.revision));
    let revision = revision.map_err(|error| strange(&error))?;
    if response.succeeded {
        return Ok(revision);
    }
    let mut found = Vec::new();
    for response in response.responses {
        let Some(Response::ResponseRange(range)) = response.response else {
            return Err(strange(&"something else than what it was asked for"));
        };
        found.push(range.kvs.into_iter().next());
    }
    if found.len() != txn.compares.len() + usize::from(txn.term.is_some()) {
        return Err(strange(&"more or less than what it was asked for"));
    }
    let mut found = found.into_iter();
    if let Some(term) = txn.term {
        let created = found.next().flatten().map(|value| known(value.create_revision));
        let current = created.transpose().map_err(|error| strange(&error))?;
        let current = current.map(|revision| Term(revision.0));
        if current != Some(term) {
            return Err(CommitError::Deposed { term, current });
        }
    }
    for (compare, value) in txn.compares.iter().zip(found) {
        let written = value.map(|value| known(value.mod_revision)).transpose();
        let written = written.map_err(|error| strange(&error))?;
        let expected = compare.expected();
        if written != expected {
            let key = compare.key().clone();
            return Err(Conflict { key, expected, found: written, revision }.into());
        }
    }
    Err(strange(&"that a comparison does not hold, and that all do"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::proto::{RangeResponse, ResponseHeader, ResponseOp};
    use crate::key::Key;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn answer(revisions: &[Option<i64>], succeeded: bool) -> TxnResponse {
        let range = |revision: &Option<i64>| {
            let value = revision.map(|revision| KeyValue {
                create_revision: revision,
                mod_revision: revision,
                ..KeyValue::default()
            });
            let range = RangeResponse { kvs: value.into_iter().collect(), ..Default::default() };
            ResponseOp { response: Some(Response::ResponseRange(range)) }
        };
        TxnResponse {
            header: Some(ResponseHeader { revision: 9, ..ResponseHeader::default() }),
            succeeded,
            responses: revisions.iter().map(range).collect(),
        }
    }

    #[test]
    fn refusal_names_what_did_not_hold() {
        let txn = Txn::under(Term(3))
            .if_absent(key("a"))
            .if_unchanged(key("b"), Revision(4))
            .put(key("a"), *b"1");
        let of = |revisions: &[Option<i64>]| result(&txn, answer(revisions, false)).unwrap_err();

        let conflict = |name, expected: Option<u64>, found: Option<u64>| {
            CommitError::Conflict(Conflict {
                key: key(name),
                expected: expected.map(Revision),
                found: found.map(Revision),
                revision: Revision(9),
            })
        };
        let deposed = |current: Option<u64>| CommitError::Deposed {
            term: Term(3),
            current: current.map(Term),
        };
        assert_eq!(of(&[Some(5), Some(5), None]), deposed(Some(5)));
        assert_eq!(of(&[None, None, Some(4)]), deposed(None));
        assert_eq!(of(&[Some(3), Some(5), None]), conflict("a", None, Some(5)));
        assert_eq!(of(&[Some(3), None, None]), conflict("b", Some(4), None));
        assert_eq!(result(&txn, answer(&[], true)), Ok(Revision(9)));
        for strange in [&[Some(3), None, Some(4)][..], &[Some(3)], &[Some(-1), None, None]] {
            assert!(matches!(of(strange), CommitError::Unknown(_)), "{strange:?}");
        }
        let nothing = TxnResponse::default();
        assert!(matches!(result(&txn, nothing), Err(CommitError::Unknown(_))));
    }

    #[test]
    fn fence_is_the_first_comparison() {
        let names = Names::new("r").unwrap();
        let txn = Txn::under(Term(3)).if_absent(key("a")).put(key("a"), *b"1").delete(key("b"));

        let request = request(&names, &txn);

        assert_eq!(request.compare.len(), 2);
        assert_eq!(request.compare[0].key, b"r/leader");
        let created = request.compare[0].target_union.clone();
        assert_eq!(created, Some(TargetUnion::CreateRevision(3)));
        assert_eq!(request.compare[1].target_union, Some(TargetUnion::ModRevision(0)));
        assert_eq!((request.success.len(), request.failure.len()), (2, 2));
    }
}
