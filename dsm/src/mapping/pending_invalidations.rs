//! Invalidations of a step, put off to its end so that neighbours cost one call.
//!
//! A call costs about a microsecond, and an interrupt to each core on which the guest runs
//! (facts: userfaultfd, section 3). For 64 neighbours it costs hardly more than for one.

use dsm_protocol::Gfn;

/// What is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalidation {
    /// Write access: the page stays mapped.
    Write,
    /// The mapping.
    All,
}

/// Neighbours from which the same is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidationRun {
    pub(crate) first: Gfn,
    pub(crate) pages: u64,
    pub(crate) what: Invalidation,
}

impl InvalidationRun {
    pub(crate) fn iter(self) -> impl Iterator<Item = Gfn> {
        (self.first.0..self.first.0 + self.pages).map(Gfn)
    }
}

/// The invalidations that were put off, in order.
#[derive(Debug, Default)]
pub(crate) struct PendingInvalidations {
    runs: Vec<InvalidationRun>,
}

impl PendingInvalidations {
    pub(crate) fn push(&mut self, gfn: Gfn, what: Invalidation) {
        match self.runs.last_mut() {
            Some(run) if run.what == what && run.first.0 + run.pages == gfn.0 => run.pages += 1,
            _ => self.runs.push(InvalidationRun { first: gfn, pages: 1, what }),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Hands the runs over. Give the vector back to [`Self::recycle`].
    pub(crate) fn take(&mut self) -> Vec<InvalidationRun> {
        std::mem::take(&mut self.runs)
    }

    /// Keeps the room of a vector for later steps.
    pub(crate) fn recycle(&mut self, mut runs: Vec<InvalidationRun>) {
        runs.clear();
        self.runs = runs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_kind_are_one_run_in_order() {
        let mut pending_invalidations = PendingInvalidations::default();
        for gfn in [4, 5, 6, 9] {
            pending_invalidations.push(Gfn(gfn), Invalidation::Write);
        }
        pending_invalidations.push(Gfn(10), Invalidation::All);
        pending_invalidations.push(Gfn(4), Invalidation::All);

        let runs = pending_invalidations.take();
        let short: Vec<_> = runs.iter().map(|run| (run.first.0, run.pages, run.what)).collect();
        assert_eq!(
            short,
            [
                (4, 3, Invalidation::Write),
                (9, 1, Invalidation::Write),
                (10, 1, Invalidation::All),
                (4, 1, Invalidation::All)
            ]
        );
        pending_invalidations.recycle(runs);
        assert!(pending_invalidations.is_empty());
    }
}
