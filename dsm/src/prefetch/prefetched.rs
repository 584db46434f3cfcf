//! Pages fetched before anyone touched them, on their way into the guest's mapping.
//!
//! ```text
//!   asked for --arrives--> pending --end of the batch--> mapped --first fault after a recall--> (left)
//!       |                                                              ^
//!       +--(a marker)--arrives--> here, but not mapped --first touch---+   which asks for more
//! ```
//!
//! Pages that arrive together are mapped together. One page of each run is left unmapped, the *marker*:
//! touching it costs a fault that no other slice has to answer. It tells that the guest follows the run while there
//! are pages left in front of it.

use dsm_protocol::Gfn;
use std::collections::BTreeSet;

/// Pages remembered. Beyond that all are forgotten, and count as pages that somebody asked for.
const PAGES_MAX: usize = 1 << 14;

/// Pages that were prefetched and not touched since.
#[derive(Debug, Default)]
pub(crate) struct Prefetched {
    pages: BTreeSet<Gfn>,
    markers: BTreeSet<Gfn>,
    /// Arrived, not mapped yet, and whether for writing.
    pending: Vec<(Gfn, bool)>,
}

/// Neighbouring pages to map in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRun {
    pub(crate) first: Gfn,
    pub(crate) pages: u64,
    pub(crate) writable: bool,
}

impl PageRun {
    /// Pages, and whether each is mapped for writing, as runs of neighbours that are alike.
    pub(crate) fn gather(pages: impl Iterator<Item = (Gfn, bool)>) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        for (gfn, writable) in pages {
            match runs.last_mut() {
                Some(run) if run.first.0 + run.pages == gfn.0 && run.writable == writable => {
                    run.pages += 1;
                }
                _ => runs.push(Self { first: gfn, pages: 1, writable }),
            }
        }
        runs
    }
}

impl Prefetched {
    /// The page was asked for before anybody touched it.
    pub(crate) fn expect(&mut self, gfn: Gfn, marker: bool) {
        if self.pages.len() >= PAGES_MAX {
            self.pages.clear();
            self.markers.clear();
        }
        self.pages.insert(gfn);
        if marker {
            self.markers.insert(gfn);
        }
    }

    /// True when no touch of the page was seen.
    pub(crate) fn is_untouched(&self, gfn: Gfn) -> bool {
        self.pages.contains(&gfn)
    }

    /// The guest touches the page; tells whether it is a marker.
    pub(crate) fn touched(&mut self, gfn: Gfn) -> bool {
        self.pages.remove(&gfn);
        self.markers.remove(&gfn)
    }

    /// The page arrives. Returns whether it is to be mapped at once. If not, it is pending or a marker.
    pub(crate) fn maps_now(&mut self, gfn: Gfn, writable: bool) -> bool {
        if !self.pages.contains(&gfn) {
            return true;
        }
        if !self.markers.contains(&gfn) {
            self.pending.push((gfn, writable));
        }
        false
    }

    /// The page has arrived, and is mapped for reading at the end of the batch.
    pub(crate) fn pend(&mut self, gfn: Gfn) {
        self.pending.push((gfn, false));
    }

    /// The page is taken away, or no longer writable. True if it is pending and must be mapped first.
    pub(crate) fn recalled(&mut self, gfn: Gfn) -> bool {
        self.touched(gfn);
        self.pending.iter().any(|(pending, _)| *pending == gfn)
    }

    /// Takes what is pending, as runs of neighbours.
    pub(crate) fn take(&mut self) -> Vec<PageRun> {
        PageRun::gather(self.pending.drain(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_arrive_together_are_one_run() {
        let mut prefetched = Prefetched::default();
        for gfn in [4, 5, 6, 9] {
            prefetched.expect(Gfn(gfn), gfn == 4);
            assert!(!prefetched.maps_now(Gfn(gfn), false));
        }
        prefetched.expect(Gfn(10), false);
        assert!(!prefetched.maps_now(Gfn(10), true));

        let run = |first, pages, writable| PageRun { first: Gfn(first), pages, writable };
        assert_eq!(prefetched.take(), [run(5, 2, false), run(9, 1, false), run(10, 1, true)]);
        assert_eq!(prefetched.take(), []);
    }

    #[test]
    fn page_that_is_touched_meanwhile_is_mapped_at_once() {
        let mut prefetched = Prefetched::default();
        prefetched.expect(Gfn(4), true);
        assert!(prefetched.touched(Gfn(4)));
        assert!(prefetched.maps_now(Gfn(4), false) && !prefetched.is_untouched(Gfn(4)));
    }

    #[test]
    fn recall_names_what_is_pending() {
        let mut prefetched = Prefetched::default();
        prefetched.expect(Gfn(4), false);
        assert!(!prefetched.maps_now(Gfn(4), true));
        assert!(prefetched.recalled(Gfn(4)));
        assert!(!prefetched.recalled(Gfn(5)));
        assert!(prefetched.maps_now(Gfn(4), true));
    }

    #[test]
    fn pages_are_bounded() {
        let mut prefetched = Prefetched::default();
        for gfn in 0..100_000 {
            prefetched.expect(Gfn(gfn), true);
            assert!(prefetched.pages.len() <= PAGES_MAX);
        }
    }
}
