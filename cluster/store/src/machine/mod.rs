//! A store as a pure machine: it has no clock, no file and no threads. What keeps it in memory or in a file calls it, and so does
//! its model.
//!
//! ```text
//!   Txn ──bounds, term, comparisons──> refused, nothing has changed
//!           └─> Batch: revision + 1, in history and objects at once
//!   history:  │ forgotten up to `compacted` │ batches that watchers and pages still read │
//!   objects:  one version at `compacted`, and all after it
//!   a mark ──commits──> the file has them: go on │ it has not: roll back to the mark
//! ```
//! Reads are at a revision, so that what is committed here, but not yet in the file, is not seen.

mod election;
mod history;
mod objects;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::entry::{Batch, Change, Entry, PAGE_MAX, Page, PageToken, Read};
use crate::error::{CommitError, Conflict, StoreError};
use crate::ids::{Revision, Term};
use crate::key::{Key, Prefix};
use crate::lease::{BootTime, Candidate, Leader};
use crate::planted::{Planted, PlantedBug};
use crate::txn::{Compare, Txn, Write};

use self::election::Election;
use self::history::History;
use self::objects::Objects;

pub use self::election::Held;

/// How large a store in memory or in a file may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Keys and values of what is there now, in bytes.
    pub bytes_max: u64,
    /// Commits that watchers may be behind.
    pub history_max: usize,
    /// Keys and values of these, in bytes.
    pub history_bytes_max: u64,
    /// Watchers.
    pub watchers_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes_max: 1 << 30,
            history_max: 10_000,
            history_bytes_max: 64 << 20,
            watchers_max: 20_000,
        }
    }
}

/// What a machine goes back to where its commits did not reach the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    revision: Revision,
    term: Term,
}

impl Mark {
    /// The newest revision then.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The newest term then.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }
}

/// A store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    limits: Limits,
    revision: Revision,
    objects: Objects,
    history: History,
    election: Election,
    planted: Planted,
}

impl Machine {
    /// An empty one.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            revision: Revision::ZERO,
            objects: Objects::default(),
            history: History::default(),
            election: Election::default(),
            planted: Planted::default(),
        }
    }

    /// One with what a file has: the objects at a revision, to which all before it is forgotten, and the commits after it.
    ///
    /// # Errors
    /// Where no machine could have written this.
    pub fn restore(
        limits: Limits,
        term: Term,
        compacted: Revision,
        base: Vec<Entry>,
        log: Vec<Batch>,
    ) -> Result<Self, StoreError> {
        let mut machine = Self::new(limits);
        machine.revision = compacted;
        machine.history = History::new(compacted);
        machine.election = Election::new(term);
        for entry in base {
            let key = entry.key.clone();
            let known = machine.objects.newest(&key).is_some();
            let order = Revision::ZERO < entry.created && entry.created <= entry.modified;
            if known || !order || entry.modified > compacted {
                return Err(StoreError::Corrupt(format!("{key}, as it was at {compacted}")));
            }
            let modified = entry.modified;
            machine.objects.apply(&Change::Put(entry), modified);
        }
        for batch in log {
            machine.replay(batch)?;
        }
        Ok(machine)
    }

    fn replay(&mut self, batch: Batch) -> Result<(), StoreError> {
        let corrupt = |why: &str| Err(StoreError::Corrupt(format!("{why} at {}", batch.revision)));
        if batch.revision != self.revision.next() {
            return corrupt("a revision too early or too late");
        }
        if batch.changes.is_empty() {
            return corrupt("no change");
        }
        for change in &batch.changes {
            let before = self.objects.newest(change.key());
            let possible = match (change, &before) {
                (Change::Delete(_), before) => before.is_some(),
                (Change::Put(entry), None) => {
                    entry.created == batch.revision && entry.modified == batch.revision
                }
                (Change::Put(entry), Some(before)) => {
                    entry.created == before.created
                        && entry.modified == batch.revision
                        && before.modified < batch.revision
                }
            };
            if !possible {
                return corrupt(&format!("a change of {} that cannot be", change.key()));
            }
            self.objects.apply(change, batch.revision);
        }
        self.revision = batch.revision;
        self.history.push(Arc::new(batch));
        Ok(())
    }

    /// The same machine with a bug.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn with_bug(mut self, bug: PlantedBug) -> Self {
        self.planted = Planted::some(bug);
        self.election.planted = self.planted;
        self
    }

    /// The newest revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Everything up to here is forgotten, but for what is there still.
    #[must_use]
    pub fn compacted(&self) -> Revision {
        self.history.compacted()
    }

    /// The newest term, whether its leader still leads or not.
    #[must_use]
    pub fn term(&self) -> Term {
        self.election.last_term()
    }

    /// What one key has at a revision that is not forgotten.
    #[must_use]
    pub fn get(&self, key: &Key, visible: Revision) -> Read {
        Read { revision: visible, entry: self.objects.at(key, visible) }
    }

    /// A page of the objects below the prefix: of the first at `visible`, and then of the first page's revision.
    ///
    /// # Errors
    /// Where that is forgotten, or the page too large.
    pub fn list(
        &self,
        prefix: &Prefix,
        limit: usize,
        token: Option<&PageToken>,
        visible: Revision,
    ) -> Result<Page, StoreError> {
        if limit == 0 || limit > PAGE_MAX {
            return Err(StoreError::PageSize(limit));
        }
        let revision = token.map_or(visible, |token| token.revision);
        if revision > visible {
            return Err(StoreError::Future { asked: revision, newest: visible });
        }
        if revision < self.compacted() {
            return Err(StoreError::Compacted { asked: revision, oldest: self.compacted() });
        }
        let after = token.map(|token| &token.after);
        let (entries, more) = self.objects.page(prefix, after, limit, revision);
        let last = entries.last().filter(|_| more);
        let next = last.map(|entry| PageToken { revision, after: entry.key.clone() });
        Ok(Page { revision, entries, next })
    }

    /// The first commit after one, and up to another, that changed something below the prefix; an error where those after
    /// the first are forgotten.
    pub fn change(
        &self,
        prefix: &Prefix,
        after: Revision,
        visible: Revision,
    ) -> Result<Option<Arc<Batch>>, Revision> {
        if after < self.compacted() {
            return Err(self.compacted());
        }
        let seen = self.history.after(after).take_while(|batch| batch.revision <= visible);
        Ok(seen.into_iter().find_map(|batch| batch.under(prefix)))
    }

    /// Commits after a revision.
    pub fn commits_after(&self, revision: Revision) -> impl Iterator<Item = &Arc<Batch>> {
        self.history.after(revision)
    }

    /// All writes, in one revision, or none. A commit that finds nothing to change makes no revision.
    ///
    /// # Errors
    /// Where it is refused.
    pub fn commit(&mut self, now: BootTime, txn: &Txn) -> Result<Revision, CommitError> {
        txn.check()?;
        if let Some(term) = txn.term {
            let current = self.election.current(now);
            if current != Some(term) && !self.planted.has(PlantedBug::TermNotCompared) {
                return Err(CommitError::Deposed { term, current });
            }
        }
        self.compare(&txn.compares)?;
        let revision = self.revision.next();
        let changes = self.changes(&txn.writes, revision);
        if changes.is_empty() {
            return Ok(self.revision);
        }
        self.room(&changes, revision)?;
        for change in &changes {
            self.objects.apply(change, revision);
        }
        self.revision = revision;
        self.history.push(Arc::new(Batch { revision, changes }));
        Ok(revision)
    }

    fn compare(&self, compares: &[Compare]) -> Result<(), Conflict> {
        let count = if self.planted.has(PlantedBug::OneCompared) { 1 } else { compares.len() };
        for compare in compares.iter().take(count) {
            let (key, expected) = (compare.key(), compare.expected());
            let found = self.objects.newest(key).map(|entry| entry.modified);
            if found != expected {
                let (key, revision) = (key.clone(), self.revision);
                return Err(Conflict { key, expected, found, revision });
            }
        }
        Ok(())
    }

    fn changes(&self, writes: &[Write], revision: Revision) -> Vec<Change> {
        let change = |write: &Write| {
            let before = self.objects.newest(write.key());
            match write {
                Write::Put(key, value) => {
                    let created = before.map_or(revision, |entry| entry.created);
                    let (key, value) = (key.clone(), value.clone());
                    Some(Change::Put(Entry { key, value, created, modified: revision }))
                }
                Write::Delete(key) => before.map(|_| Change::Delete(key.clone())),
            }
        };
        let mut changes: Vec<_> = writes.iter().filter_map(change).collect();
        changes.sort_by(|a, b| a.key().cmp(b.key()));
        changes
    }

    fn room(&mut self, changes: &[Change], revision: Revision) -> Result<(), CommitError> {
        let growth: i128 = changes.iter().map(|change| self.objects.growth(change)).sum();
        let after = i128::from(self.objects.bytes()) + growth;
        let limit = self.limits.bytes_max;
        // What makes it smaller is always taken, or a store that is full could not be emptied.
        if growth <= 0 || after <= i128::from(limit) {
            return Ok(());
        }
        if self.planted.has(PlantedBug::HalfWritten)
            && let Some(first) = changes.first()
        {
            self.objects.apply(first, revision);
        }
        Err(CommitError::Full(format!("{after} bytes; {limit} are allowed")))
    }

    /// Whether it has forgotten so much that a file would have to, too, and up to where.
    #[must_use]
    pub fn excess(&self) -> Option<Revision> {
        self.history.excess(self.limits.history_max, self.limits.history_bytes_max)
    }

    /// Forgets what was up to a revision, but for what is there still.
    ///
    /// # Errors
    /// Where nothing has this revision yet.
    pub fn compact(&mut self, upto: Revision) -> Result<(), StoreError> {
        if upto > self.revision {
            return Err(StoreError::Future { asked: upto, newest: self.revision });
        }
        while let Some(batch) = self.history.pop_oldest(upto) {
            for change in &batch.changes {
                self.objects.forget(change.key(), upto);
            }
        }
        Ok(())
    }

    /// To go back to here.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark { revision: self.revision, term: self.term() }
    }

    /// Takes everything since the mark back. Nothing may have been forgotten since.
    pub fn roll_back(&mut self, mark: &Mark) {
        while let Some(batch) = self.history.pop_newest(mark.revision) {
            for change in &batch.changes {
                self.objects.undo(change.key());
            }
        }
        self.revision = mark.revision;
        self.election.roll_back(mark.term);
    }

    /// Makes the candidate the leader, if nobody leads.
    ///
    /// # Errors
    /// Where somebody does.
    pub fn campaign(&mut self, now: BootTime, who: &Candidate) -> Result<Term, Held> {
        self.election.campaign(now, who)
    }

    /// Whether the leader of this term still leads; its lease begins anew then.
    pub fn renew(&mut self, now: BootTime, term: Term) -> bool {
        self.election.renew(now, term)
    }

    /// Nobody leads any more, if the leader of this term did.
    pub fn resign(&mut self, term: Term) {
        self.election.resign(term);
    }

    /// Who leads.
    #[must_use]
    pub fn leader(&self, now: BootTime) -> Option<Leader> {
        self.election.leader(now)
    }
}
