//! RDMA: reliable queue pairs between hosts with InfiniBand or RoCE, by libibverbs.
//!
//! ```text
//!  mesh (TCP, secret proved) ── meet: offers, states, probes ──> Endpoint ──> RdmaCarrier ── engine
//!                                                                    │
//!        one queue pair per class ─ one completion queue per peer ─ one channel (wakes the owner)
//! ```
//!
//! Each class has a queue pair of its own, so an interrupt never waits behind pages. A class is an
//! ordered stream of messages; each lies in one *slot* of a pinned pool at both ends. A message is
//! only sent when the other end is known to have a slot posted for it (`lane`), so a receiver is
//! never overrun and the sender never waits in the adapter.
//!
//! **Pages.** Where both ends lend their memory ([`crate::PageMemory`]), a page is written from one memory
//! file straight into the other, ahead of the message that speaks of it (`placing`). Else it travels in
//! slots.
//!
//! **What a peer can reach.** Protection domain, pool and keys belong to one peer of one VM. The pool is
//! registered for local access only, and remote reads and atomics are forbidden: without memory that is
//! lent a peer can fill the slots that were posted for it and nothing else, and guest memory stays
//! reclaimable. Memory that is lent is pinned, and the peer can write all of it at any time: it is a member of the VM, which could write these pages anyway by asking for them,
//! but a faulty one could do so without asking.
//!
//! libibverbs is loaded when the first device is asked for. Without it there is no RDMA device,
//! which is an answer, not a fault.

mod carrier;
mod device;
mod lane;
mod lending;
mod meet;
mod nudges;
mod offer;
mod placing;
mod setup;
#[cfg(test)]
mod tests;
mod verbs;

pub(crate) use carrier::RdmaCarrier;
pub use device::available;
pub(crate) use meet::meet;
pub(crate) use setup::Endpoint;

use crate::config::{Config, ConfigError};
use crate::engine::{Engine, OverEngine};
use crate::memory::PageMemory;
use crate::pairs;
use crate::tcp::loopback;
use device::Wanted;
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use wire::SliceId;

/// Why RDMA cannot be used. Each text names the device, port and GID as far as they are known.
#[derive(Debug, thiserror::Error)]
pub enum RdmaError {
    /// There is no libibverbs, or it cannot list devices.
    #[error("no RDMA devices can be listed (are libibverbs and a provider installed?): {0}")]
    Library(String),
    /// No port fits.
    #[error("no RDMA port {wanted}; {found}")]
    NoPort {
        /// What was looked for.
        wanted: String,
        /// What there is.
        found: String,
    },
    /// A step of the set-up was refused.
    #[error("cannot {step} on {place}: {cause}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// Device, port and GID.
        place: String,
        /// What the library or the kernel said.
        cause: String,
    },
    /// Memory could not be pinned.
    #[error(
        "cannot pin {bytes} bytes for RDMA on {place}: {cause}; this process may lock {limit} \
         (raise it with `ulimit -l unlimited`, LimitMEMLOCK= in a systemd unit, or give it \
         CAP_IPC_LOCK)"
    )]
    Pinning {
        /// Size of the region.
        bytes: usize,
        /// Device, port and GID.
        place: String,
        /// What the kernel said.
        cause: io::Error,
        /// The limit as text.
        limit: String,
    },
    /// The other end offers something this version cannot use.
    #[error("the peer's RDMA offer cannot be used from {place}: {what}")]
    BadOffer {
        /// Our device, port and GID.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The first messages did not arrive.
    #[error("no answer over RDMA from {peer} through {place}: {cause}")]
    Unreachable {
        /// The peer's GID.
        peer: String,
        /// Our device, port and GID.
        place: String,
        /// A failed send, or the time limit.
        cause: String,
    },
    /// The bounds cannot work.
    #[error("the transport's configuration cannot be used")]
    Config(#[source] ConfigError),
    /// Sockets or descriptors are refused.
    #[error("cannot build the transport from its queue pairs")]
    Transport(#[source] io::Error),
}

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

/// Slices `0..n` in this process, each connected to each other one through the first RDMA port of
/// this machine, without any handshake.
///
/// # Errors
/// There is no usable port, or it refuses queue pairs or memory.
pub fn mesh(n: u16, config: &Config) -> Result<Vec<RdmaTransport>, RdmaError> {
    mesh_lending(n, config, &[])
}

/// The same; slices that lend memory come first.
///
/// # Errors
/// As [`mesh`].
pub fn mesh_lending(
    n: u16,
    config: &Config,
    memory: &[PageMemory],
) -> Result<Vec<RdmaTransport>, RdmaError> {
    let slices = pairs::join(n, |low, high| {
        let lent = [low, high].map(|slice| memory.get(usize::from(slice.0)));
        let (first, second) = pair_lending(config.lease, lent)?;
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
    pair_lending(lease, [None; 2])
}

/// The same, with memory that each lends the other.
fn pair_lending(
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
