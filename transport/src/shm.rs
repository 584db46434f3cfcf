//! Shared memory: slices on one machine, without a copy through the kernel.
//!
//! Each pair of slices shares one sealed memfd with a byte ring for each direction and class,
//! two eventfd doorbells, and a UNIX socket that carries nothing: it ends when the other process
//! ends. The rings carry the same frames as TCP, so credits, lease and garbage are treated alike.
//! Slices that expose their memory to each other write pages straight into it (`remote_write`): the socket
//! carries the memory file then, once.

mod carrier;
mod error;
mod negotiate;
mod remote_write;
mod ring;
mod setup;

pub use error::ShmError;
pub(crate) use negotiate::{Identity, negotiate};
pub use setup::{Pair, accept, connect};

use crate::config::Config;
use crate::engine::{self, Engine, OverEngine};
use crate::link::PeerLink;
use crate::pairs;
use carrier::ShmCarrier;
use wire::SliceId;

/// The transport between slices of one machine.
#[derive(Debug)]
pub struct ShmTransport {
    engine: Engine<ShmCarrier>,
}

impl ShmTransport {
    /// Joins one [`Pair`] per peer to a transport.
    ///
    /// # Errors
    /// The configuration is not usable, or the descriptors cannot be watched.
    pub fn new(local: SliceId, pairs: Vec<Pair>, config: Config) -> Result<Self, ShmError> {
        config.validate().map_err(ShmError::Config)?;
        let carriers = pairs.into_iter().map(Pair::into_carrier).collect();
        let engine = Engine::new(local, carriers, config).map_err(ShmError::Transport)?;
        Ok(Self { engine })
    }
}

/// One more pair, for a running transport of that configuration.
pub(crate) fn link(pair: Pair, config: &Config) -> PeerLink {
    let (slice, carrier) = pair.into_carrier();
    engine::link(slice, carrier, config)
}

/// Slices `0..n` in this process, each connected to each other one.
///
/// # Errors
/// The configuration is not usable, or memory or descriptors are used up.
pub fn mesh(n: u16, config: &Config) -> Result<Vec<ShmTransport>, ShmError> {
    let slices = pairs::join(n, Pair::in_process)?;
    let build = |(slice, peers): pairs::Joined<Pair>| {
        let pairs = peers.into_iter().map(|(_, pair)| pair).collect();
        ShmTransport::new(slice, pairs, config.clone())
    };
    slices.into_iter().map(build).collect()
}

impl OverEngine for ShmTransport {
    type Carrier = ShmCarrier;

    fn engine(&self) -> &Engine<ShmCarrier> {
        &self.engine
    }

    fn engine_mut(&mut self) -> &mut Engine<ShmCarrier> {
        &mut self.engine
    }
}
