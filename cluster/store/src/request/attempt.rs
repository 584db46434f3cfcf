//! One try to do what a request asks for.

use super::record::{ANSWER_BYTES_MAX, Content, Record, RequestId};
use crate::entry::{Read, Value};
use crate::error::StoreError;
use crate::ids::Revision;
use crate::key::Key;
use crate::txn::Txn;

/// A try. Those of one request follow each other: each finds the record that says that the one before never happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    id: RequestId,
    content: Content,
    /// When the record that it found was written; none if there was none.
    found: Option<Revision>,
}

/// What a record says about an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judged {
    /// The request has been done.
    Done { revision: Revision, answer: Value },
    /// It will not be done by this attempt.
    Void(Attempt),
    /// Nothing about it.
    Unchanged,
}

impl Attempt {
    /// The first one.
    #[must_use]
    pub fn first(id: RequestId, content: Content) -> Self {
        Self { id, content, found: None }
    }

    /// Which request it is of.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Where its record is.
    #[must_use]
    pub fn key(&self) -> Key {
        self.id.key()
    }

    pub(super) fn content(&self) -> Content {
        self.content
    }

    pub(super) fn next(&self, found: Revision) -> Self {
        Self { found: Some(found), ..self.clone() }
    }

    /// Only if the record is as this attempt found it.
    pub(super) fn guard(&self, txn: Txn) -> Txn {
        match self.found {
            None => txn.if_absent(self.key()),
            Some(found) => txn.if_unchanged(self.key(), found),
        }
    }

    /// The transaction that does it, once, and keeps the answer. The first conflict is about the record, if any is.
    ///
    /// # Errors
    /// Where the answer is too large to be kept.
    pub fn txn(
        &self,
        what: Txn,
        answer: impl Into<Value>,
        now: u64,
    ) -> Result<Txn, AnswerTooLarge> {
        let answer = answer.into();
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(AnswerTooLarge(answer.len()));
        }
        let record = Record { answer: Some(answer), content: self.content, written: now };
        let Txn { term, compares, writes } = what;
        let guarded = self.guard(Txn { term, compares: Vec::new(), writes });
        let compares = [guarded.compares, compares].concat();
        Ok(Txn { compares, ..guarded }.put(self.key(), record.encode()))
    }

    pub(super) fn judge(&self, read: &Read) -> Result<Judged, StoreError> {
        let Some(entry) = &read.entry else {
            // A record that was found is gone only if it was old enough to be removed.
            let next = Self { found: None, ..self.clone() };
            return Ok(if self.found.is_none() { Judged::Unchanged } else { Judged::Void(next) });
        };
        if self.found == Some(entry.modified) {
            return Ok(Judged::Unchanged);
        }
        let record = Record::decode(&entry.value)?;
        Ok(match record.answer {
            Some(answer) => Judged::Done { revision: entry.modified, answer },
            None => Judged::Void(self.next(entry.modified)),
        })
    }

    /// Whether the record, if it is one of something done, is of what this attempt is for.
    pub(super) fn same(&self, read: &Read) -> Result<bool, StoreError> {
        let Some(entry) = &read.entry else { return Ok(true) };
        let record = Record::decode(&entry.value)?;
        Ok(record.answer.is_none() || record.content == self.content)
    }
}

/// An answer that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer of {0} bytes; {ANSWER_BYTES_MAX} are allowed")]
pub struct AnswerTooLarge(pub usize);
