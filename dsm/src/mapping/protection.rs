//! How far the protection of memory for a snapshot is, and what has been stored to since. [`super::protect`] carries it out.

use crate::memory::ChunkId;
use crate::snapshot::{Frozen, SnapshotLost};
use dsm_protocol::{Gfn, PageSet};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Pages that are protected again in one turn, how often that is begun before all counts as protected, and below how many it is
/// not worth it.
const PAGES: usize = 256;
const ROUNDS: u32 = 2;
const FEW: usize = 64;
/// Between rounds once all counts as protected. What is stored to each time faults each time, as long as another slice is not ready.
const BETWEEN_NS: u64 = 10_000_000;
/// Stores of the guest wait so long at most until copies have been taken.
const WAIT_MAX_NS: u64 = 1_000_000_000;

/// How far it is.
#[derive(Debug)]
pub(crate) struct Protection {
    /// What is to be protected still, ascending.
    pub(super) open: VecDeque<Range<u64>>,
    /// What is to be given back, ascending.
    pub(super) protected: VecDeque<Range<u64>>,
    /// Private chunks that nobody puts on huge pages meanwhile.
    pub(super) held: BTreeSet<ChunkId>,
    /// Pages that the guest may store to although they were protected.
    pub(super) written: PageSet,
    /// The same, each once.
    pub(super) list: Vec<Gfn>,
    /// Those that are to be protected again, the last one first, and how often that is begun still.
    pub(super) again: Vec<Gfn>,
    pub(super) rounds: u32,
    /// Rounds after those, while other slices were not ready.
    pub(crate) upkeep: u64,
    pub(super) frozen: Option<Arc<Frozen>>,
    /// Nobody is to read.
    pub(super) over: bool,
    /// Stores that wait for the reader, and since when some have.
    pub(super) waiting: Vec<Gfn>,
    pub(super) since_ns: Option<u64>,
    /// Nothing is protected or given back before then.
    next_ns: u64,
}

impl Protection {
    /// Of these pieces, ascending. Nothing is protected yet.
    pub(super) fn new(open: VecDeque<Range<u64>>) -> Self {
        let end = open.back().map_or(0, |range| range.end);
        Self {
            open,
            protected: VecDeque::new(),
            held: BTreeSet::new(),
            written: PageSet::new(end),
            list: Vec::new(),
            again: Vec::new(),
            rounds: ROUNDS,
            upkeep: 0,
            frozen: None,
            over: false,
            waiting: Vec::new(),
            since_ns: None,
            next_ns: 0,
        }
    }

    /// When the next piece may be protected or given back.
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Pieces were protected or given back in this time. A rest follows that is as long: the engine runs before the vCPUs, and
    /// where they have no processor of their own the guest would stand still until all is done.
    pub(crate) fn rest_after(&mut self, begin_ns: u64, end_ns: u64) {
        let is_upkeep = self.is_complete() && self.may_freeze();
        let least = if is_upkeep { BETWEEN_NS } else { 0 };
        self.next_ns = end_ns + end_ns.saturating_sub(begin_ns).max(least);
    }

    /// Some of the pages that were stored to, which are to be protected again before the moment, ascending.
    pub(super) fn take_again(&mut self) -> Vec<Gfn> {
        if !self.may_freeze() || !self.is_behind() {
            return Vec::new();
        }
        if self.again.is_empty() {
            self.upkeep += u64::from(self.rounds == 0);
            self.rounds = self.rounds.saturating_sub(1);
            self.again = std::mem::take(&mut self.list);
            self.again.sort_unstable_by(|one, other| other.cmp(one));
        }
        let mut pages = self.again.split_off(self.again.len().saturating_sub(PAGES));
        pages.reverse();
        for gfn in &pages {
            self.written.remove(*gfn);
        }
        pages
    }

    /// True when all is protected, but for what the guest has stored to a moment ago.
    pub(crate) fn is_complete(&self) -> bool {
        self.open.is_empty() && self.again.is_empty() && (self.rounds == 0 || self.list.len() < FEW)
    }

    /// True while something is to be protected. Other slices may have more memory and take longer: until the moment comes, what is
    /// stored to is protected again here, or the moment would have all of it to protect.
    fn is_behind(&self) -> bool {
        !self.open.is_empty() || !self.again.is_empty() || self.list.len() >= FEW
    }

    /// True when there may be a snapshot.
    pub(crate) fn may_freeze(&self) -> bool {
        self.frozen.is_none() && !self.over
    }

    /// True when something is to be done as soon as it may be.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_behind() && self.frozen.is_none() || self.over
    }

    /// A file system that hangs does not keep the guest from running: it has no snapshot then.
    pub(super) fn look_how_long_stores_wait(&mut self, now_ns: u64) {
        if self.waiting.is_empty() {
            self.since_ns = None;
            return;
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) > WAIT_MAX_NS
            && let Some(frozen) = &self.frozen
        {
            frozen.spoil(SnapshotLost::Slow);
            frozen.end();
        }
    }

    /// Whether the watch over a private chunk has come to this page, and has not gone.
    pub(super) fn covers(&self, gfn: Gfn) -> bool {
        let first = self.protected.front().map_or(u64::MAX, |range| range.start);
        let last = self.protected.back().map_or(0, |range| range.end);
        (first..last).contains(&gfn.0)
    }

    pub(super) fn note(&mut self, gfn: Gfn) {
        if !self.written.contains(gfn) {
            self.written.insert(gfn);
            self.list.push(gfn);
        }
    }
}
