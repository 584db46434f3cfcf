//! Which checkpoints of a supervised VM there are, and which are kept (retention).
//!
//! ```text
//!   written: added --the VM runs with it--> tried, and good --newer ones are enough--> taken off: deleted
//!            added --the VM failed with it twice before it ran--> comes last, and counts last
//!            added --its bytes are not what was written--> damaged: never gone on from, and never deleted
//! ```
//! One that was given at the start is never deleted, nor is one that another here is an increment of.

use super::planted::PlantedBug;
use crate::planted::Planted;
use std::collections::BTreeSet;

/// After so many failures before the VM ran, an older checkpoint is tried.
const FAILURES_MAX: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    number: u64,
    /// What it is an increment of.
    base: Option<u64>,
    /// It was given at the start, and is not ours to delete.
    is_given: bool,
    is_damaged: bool,
    /// How often the VM failed with it before it ran.
    failures: u8,
    /// The VM was started from it once without reading it first (lazily): the next start reads and verifies all of it.
    is_tried: bool,
    /// The guest ran from it.
    has_run: bool,
}

/// Which checkpoints there are, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shelf {
    entries: Vec<Entry>,
}

impl Shelf {
    /// With one that was there before, which is never deleted; all of it is read first, unless its user wants it `lazy`.
    #[must_use]
    pub fn given(number: u64, lazy: bool) -> Self {
        let mut shelf = Self::default();
        shelf.add(number, None);
        (shelf.entries[0].is_given, shelf.entries[0].is_tried) = (true, !lazy);
        shelf
    }

    /// One that was there when its supervisor began: of the same VM, written for a former supervisor. From the oldest on. One of which is
    /// known that it cannot be gone on from stays where it is.
    pub fn found(&mut self, number: u64, base: Option<u64>, is_whole: bool) {
        self.add(number, base);
        if !is_whole {
            self.damaged(number);
        }
    }

    pub(super) fn add(&mut self, number: u64, base: Option<u64>) {
        let (is_given, is_damaged, failures) = (false, false, 0);
        let (is_tried, has_run) = (false, false);
        let entry = Entry { number, base, is_given, is_damaged, failures, is_tried, has_run };
        self.entries.push(entry);
    }

    /// Whether the VM has ever had one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The one to go on from: the newest that is not damaged and has not failed again and again, or the newest that is not
    /// damaged.
    pub(super) fn best(&self, planted: Planted<PlantedBug>) -> Option<u64> {
        let again = planted.has(PlantedBug::DamagedAgain);
        let mut whole = self.entries.iter().filter(|entry| again || !entry.is_damaged);
        let number = |entry: &Entry| entry.number;
        if planted.has(PlantedBug::OldestFirst) {
            return whole.map(number).next();
        }
        let newest = whole.clone().rfind(|entry| entry.failures < FAILURES_MAX);
        newest.or_else(|| whole.next_back()).map(number)
    }

    /// The VM is to go on from it. Whether that may be before it was read.
    pub(super) fn tries(&mut self, number: u64) -> bool {
        let entry = self.entries.iter_mut().find(|one| one.number == number);
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.is_tried, true))
    }

    /// A start that was to read it first was refused. Whatever is in the way, nothing has run: it need not be read first the next time.
    pub(super) fn refused(&mut self, number: u64) {
        let of = self.entries.iter_mut().filter(|one| one.number == number);
        of.filter(|one| !one.has_run && !one.is_given).for_each(|one| one.is_tried = false);
    }

    pub(super) fn damaged(&mut self, number: u64) {
        self.entries.iter_mut().filter(|one| one.number == number).for_each(|one| {
            one.is_damaged = true;
        });
    }

    /// The VM failed with it before it ran.
    pub(super) fn failed(&mut self, number: u64) {
        self.entries.iter_mut().filter(|one| one.number == number).for_each(|one| {
            one.failures = one.failures.saturating_add(1);
        });
    }

    /// The VM runs with it.
    pub(super) fn runs(&mut self, number: u64) {
        self.entries.iter_mut().filter(|one| one.number == number).for_each(|one| {
            (one.failures, one.has_run) = (0, true);
        });
    }

    /// Takes those off that are not needed any more, increments before what they are increments of.
    pub(super) fn surplus(&mut self, keep: usize, planted: Planted<PlantedBug>) -> Vec<u64> {
        let keep = keep - usize::from(planted.has(PlantedBug::KeepsFewer) && keep > 0);
        // One that fails is none to fall back on: it counts where there are too few others.
        let counts = |fails| {
            let ours = self.entries.iter().filter(|entry| !entry.is_damaged && !entry.is_given);
            ours.rev().filter(move |entry| (entry.failures >= FAILURES_MAX) == fails)
        };
        let newest = counts(false).chain(counts(true)).take(keep);
        let damaged = self.entries.iter().filter(|entry| entry.is_damaged);
        let mut kept: BTreeSet<_> = newest.chain(damaged).map(|entry| entry.number).collect();
        if !planted.has(PlantedBug::DeletesBase) {
            // A base is older than its increments.
            for entry in self.entries.iter().rev() {
                kept.extend(entry.base.filter(|_| kept.contains(&entry.number)));
            }
        }
        let is_kept = |entry: &Entry| entry.is_given || kept.contains(&entry.number);
        let surplus = self.entries.iter().rev().filter(|entry| !is_kept(entry));
        let surplus = surplus.map(|entry| entry.number).collect();
        self.entries.retain(is_kept);
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_fails_keeps_none_from_being_kept() {
        let (mut shelf, none) = (Shelf::default(), Planted::default());
        [2, 3].iter().for_each(|number| shelf.add(*number, None));
        (0..FAILURES_MAX).for_each(|_| shelf.failed(3));
        assert_eq!(shelf.best(none), Some(2));
        shelf.runs(2);
        assert_eq!(shelf.surplus(2, none), [0; 0], "there are no others");
        shelf.add(4, None);
        assert_eq!(shelf.surplus(2, none), [3]);
        shelf.damaged(4);
        assert_eq!(shelf.best(none), Some(2));

        // One that was given is never deleted, and no part of the count.
        let mut shelf = Shelf::given(0, false);
        shelf.add(1, None);
        (0..FAILURES_MAX).for_each(|_| shelf.failed(1));
        shelf.add(2, None);
        assert_eq!(shelf.surplus(2, none), [0; 0]);
    }
}
