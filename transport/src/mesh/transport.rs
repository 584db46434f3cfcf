//! The transport that a mesh ends in: the carrier is chosen while it runs.

use crate::config::CarrierKind;
use crate::rdma::RdmaTransport;
use crate::seam::{Class, Event, SendError, Transport};
use crate::tcp::TcpTransport;
use std::os::fd::BorrowedFd;
use wire::SliceId;

/// A transport between hosts, on the carrier that its slices agreed on.
#[derive(Debug)]
pub enum MeshTransport {
    /// TCP connections.
    Tcp(TcpTransport),
    /// Reliable queue pairs.
    Rdma(RdmaTransport),
}

impl MeshTransport {
    /// What carries the frames.
    #[must_use]
    pub fn kind(&self) -> CarrierKind {
        match self {
            Self::Tcp(_) => CarrierKind::Tcp,
            Self::Rdma(_) => CarrierKind::Rdma,
        }
    }

    fn inner(&self) -> &dyn Transport {
        match self {
            Self::Tcp(transport) => transport,
            Self::Rdma(transport) => transport,
        }
    }

    fn inner_mut(&mut self) -> &mut dyn Transport {
        match self {
            Self::Tcp(transport) => transport,
            Self::Rdma(transport) => transport,
        }
    }
}

impl Transport for MeshTransport {
    fn local(&self) -> SliceId {
        self.inner().local()
    }

    fn peers(&self) -> &[SliceId] {
        self.inner().peers()
    }

    fn send(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.inner_mut().send(to, class, head, payload)
    }

    fn cork(&mut self, on: bool) {
        self.inner_mut().cork(on);
    }

    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        self.inner_mut().poll(budget, sink)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.inner().readiness()
    }
}
