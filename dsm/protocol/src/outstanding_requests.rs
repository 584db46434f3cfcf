//! Outstanding requests of this slice, by page. For every page of a run it is looked up several times whether there is
//! one, so each page has a bit that tells.

use crate::page_set::PageSet;
use rustc_hash::FxHashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use wire::{Access, Gfn, Table};

/// Who a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Demand {
    /// Nobody has touched the page yet. `kept`: when it comes it has a hold window all the same.
    Ahead { kept: bool },
    /// Somebody has waited for the page since then. That is later than the request if it was made ahead.
    Awaited(u64),
}

/// A request of this slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OutstandingRequest {
    pub(crate) want: Access,
    pub(crate) demand: Demand,
    /// It may have been asked for in a run, whose stream later messages can overtake.
    pub(crate) in_run: bool,
    pub(crate) since: u64,
    /// For how long a holder kept the page after it had been asked, at most.
    pub(crate) held_us: u32,
    /// What was granted, and how many acknowledgements belong to it.
    pub(crate) granted: Option<(Access, u16)>,
    pub(crate) acks: u16,
    pub(crate) table: Option<Table>,
    /// The home is busy with the page until it hears how this ends.
    pub(crate) confirms: bool,
    /// Replicas offered, answers still to come.
    pub(crate) offers: Option<u16>,
}

/// The requests.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct OutstandingRequests {
    /// Each page of a run comes and goes here. A tree would be a tenth of the engine's work for a page. A guest that picks
    /// pages for their hashes only slows itself down: there are some hundred entries, and 64 more for each vCPU that waits.
    requests: FxHashMap<Gfn, OutstandingRequest>,
    /// Pages of `requests`.
    pages: PageSet,
}

/// Models tell states apart by this hash. The order in which requests were made does not count.
impl Hash for OutstandingRequests {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut requests: Vec<_> = self.requests.iter().collect();
        requests.sort_unstable_by_key(|(gfn, _)| **gfn);
        requests.hash(state);
    }
}

impl fmt::Debug for OutstandingRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.requests.fmt(f)
    }
}

impl OutstandingRequests {
    /// None yet, of frames below `end`.
    pub(crate) fn new(end: u64) -> Self {
        Self { requests: FxHashMap::default(), pages: PageSet::new(end) }
    }

    /// Bytes that it takes while nothing is on its way.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.pages.bytes()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn contains(&self, gfn: Gfn) -> bool {
        self.pages.contains(gfn)
    }

    pub(crate) fn get(&self, gfn: Gfn) -> Option<&OutstandingRequest> {
        self.contains(gfn).then(|| self.requests.get(&gfn)).flatten()
    }

    pub(crate) fn get_mut(&mut self, gfn: Gfn) -> Option<&mut OutstandingRequest> {
        if self.contains(gfn) { self.requests.get_mut(&gfn) } else { None }
    }

    /// The request that has waited for the longest.
    pub(crate) fn oldest(&self) -> Option<(Gfn, u64)> {
        let since = self.requests.iter().map(|(gfn, request)| (*gfn, request.since));
        since.min_by_key(|(gfn, since)| (*since, *gfn))
    }

    /// Notes a request. A page has one at a time.
    pub(crate) fn insert(&mut self, gfn: Gfn, request: OutstandingRequest) {
        self.pages.insert(gfn);
        self.requests.insert(gfn, request);
    }

    pub(crate) fn remove(&mut self, gfn: Gfn) -> Option<OutstandingRequest> {
        if self.pages.remove(gfn) { self.requests.remove(&gfn) } else { None }
    }
}
