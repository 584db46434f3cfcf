//! What a mesh ends in: a transport on the carrier that its slices agreed on.

use super::context::{Connected, Links, MeshContext};
use super::error::MeshError;
use super::membership::{Membership, Roster};
use crate::config::CarrierKind;
#[cfg(feature = "rdma")]
use crate::rdma::{Endpoint, RdmaTransport};
use crate::shm::ShmTransport;
use crate::tcp::TcpTransport;
use crate::traits::Transport;
use std::fmt;

/// A transport between hosts, what carries it, and the way to one more peer.
pub struct MeshTransport {
    /// What carries the frames.
    pub kind: CarrierKind,
    /// The transport.
    pub transport: Box<dyn Transport>,
    /// What this slice needs when another one joins.
    pub membership: Membership,
    /// On a slice that joins a VM that runs: what [`Invitation::admit`](super::Invitation::admit) was given.
    pub state: Option<Vec<u8>>,
}

impl MeshTransport {
    /// Starts the transport on the carrier that all agreed on. The bootstrap has the roster.
    pub(super) fn start(
        context: MeshContext,
        streams: Vec<Connected>,
        links: Links,
        roster: Option<Roster>,
    ) -> Result<Self, MeshError> {
        let (local, config, kind) = (context.local, context.config.clone(), links.kind());
        let transport: Box<dyn Transport> = match links {
            Links::Tcp => {
                let transport = TcpTransport::from_streams(local, streams, config);
                Box::new(transport.map_err(MeshError::Transport)?)
            }
            Links::Shm(pairs) => {
                let transport = ShmTransport::new(local, pairs, config);
                Box::new(transport.map_err(MeshError::SharedMemory)?)
            }
            #[cfg(feature = "rdma")]
            Links::Rdma(endpoints) => {
                let join = |((slice, [life, ..]), endpoint): (Connected, Endpoint)| {
                    (slice, endpoint, life)
                };
                let peers = streams.into_iter().zip(endpoints).map(join).collect();
                let transport = RdmaTransport::new(local, peers, config);
                Box::new(transport.map_err(MeshError::QueuePairs)?)
            }
        };
        let membership = Membership::new(context, kind, roster);
        Ok(Self { kind, transport, membership, state: None })
    }
}

impl fmt::Debug for MeshTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshTransport").field("kind", &self.kind).finish_non_exhaustive()
    }
}
