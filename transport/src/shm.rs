//! Shared memory: slices on one machine, without a copy through the kernel.
//!
//! Each pair of slices shares one sealed memfd with a byte ring for each direction and class,
//! two eventfd doorbells, and a UNIX socket that carries nothing: it ends when the other process
//! ends. The rings carry the same frames as TCP, so credits, lease and garbage are treated alike.
//! Slices that lend each other their memory write pages straight into it (`placing`): the socket
//! carries the memory file then, once.

mod meet;
mod placing;
mod ring;
mod setup;

pub(crate) use meet::{Identity, meet};
pub use setup::{Pair, accept, connect};

use crate::carrier::{Carrier, Wakeup, watch};
use crate::config::{Config, ConfigError};
use crate::engine::{Engine, OverEngine};
use crate::handshake::HandshakeError;
use crate::memory::PageMemory;
use crate::pairs;
use crate::seam::Class;
use placing::Loans;
use ring::{Region, Side};
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use wire::SliceId;

const OFFSET_DOORBELL: u64 = 0;
const OFFSET_LIFE: u64 = 1;

/// Why shared memory could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// The bounds cannot work.
    #[error("the transport's configuration cannot be used")]
    Config(#[source] ConfigError),
    /// Memory, doorbells or sockets cannot be made.
    #[error("cannot make shared memory for {slice}")]
    Create {
        /// The peer.
        slice: SliceId,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The peer did not prove itself, or is another one.
    #[error("the handshake with {slice} failed")]
    Handshake {
        /// The peer.
        slice: SliceId,
        /// Why.
        #[source]
        source: HandshakeError,
    },
    /// The peer sent something else than the descriptors.
    #[error("{slice} did not hand over usable shared memory: {what}")]
    BadOffer {
        /// The peer.
        slice: SliceId,
        /// What was wrong.
        what: &'static str,
    },
    /// The descriptors cannot be watched.
    #[error("cannot build the transport from its shared memory")]
    Transport(#[source] io::Error),
}

/// One peer's rings, doorbells and sign of life.
#[derive(Debug)]
pub(crate) struct ShmCarrier {
    place: String,
    region: Region,
    side: Side,
    /// Rung by the peer.
    own_bell: File,
    /// Rung by us.
    peer_bell: File,
    life: UnixStream,
    loans: Loans,
}

impl ShmCarrier {
    /// What the life socket says: the cause, if the peer is gone.
    fn life_says(&mut self) -> Option<String> {
        let mut mark = [0];
        match self.life.recv_with_fd(&mut mark).map_err(io::Error::from) {
            Ok((0, _)) => Some(String::from("ended or let go of the shared memory")),
            Ok((_, file)) => self.loans.borrow(mark[0], file).err().map(String::from),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => Some(format!("broke the connection: {error}")),
        }
    }

    fn ring(bell: &File) -> io::Result<()> {
        let mut bell = bell;
        match bell.write(&1u64.to_ne_bytes()) {
            // A full counter has rung often enough.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

impl Carrier for ShmCarrier {
    fn place(&self) -> &str {
        &self.place
    }

    fn register(&self, epoll: &Epoll, base: u64) -> io::Result<()> {
        let add = || ControlOperation::Add;
        let bell = self.own_bell.as_raw_fd();
        watch(epoll, add(), bell, EventSet::IN, base + OFFSET_DOORBELL)?;
        let events = EventSet::IN | EventSet::READ_HANG_UP;
        watch(epoll, add(), self.life.as_raw_fd(), events, base + OFFSET_LIFE)
    }

    fn deregister(&self, epoll: &Epoll) {
        for fd in [self.own_bell.as_raw_fd(), self.life.as_raw_fd()] {
            // It fails only when the descriptor is not in, and that is the aim.
            let _ = epoll.ctl(ControlOperation::Delete, fd, EpollEvent::default());
        }
        // The peer must learn that it is given up, although the carrier lives on.
        let _ = self.life.shutdown(Shutdown::Both);
    }

    fn wakeup(&mut self, offset: u64, _events: EventSet) -> Wakeup {
        if offset == OFFSET_DOORBELL {
            let mut count = [0; 8];
            // An empty counter was emptied before; the rings tell what is there.
            let _ = (&self.own_bell).read(&mut count);
            return Wakeup {
                readable: [true; Class::COUNT],
                writable: [true; Class::COUNT],
                gone: None,
            };
        }
        Wakeup { gone: self.life_says(), ..Wakeup::default() }
    }

    fn read(&mut self, class: usize, into: &mut [u8]) -> io::Result<usize> {
        let taken = self.region.read(self.side.other(), class, into)?;
        if taken.ring {
            Self::ring(&self.peer_bell)?;
        }
        Ok(taken.count)
    }

    fn write(&mut self, class: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let put = self.region.write(self.side, class, parts)?;
        if put.ring {
            Self::ring(&self.peer_bell)?;
        }
        Ok(put.count)
    }

    fn want_room(&mut self, _epoll: &Epoll, _base: u64, class: usize, on: bool) -> io::Result<()> {
        // Room may have appeared between the failed write and the wish for it.
        if self.region.want_room(self.side, class, on)? {
            Self::ring(&self.own_bell)?;
        }
        Ok(())
    }

    fn lend(&mut self, memory: &PageMemory) -> io::Result<bool> {
        self.loans.lend(memory, &self.life)
    }

    fn places(&self) -> bool {
        self.loans.places()
    }

    fn place_pages(&mut self, _class: usize, offset: u64, pages: u16) -> io::Result<bool> {
        Ok(self.loans.place(offset, pages))
    }

    fn arm(&mut self) -> bool {
        self.region.arm(self.side.other())
    }
}

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
