//! Why something was not done, or may have been.

use std::time::Duration;

use thiserror::Error;

use crate::ids::{Revision, Term};
use crate::key::Key;
use crate::txn::TxnError;

/// Why nothing was read, or nobody leads.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The revision that is asked for is not kept any more: read again from the newest one.
    #[error("revision {asked} is not kept any more; the oldest one is {oldest}")]
    Compacted {
        /// What was asked for.
        asked: Revision,
        /// The oldest that is still known.
        oldest: Revision,
    },
    /// Nothing has this revision yet.
    #[error("revision {asked} is not there yet; the newest one is {newest}")]
    Future {
        /// What was asked for.
        asked: Revision,
        /// The newest one.
        newest: Revision,
    },
    /// A page has at least one entry, and at most as many as this.
    #[error("a page of {0} entries; 1 to {max} are allowed", max = crate::entry::PAGE_MAX)]
    PageSize(usize),
    /// The lease of a leader is too short for the error of the clocks, or too long, or its name is.
    #[error("this candidate cannot lead: {0}")]
    Candidate(String),
    /// What is there has not been written by a store of this kind.
    #[error("the store has what no store writes: {0}")]
    Corrupt(String),
    /// It cannot be reached, or has failed.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// It has ended for good, as long as this process lives. Who opens it anew finds what the disk has: that may be with or without what was
    /// written last and not acknowledged.
    #[error("the store has ended: {0}")]
    Ended(String),
}

/// A comparison that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key} was expected {}, and is {} at revision {revision}", written(*expected), written(*found))]
pub struct Conflict {
    /// Of which object; of several the first in the order of comparisons.
    pub key: Key,
    /// When it should have been written last.
    pub expected: Option<Revision>,
    /// When it was.
    pub found: Option<Revision>,
    /// The newest revision when they were compared.
    pub revision: Revision,
}

fn written(revision: Option<Revision>) -> String {
    revision.map_or_else(|| "absent".to_owned(), |revision| format!("written at {revision}"))
}

/// Why a commit has written nothing; [`CommitError::Unknown`] says that it may have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommitError {
    /// It is out of bounds, or says two things.
    #[error(transparent)]
    Invalid(#[from] TxnError),
    /// The leader of this term leads no more.
    #[error("the leader of term {term} is deposed{}", by(*current))]
    Deposed {
        /// Under which it was to be written.
        term: Term,
        /// Who leads instead, if anybody does.
        current: Option<Term>,
    },
    /// A comparison did not hold.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// There is no room for it.
    #[error("the store is full: {0}")]
    Full(String),
    /// It has not been tried, or has surely failed.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// It may have been written, or may be yet: settle it before anything else is tried.
    #[error("whether it was committed is unknown: {0}")]
    Unknown(String),
}

fn by(current: Option<Term>) -> String {
    current.map_or_else(String::new, |term| format!(" by that of term {term}"))
}

/// Why a watcher hears no more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WatchError {
    /// What came after the revision to begin with is not kept any more: list, and watch from there.
    #[error("changes after {after} are not kept any more; those after {oldest} are")]
    Compacted {
        /// What was asked for.
        after: Revision,
        /// Changes after this one are still known.
        oldest: Revision,
    },
    /// Nothing has this revision yet: it is another store's, or one that was restored from an older copy.
    #[error("revision {after} is not there yet; the newest one is {newest}")]
    Future {
        /// What was asked for.
        after: Revision,
        /// The newest one.
        newest: Revision,
    },
    /// It did not keep up, and what it should hear next is gone.
    #[error("the watcher is too slow: it has heard all up to {heard}")]
    Slow {
        /// What it was told last.
        heard: Revision,
    },
    /// There are as many watchers as allowed.
    #[error("{0} watchers are there already")]
    TooMany(usize),
    /// What is there has not been written by a store of this kind.
    #[error("the store has what no store writes: {0}")]
    Corrupt(String),
    /// It cannot be reached for so long that the watcher should know, or has failed.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}

/// Why a lease was not renewed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RenewError {
    /// Another one may lead.
    #[error("the leader of term {0} is deposed")]
    Deposed(Term),
    /// Not known; the lease goes on until its time.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}

/// Why somebody leads no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Lost {
    /// The store says so.
    #[error("the leader of term {0} is deposed")]
    Deposed(Term),
    /// It could not be renewed in time.
    #[error("the lease of {lease:?} of the leader of term {term} could not be renewed in time")]
    Expired {
        /// Of which leader.
        term: Term,
        /// How long it is.
        lease: Duration,
    },
}
