//! Pages whose guest mapping is read-only to find out what a vCPU wants, see [`super::workers`].

use dsm_protocol::Gfn;
use std::ops::Range;

/// How long the mapping stays read-only once the page can be read. The worker must have failed by
/// then. Otherwise it would fault on a page that can be read, and its wish to write would be believed.
const GRACE_NS: u64 = 10_000_000;
/// Pages probed at a time. Each splits the guest mapping, and the kernel keeps a limited number of parts.
const PROBES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Page {
    gfn: Gfn,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is not here, or has come in this step.
    Open { readable: bool },
    /// The page has come; the probe ends then.
    Until(u64),
}

/// The probed pages, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ProbePages(Vec<Page>);

impl ProbePages {
    pub(crate) fn contains(&self, gfn: Gfn) -> bool {
        self.0.iter().any(|page| page.gfn == gfn)
    }

    /// True when a page of a range of frames is probed.
    pub(crate) fn any_in(&self, frames: &Range<u64>) -> bool {
        self.0.iter().any(|page| frames.contains(&page.gfn.0))
    }

    /// Adds a page that is not in. Returns the page that has to make room for it, if any.
    pub(crate) fn push(&mut self, gfn: Gfn) -> Option<Gfn> {
        let oldest = (self.0.len() >= PROBES_MAX).then(|| self.0.remove(0).gfn);
        self.0.push(Page { gfn, state: State::Open { readable: false } });
        oldest
    }

    /// Takes a page out; tells whether it was in.
    pub(crate) fn remove(&mut self, gfn: Gfn) -> bool {
        let before = self.0.len();
        self.0.retain(|page| page.gfn != gfn);
        self.0.len() < before
    }

    /// The page that was probed last. A vCPU has one access in hand.
    pub(crate) fn latest(&self) -> Option<Gfn> {
        self.0.last().map(|page| page.gfn)
    }

    /// The page can be read from this step on.
    pub(crate) fn readable(&mut self, gfn: Gfn) {
        if let Some(page) = self.0.iter_mut().find(|page| page.gfn == gfn) {
            page.state = State::Open { readable: true };
        }
    }

    /// Starts the grace of pages that can be read, and takes out those whose grace is over.
    pub(crate) fn expired(&mut self, now_ns: u64) -> Vec<Gfn> {
        for page in &mut self.0 {
            if page.state == (State::Open { readable: true }) {
                page.state = State::Until(now_ns + GRACE_NS);
            }
        }
        let over = |page: &Page| matches!(page.state, State::Until(due) if due <= now_ns);
        let expired = self.0.iter().filter(|page| over(page)).map(|page| page.gfn).collect();
        self.0.retain(|page| !over(page));
        expired
    }

    /// All of them.
    pub(crate) fn all(self) -> impl Iterator<Item = Gfn> {
        self.0.into_iter().map(|page| page.gfn)
    }

    /// When the next grace is over.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let due = |page: &Page| match page.state {
            State::Until(due) => Some(due),
            State::Open { .. } => None,
        };
        self.0.iter().filter_map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_starts_when_the_page_can_be_read() {
        let mut probes = ProbePages::default();
        probes.push(Gfn(1));
        probes.push(Gfn(2));
        assert_eq!(probes.expired(5), []);
        probes.readable(Gfn(1));
        assert_eq!(probes.due_ns(), None);
        assert_eq!(probes.expired(100), []);
        assert_eq!(probes.due_ns(), Some(100 + GRACE_NS));
        assert_eq!(probes.expired(99 + GRACE_NS), []);
        assert_eq!(probes.expired(100 + GRACE_NS), [Gfn(1)]);
        assert_eq!(probes.latest(), Some(Gfn(2)));
    }

    #[test]
    fn oldest_page_goes_for_one_too_many() {
        let mut probes = ProbePages::default();
        for gfn in 0..1024 {
            assert_eq!(probes.push(Gfn(gfn)), None);
        }
        assert_eq!(probes.push(Gfn(9999)), Some(Gfn(0)));
        assert!(!probes.contains(Gfn(0)) && probes.contains(Gfn(9999)));
    }
}
