//! What every connection of one VM has in common, and the calls that each slice makes.

use super::error::MeshError;
use super::transport::MeshTransport;
use crate::config::{CarrierKind, Config, RdmaMemory};
use crate::credential::Keyring;
use crate::handshake::{Party, Role, VmId, call};
use crate::memory::PageMemory;
use crate::rdma::{Endpoint, Meeting, RdmaTransport, meet};
use crate::seam::Class;
use crate::tcp::TcpTransport;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{Epoll, EpollEvent};
use wire::{Epoch, SliceId};

/// How long one caller may take to prove itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a bootstrap that proved itself may take to send the assignment.
pub(super) const PATIENCE_PROVEN: Duration = Duration::from_secs(60);

/// A peer and the streams to it, one per class.
pub(super) type Connected = (SliceId, [TcpStream; Class::COUNT]);

/// What every connection of one VM has in common.
#[derive(Clone, Debug)]
pub(super) struct Circle {
    pub(super) keys: Keyring,
    pub(super) vm: VmId,
    pub(super) epoch: Epoch,
    pub(super) local: SliceId,
    pub(super) config: Config,
    /// The memory that this slice exposes, if it is asked for.
    pub(super) memory: Option<PageMemory>,
}

impl Circle {
    pub(super) fn party(&self, role: Role, to: SliceId) -> Party {
        Party { role, vm: self.vm, epoch: self.epoch, from: self.local, to }
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
        call(&mut stream, &self.keys, &self.party(role, to), deadline).map_err(|source| {
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

    /// Connects the carrier that is asked for first over streams that are all there. TCP has
    /// nothing left to do.
    pub(super) fn meet(
        &self,
        streams: &mut [Connected],
        deadline: Instant,
    ) -> Result<Meeting, MeshError> {
        if self.config.carriers.first() != Some(&CarrierKind::Rdma) {
            return Ok(Ok(Vec::new()));
        }
        let exposes = self.config.rdma_memory == RdmaMemory::Registered;
        let memory = self.memory.as_ref().filter(|_| exposes);
        meet(streams, memory, self.config.lease, deadline).map_err(|(slice, error)| {
            MeshError::Control { with: format!("{slice} over RDMA"), source: error.into() }
        })
    }

    /// Starts the transport on the carrier that all agreed on.
    pub(super) fn transport(
        self,
        streams: Vec<Connected>,
        meeting: Meeting,
        kind: CarrierKind,
    ) -> Result<MeshTransport, MeshError> {
        if kind == CarrierKind::Tcp {
            return TcpTransport::from_streams(self.local, streams, self.config)
                .map(|transport| MeshTransport::new(kind, transport))
                .map_err(MeshError::Transport);
        }
        let endpoints = meeting.map_err(|text| MeshError::Rdma { text })?;
        let join = |((slice, [life, ..]), endpoint): (Connected, Endpoint)| (slice, endpoint, life);
        let peers = streams.into_iter().zip(endpoints).map(join).collect();
        RdmaTransport::new(self.local, peers, self.config)
            .map(|transport| MeshTransport::new(kind, transport))
            .map_err(MeshError::QueuePairs)
    }
}

/// The token of the next readable descriptor, or `None` at the deadline.
pub(super) fn next_ready(epoll: &Epoll, deadline: Instant) -> io::Result<Option<usize>> {
    let mut events = [EpollEvent::default()];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        // Rounded up, or the last millisecond would be spent spinning.
        let wait = i32::try_from(left.as_millis().saturating_add(1)).unwrap_or(i32::MAX);
        match epoll.wait(wait, &mut events) {
            Ok(0) => {}
            Ok(_) => return Ok(usize::try_from(events[0].data()).ok()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
