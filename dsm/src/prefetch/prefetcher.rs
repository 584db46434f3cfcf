//! What to ask for before anybody touches it: runs of pages ([`Runs`]), and pages that are missed together again and
//! again ([`Correlations`]).

use dsm_protocol::Mechanisms;
use dsm_protocol::prediction::{Correlations, Miss, Predictor, Runs, Touch, Window};

/// The predictors of one slice, and what came of them.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    runs: Option<Runs>,
    correlations: Option<Correlations>,
    /// Correlated pages asked for.
    pub(crate) correlated_requests: u64,
}

impl Prefetcher {
    pub(crate) fn new(mechanisms: Mechanisms) -> Self {
        let runs = mechanisms.runs.then(|| Runs::new(mechanisms));
        let correlations = mechanisms.correlation.then(Correlations::default);
        Self { runs, correlations, correlated_requests: 0 }
    }

    /// Switches correlation prefetch. What was learnt is kept while it stays on.
    pub(crate) fn set_correlation(&mut self, on: bool) {
        self.correlations = on.then(|| self.correlations.take().unwrap_or_default());
    }

    /// The windows to fetch after a touch of a page.
    pub(crate) fn windows(&mut self, touch: Touch) -> Vec<Window> {
        self.runs.as_mut().map_or_else(Vec::new, |runs| runs.touched(touch, &|_| true))
    }

    /// The correlated pages to ask for with a miss, of those that this slice `lacks`.
    pub(crate) fn correlated(&mut self, touch: Touch, lacks: &dyn Fn(Miss) -> bool) -> Vec<Window> {
        let Some(correlations) = &mut self.correlations else { return Vec::new() };
        let found = correlations.touched(touch, lacks);
        self.correlated_requests += u64::try_from(found.len()).unwrap_or(u64::MAX);
        found
    }
}
