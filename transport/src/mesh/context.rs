//! What every connection of one VM has in common, and the calls that each slice makes.

use super::error::MeshError;
#[cfg(feature = "rdma")]
use crate::config::RdmaMemory;
#[cfg(not(feature = "rdma"))]
use crate::config::WITHOUT_RDMA;
use crate::config::{CarrierKind, Config};
use crate::credential::Keyring;
use crate::handshake::{ConnectionId, Role, VmId, call};
use crate::link::PeerLink;
use crate::memory::PageMemory;
#[cfg(feature = "rdma")]
use crate::one_line;
#[cfg(feature = "rdma")]
use crate::rdma::{self, Endpoint};
use crate::shm::{self, Identity, Pair};
use crate::tcp;
use crate::traits::Class;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout,
};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use wire::{Epoch, SliceId};

/// How long one caller may take to prove itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a bootstrap that proved itself may take to send the assignment.
pub(super) const PATIENCE_PROVEN: Duration = Duration::from_secs(60);

/// How long a caller waits before it calls again each time that it was crowded out. Callers that were crowded
/// out together must not come back together with all others for ever, so the last pauses are long.
const CROWDED_OUT: [Duration; 6] = [
    Duration::from_millis(10),
    Duration::from_millis(30),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(900),
    Duration::from_millis(2700),
];

/// How long telling a companion that it is off may take.
pub(super) const PARTING: Duration = Duration::from_secs(1);

/// Silence on a control connection after which its other end is asked whether it is there, by the kernel.
const ASK_AFTER: Duration = Duration::from_secs(5);
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Milliseconds in which it must have answered, or taken what was sent.
const GONE_AFTER: u32 = 15_000;

/// Has the kernel end a control connection whose other end has vanished, as with its host: who waits there may have nothing to
/// say for as long as all slices read their memory.
pub(super) fn keep_alive(control: &TcpStream) -> io::Result<()> {
    set_socket_keepalive(control, true)?;
    set_tcp_keepidle(control, ASK_AFTER)?;
    set_tcp_keepintvl(control, ASK_AGAIN)?;
    Ok(set_tcp_user_timeout(control, GONE_AFTER)?)
}

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

    /// Calls `to` and passes the handshake. Strangers may crowd out a caller before it has proved itself, so one
    /// whose connection is closed then calls again, a few times. Who is not wanted is told so, and does not.
    pub(super) fn call(
        &self,
        role: Role,
        to: SliceId,
        address: SocketAddr,
        deadline: Instant,
    ) -> Result<TcpStream, MeshError> {
        let (mut again, mut hung_up) = (CROWDED_OUT.iter(), None);
        loop {
            let error = match self.call_once(role, to, address, deadline) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            if !error.is_hang_up() {
                // One that closed first and is not there any more has gone away: the first is the better reason.
                let is_gone = matches!(error, MeshError::Connect { .. });
                return Err(hung_up.filter(|_| is_gone).unwrap_or(error));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(pause) = again.next().filter(|pause| **pause < left) else {
                return Err(error);
            };
            thread::sleep(*pause);
            hung_up = Some(error);
        }
    }

    fn call_once(
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
        if role == Role::Control {
            keep_alive(&stream).map_err(connect)?;
        }
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
            // Others are told so, and the next carrier is tried.
            #[cfg(not(feature = "rdma"))]
            CarrierKind::Rdma => Ok(Err(WITHOUT_RDMA.to_owned())),
            // There is nobody to find out with. A slice that is alone takes a carrier for those that may come.
            #[cfg(feature = "rdma")]
            CarrierKind::Rdma if streams.is_empty() => {
                let found = rdma::available().map_err(|error| one_line(&error));
                Ok(found.map(|_| Links::Rdma(Vec::new())))
            }
            #[cfg(feature = "rdma")]
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

    /// Calls a newcomer, and sets up the carrier of the VM to it.
    pub(super) fn meet(
        &self,
        kind: CarrierKind,
        slice: SliceId,
        address: SocketAddr,
        deadline: Instant,
    ) -> Result<PeerLink, MeshError> {
        let streams = self.call_classes(slice, address, deadline)?;
        let mut connected = [(slice, streams)];
        let links = self.negotiate(kind, &mut connected, deadline)?;
        let links = links.map_err(|text| MeshError::Newcomer { slice, kind, text })?;
        let [peer] = connected;
        links.into_link(peer, &self.config)
    }
}

/// What a slice has set up to all its peers, on one carrier.
#[derive(Debug)]
pub(super) enum Links {
    /// The streams themselves.
    Tcp,
    Shm(Vec<Pair>),
    #[cfg(feature = "rdma")]
    Rdma(Vec<Endpoint>),
}

impl Links {
    pub(super) fn kind(&self) -> CarrierKind {
        match self {
            Self::Tcp => CarrierKind::Tcp,
            Self::Shm(_) => CarrierKind::Shm,
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => CarrierKind::Rdma,
        }
    }

    /// What was set up to the only peer.
    fn into_link(
        self,
        (slice, streams): Connected,
        config: &Config,
    ) -> Result<PeerLink, MeshError> {
        let missing = || MeshError::Missing { slice };
        match self {
            Self::Tcp => tcp::link(slice, streams, config).map_err(MeshError::Transport),
            Self::Shm(mut pairs) => Ok(shm::link(pairs.pop().ok_or_else(missing)?, config)),
            #[cfg(feature = "rdma")]
            Self::Rdma(mut endpoints) => {
                let (endpoint, [life, ..]) = (endpoints.pop().ok_or_else(missing)?, streams);
                rdma::link(slice, endpoint, life, config).map_err(MeshError::QueuePairs)
            }
        }
    }
}

/// The links on a carrier, or why it cannot be used here.
pub(super) type Meeting = Result<Links, String>;
