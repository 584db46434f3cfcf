//! What to ask for before anybody touches it: neighbours and strides ([`Runs`]), and pages that are missed together
//! again and again ([`Correlations`]).

use dsm_protocol::prediction::{Correlations, Miss, Runs, Window};
use dsm_protocol::{Access, Gfn};

/// The predictors of one slice, and what came of them.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    /// None when runs are not prefetched.
    runs: Option<Runs>,
    correlations: Option<Correlations>,
    /// Correlated pages asked for.
    pub(crate) correlated_requests: u64,
    /// Of these, pages that were here already and were to be written.
    pub(crate) upgrades: u64,
}

impl Prefetcher {
    /// With all predictors, or with none.
    pub(crate) fn new(on: bool) -> Self {
        let (runs, correlations) = (on.then(Runs::default), on.then(Correlations::default));
        Self { runs, correlations, correlated_requests: 0, upgrades: 0 }
    }

    /// Switches correlation prefetch. What was learnt is kept while it stays on.
    pub(crate) fn set_correlation(&mut self, on: bool) {
        self.correlations = on.then(|| self.correlations.take().unwrap_or_default());
    }

    /// The windows to fetch after a touch of a page. `missed`: it was neither here nor on its way; `had`: it was here
    /// before. None when runs are not prefetched.
    pub(crate) fn windows(
        &mut self,
        gfn: Gfn,
        want: Access,
        missed: bool,
        had: impl FnOnce() -> bool,
    ) -> Option<Vec<Window>> {
        let runs = self.runs.as_mut()?;
        Some(if missed && had() {
            runs.fault_again(gfn, want)
        } else {
            runs.fault(gfn, want, missed)
        })
    }

    /// The correlated pages to ask for with a miss, of those that `misses` says this slice misses.
    pub(crate) fn correlated(
        &mut self,
        miss: Miss,
        now_ns: u64,
        window_ns: u64,
        misses: impl Fn(Miss) -> bool,
    ) -> Vec<Miss> {
        let Some(correlations) = &mut self.correlations else { return Vec::new() };
        correlations.missed(miss, now_ns, window_ns, misses)
    }
}
