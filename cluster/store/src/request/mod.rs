//! Requests that are done once, however often they are asked for and whatever becomes of an answer.
//!
//! ```text
//!   Attempt::txn ── commit ──> Ok ─────────────────────────────> done now
//!                         ├──> conflict on the record ── read ──> done before │ other content │ next attempt
//!                         ├──> Unknown ── settle ──> happened │ never: next attempt
//!                         └──> another error ───────────────────> as it is
//! ```
//! The record is written with the rest, in one transaction. An attempt names the record that it found, so that at most one of all attempts
//! can happen ([`settle`](Settling) sees to those that nobody knows of).

mod attempt;
mod record;
mod settle;

#[cfg(test)]
mod tests;

use thiserror::Error;

pub use self::attempt::{AnswerTooLarge, Attempt};
pub use self::record::{ANSWER_BYTES_MAX, Content, RequestId, prefix};
pub use self::settle::{Settled, Settling, Step};

use self::record::Record;
use crate::entry::{PAGE_MAX, Value};
use crate::error::{CommitError, StoreError};
use crate::ids::{Revision, Term};
use crate::store::Store;
use crate::txn::{TXN_PARTS_MAX, Txn};

/// So often it is looked what became of an attempt, before the store is taken for unavailable.
const TRIES: usize = 8;

/// Why a request is not done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The same id has been used for something else.
    #[error("request {0} has been something else before")]
    Reused(RequestId),
    /// Its answer is not kept.
    #[error(transparent)]
    Answer(#[from] AnswerTooLarge),
    /// The store does not take it; unknown results too.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The record cannot be read.
    #[error(transparent)]
    Read(#[from] StoreError),
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done now.
    Done(Revision),
    /// It had been done.
    Before {
        /// Which revision it made.
        revision: Revision,
        /// What was answered.
        answer: Value,
    },
    /// It is not done: this is the attempt to go on with, which may need the state to be read again.
    Again(Attempt),
}

/// Tries to do it; `now` is in seconds since 1970.
///
/// # Errors
/// As the store has it. After [`CommitError::Unknown`] the attempt must be [settled](settle).
pub async fn attempt<S: Store>(
    store: &S,
    attempt: &Attempt,
    what: Txn,
    answer: impl Into<Value>,
    now: u64,
) -> Result<Outcome, RequestError> {
    match store.commit(attempt.txn(what, answer, now)?).await {
        Ok(revision) => Ok(Outcome::Done(revision)),
        Err(CommitError::Conflict(conflict)) if conflict.key == attempt.key() => {
            Ok(look(store, attempt).await?)
        }
        Err(error) => Err(error.into()),
    }
}

/// What the record says, for a request that may have been done before.
///
/// # Errors
/// Where the id is of something else, or the record cannot be read.
pub async fn look<S: Store>(store: &S, attempt: &Attempt) -> Result<Outcome, RequestError> {
    let read = store.get(&attempt.key()).await?;
    if !attempt.same(&read)? {
        return Err(RequestError::Reused(attempt.id()));
    }
    Ok(match attempt.judge(&read)? {
        attempt::Judged::Done { revision, answer } => Outcome::Before { revision, answer },
        attempt::Judged::Void(next) => Outcome::Again(next),
        attempt::Judged::Unchanged => Outcome::Again(attempt.clone()),
    })
}

/// Makes certain whether an attempt has happened.
///
/// # Errors
/// Where the store is unavailable for too long. Nothing is settled then, and it may be tried again.
pub async fn settle<S: Store>(
    store: &S,
    attempt: &Attempt,
    now: u64,
) -> Result<Settled, RequestError> {
    let mut settling = Settling::new(attempt.clone());
    for _ in 0..TRIES {
        let settled = match settling.step(now) {
            Step::Read(key) => settling.read(&store.get(&key).await?)?,
            Step::Commit(txn) => settling.committed(store.commit(txn).await)?,
        };
        if let Some(settled) = settled {
            return Ok(settled);
        }
    }
    Err(CommitError::Unavailable(format!("request {} is not settled", attempt.id())).into())
}

/// Removes records that were written before a time, in seconds since 1970, and says how many. An attempt that is older than that must not be
/// on its way any more: it could happen again.
///
/// # Errors
/// As the store has it; some may have been removed.
pub async fn expire<S: Store>(store: &S, term: Term, before: u64) -> Result<usize, RequestError> {
    let (mut token, mut count) = (None, 0);
    loop {
        let page = store.list(&prefix(), PAGE_MAX.min(TXN_PARTS_MAX), token.as_ref()).await?;
        let mut txn = Txn::under(term);
        for entry in page.entries {
            if Record::decode(&entry.value)?.written < before {
                txn = txn.if_unchanged(entry.key.clone(), entry.modified).delete(entry.key);
            }
        }
        if !txn.writes.is_empty() {
            count += txn.writes.len();
            store.commit(txn).await?;
        }
        token = page.next;
        if token.is_none() {
            return Ok(count);
        }
    }
}
