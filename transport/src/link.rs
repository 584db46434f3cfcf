//! Peers on their way into a running transport and out of it.
//!
//! ```text
//!  another thread: handshake, carrier ─> PeerLink ─add_peer─> (engine) ─remove_peer─> FormerPeer ─> dropped elsewhere
//! ```
//!
//! The thread that owns a transport must not wait. So all that can take time, buffers included, is done before a peer is
//! added and after it was removed: it only puts descriptors into its epoll instance and takes them out.

use std::any::Any;
use std::fmt;
use std::io;
use wire::SliceId;

/// Everything between this slice and one more peer, ready to be used. Nobody reads from it and nothing renews its
/// lease before [`Transport::add_peer`](crate::Transport::add_peer). Dropping it tells the peer that it is off.
pub struct PeerLink {
    peer: SliceId,
    /// As its engine needs it.
    body: Box<dyn Any + Send>,
}

impl PeerLink {
    pub(crate) fn new(peer: SliceId, body: impl Any + Send) -> Self {
        Self { peer, body: Box::new(body) }
    }

    /// The other slice.
    #[must_use]
    pub fn peer(&self) -> SliceId {
        self.peer
    }

    /// What it was made from, if it is that.
    pub(crate) fn into_body<T: Any>(self) -> Option<T> {
        self.body.downcast().ok().map(|body| *body)
    }
}

impl fmt::Debug for PeerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerLink").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Why a peer was not added. The transport is as it was; the peer was told that it is off.
#[derive(Debug, thiserror::Error)]
pub enum AddPeerError {
    /// The peer has its place already, lost or not, or is this slice.
    #[error("{peer} is a member already")]
    Member {
        /// The peer.
        peer: SliceId,
    },
    /// The link is of another kind than the transport.
    #[error("{peer} was reached over another carrier than that of this transport")]
    OtherCarrier {
        /// The peer.
        peer: SliceId,
    },
    /// The transport has its peers for good.
    #[error("this transport takes no more peers, so {peer} cannot join")]
    Fixed {
        /// The peer.
        peer: SliceId,
    },
    /// The descriptors cannot be watched.
    #[error("the connections to {peer} cannot be watched")]
    Watch {
        /// The peer.
        peer: SliceId,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
}

/// What is left of a peer that was removed: memory, descriptors, and what had not been sent. Dropping it gives all of
/// that back, which can take some time: half a second over RDMA, so not on the transport's thread.
pub struct FormerPeer {
    peer: SliceId,
    _rest: Box<dyn Any + Send>,
}

impl FormerPeer {
    pub(crate) fn new(peer: SliceId, rest: impl Any + Send) -> Self {
        Self { peer, _rest: Box::new(rest) }
    }

    /// Who it was.
    #[must_use]
    pub fn peer(&self) -> SliceId {
        self.peer
    }
}

impl fmt::Debug for FormerPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormerPeer").field("peer", &self.peer).finish_non_exhaustive()
    }
}
