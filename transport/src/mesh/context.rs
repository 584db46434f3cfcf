//! What every connection of one VM has in common, and the calls that each slice makes.

use super::error::MeshError;
use super::transport::MeshTransport;
use crate::config::{CarrierKind, Config, RdmaMemory};
use crate::credential::Keyring;
use crate::handshake::{ConnectionId, Role, VmId, call};
use crate::memory::PageMemory;
use crate::rdma::{self, Endpoint, RdmaTransport};
use crate::shm::{self, Identity, Pair, ShmTransport};
use crate::tcp::TcpTransport;
use crate::traits::Class;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use wire::{Epoch, SliceId};

/// How long one caller may take to prove itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a bootstrap that proved itself may take to send the assignment.
pub(super) const PATIENCE_PROVEN: Duration = Duration::from_secs(60);

/// A peer and the streams to it, one per class.
pub(super) type Connected = (SliceId, [TcpStream; Class::COUNT]);

/// What every connection of one VM has in common.
#[derive(Clone, Debug)]
pub(super) struct MeshContext {
    pub(super) keys: Keyring,
    pub(super) vm: VmId,
    pub(super) epoch: Epoch,
    pub(super) local: SliceId,
    pub(super) config: Config,
    /// The memory that this slice exposes, if it is asked for.
    pub(super) memory: Option<PageMemory>,
}

impl MeshContext {
    pub(super) fn connection(&self, role: Role, to: SliceId) -> ConnectionId {
        ConnectionId { role, vm: self.vm, epoch: self.epoch, from: self.local, to }
    }

    /// Calls `to` and passes the handshake.
    pub(super) fn call(
        &self,
        role: Role,
        to: SliceId,
        address: SocketAddr,
        deadline: Instant,
    ) -> Result<TcpStream, MeshError> {
        let connect = |source| MeshError::Connect { slice: to, address, source };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(connect(io::ErrorKind::TimedOut.into()));
        }
        let mut stream = TcpStream::connect_timeout(&address, left).map_err(connect)?;
        stream.set_nodelay(true).map_err(connect)?;
        call(&mut stream, &self.keys, &self.connection(role, to), deadline).map_err(|source| {
            MeshError::Handshake { with: format!("{to} at {address}"), source }
        })?;
        Ok(stream)
    }

    /// Calls `to` once per class.
    pub(super) fn call_classes(
        &self,
        to: SliceId,
        address: SocketAddr,
        deadline: Instant,
    ) -> Result<[TcpStream; Class::COUNT], MeshError> {
        Ok([
            self.call(Role::Frames(0), to, address, deadline)?,
            self.call(Role::Frames(1), to, address, deadline)?,
            self.call(Role::Frames(2), to, address, deadline)?,
            self.call(Role::Frames(3), to, address, deadline)?,
        ])
    }

    /// Sets up a carrier over streams that are all there. TCP has nothing left to do.
    pub(super) fn negotiate(
        &self,
        kind: CarrierKind,
        streams: &mut [Connected],
        deadline: Instant,
    ) -> Result<Meeting, MeshError> {
        let failed = |(slice, error): (SliceId, io::Error)| MeshError::Control {
            with: format!("{slice} over {kind}"),
            source: error.into(),
        };
        match kind {
            CarrierKind::Tcp => Ok(Ok(Links::Tcp)),
            CarrierKind::Shm => {
                // The key of a connection does not depend on its role.
                let connection = self.connection(Role::SharedMemory, self.local);
                let identity = Identity { keys: &self.keys, connection };
                let pairs = shm::negotiate(&identity, streams, deadline).map_err(failed)?;
                Ok(pairs.map(Links::Shm))
            }
            CarrierKind::Rdma => {
                let exposes = self.config.rdma_memory == RdmaMemory::Registered;
                let memory = self.memory.as_ref().filter(|_| exposes);
                let lease = self.config.lease;
                let endpoints =
                    rdma::negotiate(streams, memory, lease, deadline).map_err(failed)?;
                Ok(endpoints.map(Links::Rdma))
            }
        }
    }

    /// Starts the transport on the carrier that all agreed on.
    pub(super) fn transport(
        self,
        streams: Vec<Connected>,
        links: Links,
    ) -> Result<MeshTransport, MeshError> {
        match links {
            Links::Tcp => TcpTransport::from_streams(self.local, streams, self.config)
                .map(|transport| MeshTransport::new(CarrierKind::Tcp, transport))
                .map_err(MeshError::Transport),
            Links::Shm(pairs) => ShmTransport::new(self.local, pairs, self.config)
                .map(|transport| MeshTransport::new(CarrierKind::Shm, transport))
                .map_err(MeshError::SharedMemory),
            Links::Rdma(endpoints) => {
                let join = |((slice, [life, ..]), endpoint): (Connected, Endpoint)| {
                    (slice, endpoint, life)
                };
                let peers = streams.into_iter().zip(endpoints).map(join).collect();
                RdmaTransport::new(self.local, peers, self.config)
                    .map(|transport| MeshTransport::new(CarrierKind::Rdma, transport))
                    .map_err(MeshError::QueuePairs)
            }
        }
    }
}

/// What a slice has set up to all its peers, on one carrier.
#[derive(Debug)]
pub(super) enum Links {
    /// The streams themselves.
    Tcp,
    Shm(Vec<Pair>),
    Rdma(Vec<Endpoint>),
}

/// The links on a carrier, or why it cannot be used here.
pub(super) type Meeting = Result<Links, String>;
