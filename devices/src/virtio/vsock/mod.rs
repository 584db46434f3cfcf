//! The front end of a socket device (virtio 1.2, 5.10): queue 0 brings packets to the driver, queue 1 takes its packets,
//! queue 2 brings events.
//!
//! ```text
//!   worker of queue 1 --packets--> [switch] --news--> host side: whoever has the other ends
//!   worker of queue 0 <--packets-- [switch] <--bytes--
//! ```
//! The switch is a pure machine behind one lock that is held for a moment only; nothing waits in it for guest memory or
//! for the host. What a guest may have it keep is bounded: 1024 connections, 64 KiB for each in both directions.
//! A restored device has no connection, and says so by an event. None begins before the driver has heard it.
//! Streams only; a driver that breaks a rule of a connection gets it reset, and its other connections go on.

mod connection;
mod events;
mod header;
mod saved;
mod switch;

pub use events::{Events, VsockEvents};
pub use header::HOST_CID;
pub use saved::VsockState;
pub use switch::{CONNECTIONS_MAX, ConnectionId, End, View};

use super::ring::{Chain, Ring};
use super::worker::{Requests, RingWorker};
use super::{ConfigChanges, DeviceShape, Doorbell, RingError};
use connection::BUFFER_BYTES;
use header::{HEADER_BYTES, Header};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use switch::Switch;
use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;
use zerocopy::{FromZeros, IntoBytes};

/// Streams are there (5.10.3).
const F_STREAM: u64 = 1 << 0;
/// Packets served before the thread looks whether it must stop.
const ROUND: usize = 64;
/// Bytes of data in a packet until the driver has shown how large its buffers are.
const FIRST_DATA_BYTES: usize = 4096 - HEADER_BYTES;

/// A socket device with this address, as drivers see it. Its class is communication.
#[must_use]
pub fn shape(cid: u32) -> DeviceShape {
    DeviceShape {
        type_id: VIRTIO_ID_VSOCK,
        class: 0x07_8000,
        features: F_STREAM,
        queues: 3,
        config: u64::from(cid).to_le_bytes().to_vec(),
        changes: ConfigChanges::NONE,
    }
}

/// Wakes the host's side, which waits for it and for its sockets at once. Clones are the same.
#[derive(Clone, Debug)]
pub struct HostBell(Arc<OwnedFd>);

impl HostBell {
    fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(event)))
    }

    /// Rings. Any number of rings before somebody hears them are one.
    pub fn ring(&self) {
        // It fails only when it has been rung 2^64 times.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets the rings so far.
    pub fn hear(&self) {
        // It fails when there were none.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for HostBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The device between its workers and the host's side. Clones are the same.
#[derive(Clone, Debug)]
pub struct Vsock {
    switch: Arc<Mutex<Switch>>,
    receive: Doorbell,
    transmit: Doorbell,
    events: Doorbell,
    host: HostBell,
}

impl Vsock {
    /// A device at rest.
    ///
    /// # Errors
    ///
    /// No file descriptors left.
    pub fn new(cid: u32) -> io::Result<Self> {
        let switch = Arc::new(Mutex::new(Switch::new(cid.into())));
        let (receive, transmit, events) = (Doorbell::new()?, Doorbell::new()?, Doorbell::new()?);
        Ok(Self { switch, receive, transmit, events, host: HostBell::new()? })
    }

    /// Does something under the lock, and then wakes whom it concerns.
    fn with<T>(&self, act: impl FnOnce(&mut Switch) -> T) -> T {
        // A panic of another thread ends the process.
        let mut switch = self.switch.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut switch);
        let rings = switch.take_rings();
        drop(switch);
        if rings.receive {
            self.receive.ring();
        }
        if rings.transmit {
            self.transmit.ring();
        }
        if rings.events {
            self.events.ring();
        }
        if rings.host {
            self.host.ring();
        }
        result
    }

    /// What wakes the worker of a queue.
    #[must_use]
    pub fn bell(&self, queue: usize) -> Option<&Doorbell> {
        [&self.receive, &self.transmit, &self.events].get(queue).copied()
    }

    /// What wakes the host's side: [`Self::news`] has something.
    #[must_use]
    pub fn host_bell(&self) -> &HostBell {
        &self.host
    }

    /// A driver has brought the device up, or has reset it: all connections end.
    pub fn set_active(&self, active: bool) {
        self.with(|switch| switch.set_active(active));
    }

    /// Connections to look at since the last question, also those that are gone.
    pub fn news(&self) -> BTreeSet<ConnectionId> {
        self.with(Switch::take_news)
    }

    /// How a connection is; none if it is gone.
    #[must_use]
    pub fn view(&self, id: ConnectionId) -> Option<View> {
        self.with(|switch| switch.view(id))
    }

    /// Asks the guest for a connection to its port, and gives the port that the host has. None while there is no driver,
    /// or no place.
    #[must_use]
    pub fn connect(&self, port: u32) -> Option<(ConnectionId, u32)> {
        self.with(|switch| switch.connect(port))
    }

    /// Whether there is a place for a connection. While there is none, news say when to ask again.
    #[must_use]
    pub fn has_place(&self) -> bool {
        self.with(|switch| switch.has_place())
    }

    /// The guest has its connection.
    pub fn accept(&self, id: ConnectionId) {
        self.with(|switch| switch.accept(id));
    }

    /// Copies what the guest has sent, and gives the number of bytes. They stay until [`Self::forward`].
    pub fn peek(&self, id: ConnectionId, bytes: &mut [u8]) -> usize {
        self.with(|switch| switch.peek(id, bytes))
    }

    /// So many bytes of the guest have been passed on.
    pub fn forward(&self, id: ConnectionId, bytes: usize) {
        self.with(|switch| switch.forward(id, bytes));
    }

    /// Sends the guest as many of these bytes as there is room for, and gives their number.
    pub fn push(&self, id: ConnectionId, bytes: &[u8]) -> usize {
        self.with(|switch| switch.push(id, bytes))
    }

    /// The host sends nothing more, or takes nothing more, or both. The guest is told behind what it is still to get;
    /// what it still sends is dropped once the host takes no more.
    pub fn end(&self, id: ConnectionId, end: End) {
        self.with(|switch| switch.end(id, end));
    }

    /// The connection ends at once.
    pub fn reset(&self, id: ConnectionId) {
        self.with(|switch| switch.reset(id));
    }

    /// Bytes of the guest that have not been passed on.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.with(|switch| switch.waiting())
    }
}

/// What is on its way to the driver.
#[derive(Debug)]
struct Packet {
    header: Header,
    data: Vec<u8>,
    /// Bytes of it that are there already.
    done: usize,
}

/// Brings packets to the driver.
#[derive(Debug)]
pub struct Receive {
    vsock: Vsock,
    next: RefCell<Option<Packet>>,
    /// Bytes of data that the driver's buffers have room for.
    room: usize,
}

/// The worker of queue 0.
pub type VsockReceive = RingWorker<Receive>;

impl Receive {
    /// Of this device.
    #[must_use]
    pub fn new(vsock: &Vsock) -> Self {
        Self { vsock: vsock.clone(), next: RefCell::default(), room: FIRST_DATA_BYTES }
    }
}

impl Requests for Receive {
    const ROUND: usize = ROUND;

    /// The switch rings. A packet is taken out of it here: what is promised must be there when a buffer is.
    fn ready(&self) -> bool {
        let mut next = self.next.borrow_mut();
        if next.is_none() {
            let packet = self.vsock.with(|switch| switch.next(self.room));
            *next = packet.map(|(header, data)| Packet { header, data, done: 0 });
        }
        next.is_some()
    }

    fn serve(&mut self, ring: &Ring, chain: &Chain) -> Result<u64, RingError> {
        let room = usize::try_from(chain.writable.len()).unwrap_or(usize::MAX);
        let room = room.checked_sub(HEADER_BYTES).filter(|room| *room > 0);
        let room = room.ok_or(RingError::Request)?;
        self.room = room.min(BUFFER_BYTES);
        let Some(packet) = self.next.get_mut() else { return Ok(0) };
        let count = room.min(packet.data.len() - packet.done);
        let len = u32::try_from(count).unwrap_or(0).into();
        ring.write(&chain.writable, 0, Header { len, ..packet.header }.as_bytes())?;
        let data = &packet.data[packet.done..packet.done + count];
        ring.write(&chain.writable, HEADER_BYTES as u64, data)?;
        packet.done += count;
        if packet.done == packet.data.len() {
            *self.next.get_mut() = None;
        }
        Ok((HEADER_BYTES + count) as u64)
    }
}

/// Takes packets of the driver.
#[derive(Debug)]
pub struct Transmit(Vsock);

/// The worker of queue 1.
pub type VsockTransmit = RingWorker<Transmit>;

impl Transmit {
    /// To this device.
    #[must_use]
    pub fn new(vsock: &Vsock) -> Self {
        Self(vsock.clone())
    }
}

impl Requests for Transmit {
    const ROUND: usize = ROUND;

    /// The switch rings once there is room.
    fn ready(&self) -> bool {
        self.0.with(Switch::takes)
    }

    fn serve(&mut self, ring: &Ring, chain: &Chain) -> Result<u64, RingError> {
        let mut header = Header::new_zeroed();
        ring.read(&chain.readable, 0, header.as_mut_bytes())?;
        // Of other packets than data nothing but the header counts, and too much of it is never read.
        let bytes = usize::try_from(header.len.get()).unwrap_or(usize::MAX);
        let there = chain.readable.len() - HEADER_BYTES as u64;
        let data = if bytes <= BUFFER_BYTES && bytes as u64 <= there {
            Some(ring.read_vec(&chain.readable, HEADER_BYTES as u64, bytes)?)
        } else {
            None
        };
        self.0.with(|switch| switch.take(&header, data.as_deref()));
        Ok(0)
    }
}

#[cfg(test)]
mod tests;
