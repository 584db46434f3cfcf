//! Access that a step takes away from pages, put off to its end so that neighbours cost one call.
//!
//! A call costs about a microsecond, and an interrupt to each core on which the guest runs
//! (facts: userfaultfd, section 3); for 64 neighbours hardly more than for one.

use dsm_protocol::Gfn;

/// What is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taking {
    /// Write access: the page stays mapped.
    Write,
    /// The mapping.
    All,
}

/// Neighbours of which the same is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) first: Gfn,
    pub(crate) pages: u64,
    pub(crate) what: Taking,
}

impl Taken {
    pub(crate) fn iter(self) -> impl Iterator<Item = Gfn> {
        (self.first.0..self.first.0 + self.pages).map(Gfn)
    }
}

/// What was put off, in order.
#[derive(Debug, Default)]
pub(crate) struct Takings {
    runs: Vec<Taken>,
}

impl Takings {
    pub(crate) fn push(&mut self, gfn: Gfn, what: Taking) {
        match self.runs.last_mut() {
            Some(run) if run.what == what && run.first.0 + run.pages == gfn.0 => run.pages += 1,
            _ => self.runs.push(Taken { first: gfn, pages: 1, what }),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Hands the runs over. Give the vector back to [`Self::recycle`].
    pub(crate) fn take(&mut self) -> Vec<Taken> {
        std::mem::take(&mut self.runs)
    }

    /// Keeps the room of a vector for later steps.
    pub(crate) fn recycle(&mut self, mut runs: Vec<Taken>) {
        runs.clear();
        self.runs = runs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_kind_are_one_run_in_order() {
        let mut takings = Takings::default();
        for gfn in [4, 5, 6, 9] {
            takings.push(Gfn(gfn), Taking::Write);
        }
        takings.push(Gfn(10), Taking::All);
        takings.push(Gfn(4), Taking::All);

        let runs = takings.take();
        let short: Vec<_> = runs.iter().map(|run| (run.first.0, run.pages, run.what)).collect();
        assert_eq!(
            short,
            [
                (4, 3, Taking::Write),
                (9, 1, Taking::Write),
                (10, 1, Taking::All),
                (4, 1, Taking::All)
            ]
        );
        takings.recycle(runs);
        assert!(takings.is_empty());
    }
}
