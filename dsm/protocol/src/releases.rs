//! Releases that are held back, and what they wait for. [`crate::release`] says why.

use std::collections::{BTreeMap, VecDeque};
use wire::{Entry, Gfn, Message, SliceId};

/// Something that must not overtake this slice's table writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outgoing {
    Message(SliceId, Message),
    External(u64),
}

/// What releases wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outstanding {
    /// Acknowledgements of a diff to come.
    Diff(u16),
    /// A demotion to end.
    Demotion,
}

/// Releases held back and what they wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Releases {
    /// Number of the newest diff or demotion.
    pub(crate) newest: u64,
    pub(crate) outstanding: BTreeMap<u64, Outstanding>,
    pub(crate) queue: VecDeque<(u64, Outgoing)>,
    /// Those of the step that goes on.
    pub(crate) new: Vec<Outgoing>,
    /// Demotions that this slice asked for since the page joined the class, by number.
    pub(crate) demotions: BTreeMap<Gfn, u64>,
    /// Pages that this slice has left, and the number that its releases wait for. The home says
    /// when all have left.
    pub(crate) leaving: BTreeMap<Gfn, u64>,
    /// How many members have left a page of which this slice is the heir.
    pub(crate) left: BTreeMap<Gfn, u16>,
    /// Changes of pages that turned out to be no tables. They go to the heir alone.
    pub(crate) unsent: BTreeMap<Gfn, Vec<Entry>>,
    /// Last words of replicas, held back until this slice's diffs are acknowledged: otherwise a
    /// diff could arrive after the page became a replica once more.
    pub(crate) lefts: Vec<(SliceId, Message)>,
}

impl Releases {
    pub(crate) fn is_empty(&self) -> bool {
        self.outstanding.is_empty() && self.queue.is_empty() && self.lefts.is_empty()
    }

    pub(crate) fn begin(&mut self, item: Outstanding) -> u64 {
        // At a million a second they last for half a million years.
        self.newest += 1;
        self.outstanding.insert(self.newest, item);
        self.newest
    }

    /// The page is nobody's replica any more.
    pub(crate) fn demotion_over(&mut self, gfn: Gfn) {
        if let Some(number) = self.demotions.remove(&gfn) {
            self.outstanding.remove(&number);
        }
    }

    pub(crate) fn diffs_outstanding(&self) -> bool {
        self.outstanding.values().any(|item| matches!(item, Outstanding::Diff(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_are_more_than_32_bits_can_count() {
        let mut releases = Releases { newest: u64::from(u32::MAX), ..Releases::default() };
        assert_eq!(releases.begin(Outstanding::Demotion), 1 << 32);
    }
}
