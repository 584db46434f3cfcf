//! How many messages went to each other slice and came from it.
//!
//! Not every message is answered. So a slice alone cannot tell whether one to it is still on its way; two slices that
//! compare these numbers can.

use std::hash::{Hash, Hasher};
use wire::SliceId;

/// Messages to and from one other slice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// Messages to and from each other slice. They never influence the protocol.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channels {
    /// By the number of the slice. There are 64 at most.
    peers: Vec<Counts>,
}

impl Channels {
    pub(crate) fn new(slices: &[SliceId]) -> Self {
        let highest = slices.iter().map(|slice| usize::from(slice.0)).max();
        Self { peers: vec![Counts::default(); highest.map_or(0, |highest| highest + 1)] }
    }

    /// A slice has joined: nothing was sent to it or came from it.
    pub(crate) fn begin(&mut self, peer: SliceId) {
        let places = self.peers.len().max(usize::from(peer.0) + 1);
        self.peers.resize(places, Counts::default());
        self.set(peer, Counts::default());
    }

    pub(crate) fn sent(&mut self, to: SliceId) {
        if let Some(counts) = self.peers.get_mut(usize::from(to.0)) {
            counts.sent += 1;
        }
    }

    /// Counts a message of another epoch as well: it is not on its way any more.
    pub(crate) fn received(&mut self, from: SliceId) {
        if let Some(counts) = self.peers.get_mut(usize::from(from.0)) {
            counts.received += 1;
        }
    }

    pub(crate) fn get(&self, peer: SliceId) -> Counts {
        self.peers.get(usize::from(peer.0)).copied().unwrap_or_default()
    }

    pub(crate) fn set(&mut self, peer: SliceId, counts: Counts) {
        if let Some(place) = self.peers.get_mut(usize::from(peer.0)) {
            *place = counts;
        }
    }
}

/// Two nodes that differ only in what they counted are the same state to a model checker.
impl PartialEq for Channels {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Channels {}
impl Hash for Channels {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
