//! TCP: one connection per peer and class, so that a full stream of pages never delays an
//! interrupt. `TCP_NODELAY` is on: a fault waits for every small frame.

use crate::carrier::{Carrier, Wakeup, watch};
use crate::config::Config;
use crate::engine::{self, Engine, OverEngine};
use crate::link::PeerLink;
use crate::pairs;
use crate::sys::set_low_water;
use crate::traits::Class;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use wire::SliceId;

/// The connections to one peer, in the order of the classes.
#[derive(Debug)]
pub(crate) struct TcpCarrier {
    place: String,
    streams: [TcpStream; Class::COUNT],
    waits: [bool; Class::COUNT],
    /// Bytes that make each stream readable.
    low_water: [usize; Class::COUNT],
}

impl TcpCarrier {
    /// Takes authenticated connections over. `place` is the peer's address, for messages.
    pub(crate) fn new(place: String, streams: [TcpStream; Class::COUNT]) -> io::Result<Self> {
        for stream in &streams {
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(None)?;
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
        }
        Ok(Self { place, streams, waits: [false; Class::COUNT], low_water: [1; Class::COUNT] })
    }

    /// The same; the place is where the other end is.
    pub(crate) fn of(streams: [TcpStream; Class::COUNT]) -> io::Result<Self> {
        let place = match streams[0].peer_addr() {
            Ok(address) => address.to_string(),
            Err(_) => String::from("an unknown address"),
        };
        Self::new(place, streams)
    }
}

impl Carrier for TcpCarrier {
    fn location(&self) -> &str {
        &self.place
    }

    fn register(&self, epoll: &Epoll, base: u64) -> io::Result<()> {
        for (token, stream) in (base..).zip(&self.streams) {
            watch(epoll, ControlOperation::Add, stream.as_raw_fd(), EventSet::IN, token)?;
        }
        Ok(())
    }

    fn deregister(&mut self, epoll: &Epoll) {
        for stream in &self.streams {
            // It fails only when the descriptor is not in, and that is the aim.
            let _ = epoll.ctl(ControlOperation::Delete, stream.as_raw_fd(), EpollEvent::default());
            // The peer must learn that it is given up, although the carrier lives on.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn wakeup(&mut self, offset: u64, events: EventSet) -> Wakeup {
        let mut wakeup = Wakeup::default();
        if let Some(at) = usize::try_from(offset).ok().filter(|at| *at < self.streams.len()) {
            let trouble = EventSet::ERROR | EventSet::HANG_UP;
            wakeup.readable[at] = events.intersects(EventSet::IN | trouble);
            wakeup.writable[at] = events.intersects(EventSet::OUT | trouble);
        }
        wakeup
    }

    fn read(&mut self, class: usize, into: &mut [u8]) -> io::Result<usize> {
        self.streams[class].read(into)
    }

    fn read_parts(&mut self, class: usize, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.streams[class].read_vectored(parts)
    }

    fn write(&mut self, class: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.streams[class].write_vectored(parts)
    }

    fn expect(&mut self, class: usize, bytes: usize) -> io::Result<()> {
        let bytes = bytes.max(1);
        if self.low_water[class] != bytes {
            set_low_water(&self.streams[class], bytes)?;
            self.low_water[class] = bytes;
        }
        Ok(())
    }

    fn want_room(&mut self, epoll: &Epoll, base: u64, class: usize, on: bool) -> io::Result<()> {
        if self.waits[class] == on {
            return Ok(());
        }
        self.waits[class] = on;
        let events = if on { EventSet::IN | EventSet::OUT } else { EventSet::IN };
        let token = base + u64::try_from(class).expect("a class is a small number");
        watch(epoll, ControlOperation::Modify, self.streams[class].as_raw_fd(), events, token)
    }
}

/// The transport between hosts. Made by [`BootstrapMesh`](crate::BootstrapMesh) and
/// [`CompanionMesh`](crate::CompanionMesh).
#[derive(Debug)]
pub struct TcpTransport {
    engine: Engine<TcpCarrier>,
}

impl TcpTransport {
    /// Joins connections to a transport without any handshake: for tests that play the peer.
    ///
    /// # Errors
    /// The sockets cannot be set up or watched.
    pub fn from_streams(
        local: SliceId,
        peers: Vec<(SliceId, [TcpStream; Class::COUNT])>,
        config: Config,
    ) -> io::Result<Self> {
        config.validate().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mut carriers = Vec::with_capacity(peers.len());
        for (slice, streams) in peers {
            carriers.push((slice, TcpCarrier::of(streams)?));
        }
        Ok(Self { engine: Engine::new(local, carriers, config)? })
    }
}

/// Takes authenticated connections over, for a running transport of that configuration.
pub(crate) fn link(
    slice: SliceId,
    streams: [TcpStream; Class::COUNT],
    config: &Config,
) -> io::Result<PeerLink> {
    Ok(engine::link(slice, TcpCarrier::of(streams)?, config))
}

/// Slices `0..n` in this process, each connected to each other one over the loopback device, without
/// any handshake.
///
/// # Errors
/// The configuration is not usable, or the operating system refuses sockets.
pub fn mesh(n: u16, config: &Config) -> io::Result<Vec<TcpTransport>> {
    let slices = pairs::join(n, |_, _| {
        let ((a, e), (b, f)) = (loopback()?, loopback()?);
        let ((c, g), (d, h)) = (loopback()?, loopback()?);
        Ok::<_, io::Error>(([a, b, c, d], [e, f, g, h]))
    })?;
    let build = |(slice, peers)| TcpTransport::from_streams(slice, peers, config.clone());
    slices.into_iter().map(build).collect()
}

/// A connected pair of sockets.
pub(crate) fn loopback() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let caller = TcpStream::connect(listener.local_addr()?)?;
    Ok((caller, listener.accept()?.0))
}

impl OverEngine for TcpTransport {
    type Carrier = TcpCarrier;

    fn engine(&self) -> &Engine<TcpCarrier> {
        &self.engine
    }

    fn engine_mut(&mut self) -> &mut Engine<TcpCarrier> {
        &mut self.engine
    }
}
