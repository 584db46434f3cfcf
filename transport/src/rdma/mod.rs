//! RDMA: reliable queue pairs between hosts with InfiniBand or RoCE, by libibverbs.
//!
//! ```text
//!  mesh (TCP, secret proved) ── negotiate: offers, states, probes ──> Endpoint ──> RdmaCarrier ── engine
//!                                                                    │
//!        one queue pair per class ─ one completion queue per peer ─ one channel (wakes the owner)
//! ```
//!
//! Each class has a queue pair of its own, so an interrupt never waits behind pages. A class is an
//! ordered stream of messages; each lies in one *slot* of a pinned pool at both ends. A message is
//! only sent when the other end is known to have a slot posted for it (`lane`), so a receiver is
//! never overrun and the sender never waits in the adapter.
//!
//! **Pages.** Where both ends expose their memory ([`crate::PageMemory`]), a page is written from one memory
//! file straight into the other, ahead of the message that speaks of it (`remote_write`). Else it travels in
//! slots.
//!
//! **What a peer can reach.** Protection domain, pool and keys belong to one peer of one VM. The pool is
//! registered for local access only, and remote reads and atomics are forbidden: without memory that is
//! exposed a peer can fill the slots that were posted for it and nothing else, and guest memory stays
//! reclaimable. Memory that is exposed is pinned, and the peer can write all of it at any time: it is a member of the VM, which could write these pages anyway by asking for them,
//! but a faulty one could do so without asking.
//!
//! libibverbs is loaded when the first device is asked for. Without it there is no RDMA device,
//! which is an answer, not a fault.

mod carrier;
mod completion;
mod device;
mod error;
mod exposed;
mod lane;
mod negotiate;
mod nudges;
mod offer;
mod pool;
mod remote_write;
mod requests;
mod setup;
#[cfg(test)]
mod tests;
mod verbs;

pub(crate) use carrier::RdmaCarrier;
pub use device::available;
pub use error::RdmaError;
pub(crate) use negotiate::negotiate;
pub(crate) use setup::Endpoint;

use crate::config::Config;
use crate::engine::{self, Engine, OverEngine};
use crate::link::PeerLink;
use crate::memory::PageMemory;
use crate::pairs;
use crate::tcp::loopback;
use device::Wanted;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use wire::SliceId;

/// The transport over queue pairs. Made by the mesh when all slices agreed on RDMA.
#[derive(Debug)]
pub struct RdmaTransport {
    engine: Engine<RdmaCarrier>,
}

impl RdmaTransport {
    /// Joins connected endpoints to a transport. `life` is a socket to the same process: its end is
    /// the peer's end.
    pub(crate) fn new(
        local: SliceId,
        peers: Vec<(SliceId, Endpoint, TcpStream)>,
        config: Config,
    ) -> Result<Self, RdmaError> {
        config.validate().map_err(RdmaError::Config)?;
        let mut carriers = Vec::with_capacity(peers.len());
        for (slice, endpoint, life) in peers {
            let carrier = endpoint.into_carrier(life).map_err(RdmaError::Transport)?;
            carriers.push((slice, carrier));
        }
        let engine = Engine::new(local, carriers, config).map_err(RdmaError::Transport)?;
        Ok(Self { engine })
    }
}

/// One more endpoint, for a running transport of that configuration.
pub(crate) fn link(
    slice: SliceId,
    endpoint: Endpoint,
    life: TcpStream,
    config: &Config,
) -> Result<PeerLink, RdmaError> {
    let carrier = endpoint.into_carrier(life).map_err(RdmaError::Transport)?;
    Ok(engine::link(slice, carrier, config))
}

/// Slices `0..n` in this process, each connected to each other one through the first RDMA port of
/// this machine, without any handshake.
///
/// # Errors
/// There is no usable port, or it refuses queue pairs or memory.
pub fn mesh(n: u16, config: &Config) -> Result<Vec<RdmaTransport>, RdmaError> {
    mesh_exposing(n, config, &[])
}

/// The same; slices that expose memory come first.
///
/// # Errors
/// As [`mesh`].
pub fn mesh_exposing(
    n: u16,
    config: &Config,
    memory: &[PageMemory],
) -> Result<Vec<RdmaTransport>, RdmaError> {
    let slices = pairs::join(n, |low, high| {
        let exposed = [low, high].map(|slice| memory.get(usize::from(slice.0)));
        let (first, second) = pair_exposing(config.lease, exposed)?;
        let (near, far) = loopback().map_err(RdmaError::Transport)?;
        Ok::<_, RdmaError>(((first, near), (second, far)))
    })?;
    let build = |(slice, peers): pairs::Joined<(Endpoint, TcpStream)>| {
        let peers = peers.into_iter().map(|(peer, (endpoint, life))| (peer, endpoint, life));
        RdmaTransport::new(slice, peers.collect(), config.clone())
    };
    slices.into_iter().map(build).collect()
}

/// Two endpoints of this process that reach each other.
#[cfg(test)]
pub(crate) fn pair(lease: Duration) -> Result<(Endpoint, Endpoint), RdmaError> {
    pair_exposing(lease, [None; 2])
}

/// The same, with memory that each exposes to the other.
fn pair_exposing(
    lease: Duration,
    memory: [Option<&PageMemory>; 2],
) -> Result<(Endpoint, Endpoint), RdmaError> {
    let mut first = Endpoint::open(&Wanted::Any, memory[0])?;
    let mut second = Endpoint::open(&Wanted::Any, memory[1])?;
    first.connect(&second.offer(), lease)?;
    second.connect(&first.offer(), lease)?;
    first.greet()?;
    second.greet()?;
    let deadline = Instant::now() + Duration::from_secs(10);
    first.await_greeting(deadline)?;
    second.await_greeting(deadline)?;
    Ok((first, second))
}

impl OverEngine for RdmaTransport {
    type Carrier = RdmaCarrier;

    fn engine(&self) -> &Engine<RdmaCarrier> {
        &self.engine
    }

    fn engine_mut(&mut self) -> &mut Engine<RdmaCarrier> {
        &mut self.engine
    }
}
