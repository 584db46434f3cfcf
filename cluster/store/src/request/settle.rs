//! Finds out whether an attempt whose result is unknown has happened, and sees to it that it never will if it has not.
//!
//! ```text
//!   Read ──record is newer, done──> Happened
//!    ^ └───record is newer, void──> Never: the next attempt begins from there
//!    │ └───as the attempt found it─> Void ──written──> Never
//!    └───────────not written, unknown──┘
//! ```
//! Looking alone would not do: the commit may still be on its way. It was to happen only if the record is as the attempt found it.
//! So once a void record is there, it cannot.

use super::attempt::{Attempt, Judged};
use super::record::Record;
use crate::entry::{Read, Value};
use crate::error::{CommitError, StoreError};
use crate::ids::Revision;
use crate::key::Key;
use crate::planted::{Planted, PlantedBug};
use crate::txn::Txn;

/// What became of an attempt, for certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It happened, or another attempt of the same request has.
    Happened {
        /// Which revision it made.
        revision: Revision,
        /// What was to be answered.
        answer: Value,
    },
    /// It has not, and never will. This is the next one.
    Never(Attempt),
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Read this key, and give [`Settling::read`] what is there.
    Read(Key),
    /// Commit this, and give [`Settling::committed`] what came of it.
    Commit(Txn),
}

/// What has been found out so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settling {
    attempt: Attempt,
    /// The record is as the attempt found it.
    unchanged: bool,
    planted: Planted,
}

impl Settling {
    /// Nothing has.
    #[must_use]
    pub fn new(attempt: Attempt) -> Self {
        Self { attempt, unchanged: false, planted: Planted::default() }
    }

    /// One with a bug.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn with_bug(mut self, bug: PlantedBug) -> Self {
        self.planted = Planted::some(bug);
        self
    }

    /// The next step; `now` is in seconds since 1970.
    #[must_use]
    pub fn step(&self, now: u64) -> Step {
        if self.unchanged { Step::Commit(self.void(now)) } else { Step::Read(self.attempt.key()) }
    }

    fn void(&self, now: u64) -> Txn {
        let record = Record { answer: None, content: self.attempt.content(), written: now };
        self.attempt.guard(Txn::unfenced()).put(self.attempt.key(), record.encode())
    }

    /// What was read.
    ///
    /// # Errors
    /// Where there is something else than a record.
    pub fn read(&mut self, read: &Read) -> Result<Option<Settled>, StoreError> {
        if self.planted.has(PlantedBug::UnknownIsFailure) {
            return Ok(Some(Settled::Never(self.attempt.clone())));
        }
        Ok(match self.attempt.judge(read)? {
            Judged::Done { revision, answer } => Some(Settled::Happened { revision, answer }),
            Judged::Void(next) => Some(Settled::Never(next)),
            Judged::Unchanged if self.planted.has(PlantedBug::NotVoided) => {
                Some(Settled::Never(self.attempt.clone()))
            }
            Judged::Unchanged => {
                self.unchanged = true;
                None
            }
        })
    }

    /// What came of the commit.
    ///
    /// # Errors
    /// Where the store is unavailable: nothing is settled, and it may be tried again.
    pub fn committed(
        &mut self,
        result: Result<Revision, CommitError>,
    ) -> Result<Option<Settled>, CommitError> {
        self.unchanged = false;
        match result {
            Ok(revision) => Ok(Some(Settled::Never(self.attempt.next(revision)))),
            // It has happened after all, or somebody else settled it, or this has: look again.
            Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
