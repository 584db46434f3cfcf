//! Requests of this slice on their way, by page. Whether there is one is asked of every page of a run, and
//! several times: a bit tells.

use crate::page_set::PageSet;
use crate::requester::Wait;
use rustc_hash::FxHashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use wire::Gfn;

/// The requests.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Each page of a run comes and goes here: a tree would be a tenth of what the engine does for it. A guest that picks pages
    /// for their hashes slows itself down; there are a few hundred at most.
    waits: FxHashMap<Gfn, Wait>,
    /// Pages of `waits`.
    pages: PageSet,
}

/// Models tell states apart by this: the order in which requests were made does not count.
impl Hash for Waits {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut waits: Vec<_> = self.waits.iter().collect();
        waits.sort_unstable_by_key(|(gfn, _)| **gfn);
        waits.hash(state);
    }
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.waits.fmt(f)
    }
}

impl Waits {
    /// None yet, of frames below `end`.
    pub(crate) fn new(end: u64) -> Self {
        Self { waits: FxHashMap::default(), pages: PageSet::new(end) }
    }

    /// Bytes that it takes while nothing is on its way.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    pub(crate) fn contains(&self, gfn: Gfn) -> bool {
        self.pages.contains(gfn)
    }

    pub(crate) fn get(&self, gfn: Gfn) -> Option<&Wait> {
        self.contains(gfn).then(|| self.waits.get(&gfn)).flatten()
    }

    pub(crate) fn get_mut(&mut self, gfn: Gfn) -> Option<&mut Wait> {
        if self.contains(gfn) { self.waits.get_mut(&gfn) } else { None }
    }

    /// The request that has waited for the longest.
    pub(crate) fn oldest(&self) -> Option<(Gfn, u64)> {
        let since = self.waits.iter().map(|(gfn, wait)| (*gfn, wait.since));
        since.min_by_key(|(gfn, since)| (*since, *gfn))
    }

    /// Notes a request. A page has one at a time.
    pub(crate) fn insert(&mut self, gfn: Gfn, wait: Wait) {
        self.pages.insert(gfn);
        self.waits.insert(gfn, wait);
    }

    pub(crate) fn remove(&mut self, gfn: Gfn) -> Option<Wait> {
        if self.pages.remove(gfn) { self.waits.remove(&gfn) } else { None }
    }
}
