//! Whether a node is at rest.

use crate::node::Node;
use crate::pages::PageCopy;
use thiserror::Error;
use wire::Gfn;

/// What is under way in a node that is to be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotAtRest {
    /// This slice asked for a page that has not come.
    #[error("a request for {0} is on its way")]
    Requested(Gfn),
    /// Replicas of a page are made or ended, and this slice is its home.
    #[error("replicas of {0} are being made or ended")]
    Serving(Gfn),
    /// Another slice asked for a page that this slice keeps for a while.
    #[error("another slice waits for {0}")]
    Recalled(Gfn),
    /// A thread of the VMM uses a page, or waits for it.
    #[error("the VMM uses {0}")]
    Pinned(Gfn),
    /// A replica that not everyone has yet.
    #[error("{0} becomes a replica")]
    Forming(Gfn),
    /// A replica ends.
    #[error("the replica of {0} ends")]
    Ending(Gfn),
    /// A replica has changes that other slices have not been told of.
    #[error("changes of the replica of {0} were not flushed")]
    Unflushed(Gfn),
    /// Changes of page tables were sent and not acknowledged.
    #[error("changes of page tables have not been acknowledged")]
    Flushing,
    /// The home of a page moves.
    #[error("the home of {0} moves")]
    HomeMoves(Gfn),
    /// A step that failed.
    #[error("a step has not ended")]
    MidStep,
}

impl Node {
    /// Begins nothing on its own any more, or does so again. Faults and messages are served as ever: it is the vCPUs
    /// that must not run.
    pub fn set_resting(&mut self, resting: bool) {
        self.resting = resting;
    }

    /// True while nothing is begun that nobody waits for.
    #[must_use]
    pub fn is_resting(&self) -> bool {
        self.resting
    }

    /// What is under way here. None for a node at rest, unless a message to it is on its way.
    #[must_use]
    pub fn in_flight(&self) -> Option<NotAtRest> {
        if let Some((gfn, _)) = self.outstanding.oldest() {
            return Some(NotAtRest::Requested(gfn));
        }
        if let Some(gfn) = self.serving.keys().next() {
            return Some(NotAtRest::Serving(*gfn));
        }
        if let Some(gfn) = self.deferred.first() {
            return Some(NotAtRest::Recalled(gfn));
        }
        if let Some(gfn) = self.pins.keys().next() {
            return Some(NotAtRest::Pinned(*gfn));
        }
        if let Some(gfn) = self.home_moves.first() {
            return Some(NotAtRest::HomeMoves(gfn));
        }
        let releases = &self.releases;
        let ending = releases.demotions.keys().chain(releases.leaving.keys());
        let ending = ending.chain(releases.left.keys()).chain(releases.unsent.keys());
        if let Some(gfn) = ending.copied().next() {
            return Some(NotAtRest::Ending(gfn));
        }
        if !releases.is_empty() || !releases.new.is_empty() {
            return Some(NotAtRest::Flushing);
        }
        if !self.loopback.is_empty() || self.broken.is_some() {
            return Some(NotAtRest::MidStep);
        }
        // Its converter has asked for it; a slice that was offered one has not.
        let mut replicas = self.tables.replicas().map(|(gfn, _)| gfn);
        let forming = replicas.find(|gfn| self.pages.copy(*gfn) != PageCopy::Replica);
        forming.map(NotAtRest::Forming)
    }
}
