//! Requests of this slice on their way, by page. Whether there is one is asked of every page of a run, and
//! several times: a bit tells.

use crate::page_set::PageSet;
use crate::requester::Wait;
use std::collections::BTreeMap;
use std::fmt;
use wire::Gfn;

/// The requests.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Waits {
    waits: BTreeMap<Gfn, Wait>,
    /// Pages of `waits`.
    pages: PageSet,
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.waits.fmt(f)
    }
}

impl Waits {
    /// None yet, of frames below `end`.
    pub(crate) fn new(end: u64) -> Self {
        Self { waits: BTreeMap::new(), pages: PageSet::new(end) }
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

    /// Notes a request. A page has one at a time.
    pub(crate) fn insert(&mut self, gfn: Gfn, wait: Wait) {
        self.pages.insert(gfn);
        self.waits.insert(gfn, wait);
    }

    pub(crate) fn remove(&mut self, gfn: Gfn) -> Option<Wait> {
        if self.pages.remove(gfn) { self.waits.remove(&gfn) } else { None }
    }
}
