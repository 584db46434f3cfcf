//! How two slices come to share memory: within a process, or over an authenticated UNIX socket.
//!
//! Over a socket the caller makes the memory and both doorbells and passes the three descriptors,
//! one byte each, after the handshake. The socket stays open as the sign of life.

use super::carrier::ShmCarrier;
use super::error::ShmError;
use super::remote_write::SharedFiles;
use super::ring::{Region, Side, create, doorbell, is_sealed, set_nonblocking};
use crate::handshake::{self, Channel, ConnectionId, HandshakeError, Role};
use crate::key::Keys;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use wire::SliceId;

/// Announces the descriptors, in this order: memory, the caller's doorbell, the listener's.
const OFFER: [u8; 3] = *b"mcl";

/// One side of what two slices share.
#[derive(Debug)]
pub struct Pair {
    peer: SliceId,
    carrier: ShmCarrier,
}

impl Pair {
    /// The other slice.
    #[must_use]
    pub fn peer(&self) -> SliceId {
        self.peer
    }

    pub(super) fn into_carrier(self) -> (SliceId, ShmCarrier) {
        (self.peer, self.carrier)
    }

    fn new(peer: SliceId, side: Side, files: &Files, life: UnixStream) -> io::Result<Self> {
        let region = Region::map(&files.memory)?;
        life.set_nonblocking(true)?;
        let (own, other) = match side {
            Side::First => (&files.first_bell, &files.second_bell),
            Side::Second => (&files.second_bell, &files.first_bell),
        };
        let own_bell = own.try_clone()?;
        let peer_bell = other.try_clone()?;
        let place = String::from("shared memory");
        let files = SharedFiles::default();
        let carrier = ShmCarrier { place, region, side, own_bell, peer_bell, life, files };
        Ok(Self { peer, carrier })
    }

    /// Both sides at once, for slices in one process.
    pub(crate) fn in_process(first: SliceId, second: SliceId) -> Result<(Self, Self), ShmError> {
        let make = || {
            let files = Files::create()?;
            let (one, two) = UnixStream::pair()?;
            let to_second = Self::new(second, Side::First, &files, one)?;
            let to_first = Self::new(first, Side::Second, &files, two)?;
            Ok((to_second, to_first))
        };
        make().map_err(|source| ShmError::Create { slice: second, source })
    }
}

/// The descriptors of a pair.
#[derive(Debug)]
struct Files {
    memory: File,
    first_bell: File,
    second_bell: File,
}

impl Files {
    fn create() -> io::Result<Self> {
        Ok(Self { memory: create()?, first_bell: doorbell()?, second_bell: doorbell()? })
    }
}

/// The caller: proves itself as `connection` (role [`Role::SharedMemory`]) and offers the memory.
///
/// # Errors
/// The handshake fails, or memory or descriptors are used up.
pub fn connect(
    mut stream: UnixStream,
    keys: &impl Keys,
    connection: &ConnectionId,
    deadline: Instant,
) -> Result<Pair, ShmError> {
    let slice = connection.to;
    let connection = ConnectionId { role: Role::SharedMemory, ..*connection };
    handshake::call(&mut stream, keys, &connection, deadline)
        .map_err(|source| ShmError::Handshake { slice, source })?;
    let offer = || {
        let files = Files::create()?;
        for (mark, file) in OFFER.iter().zip([&files.memory, &files.first_bell, &files.second_bell])
        {
            stream.send_with_fd(&[*mark][..], file.as_raw_fd()).map_err(io::Error::from)?;
        }
        Pair::new(slice, Side::First, &files, stream)
    };
    offer().map_err(|source| ShmError::Create { slice, source })
}

/// The listener: lets a caller prove itself, asks `expect` whether it is wanted (its role is
/// checked here), and takes the offered memory.
///
/// # Errors
/// The handshake fails, or what the caller offers is not usable.
pub fn accept(
    mut stream: UnixStream,
    keys: &impl Keys,
    expect: impl FnOnce(&ConnectionId) -> Result<(), HandshakeError>,
    deadline: Instant,
) -> Result<Pair, ShmError> {
    let mut slice = SliceId(0);
    let checked = |connection: &ConnectionId| {
        slice = connection.from;
        match connection.role {
            Role::SharedMemory => expect(connection),
            _ => Err(HandshakeError::UnexpectedPurpose),
        }
    };
    handshake::answer(&mut stream, keys, checked, deadline)
        .map_err(|source| ShmError::Handshake { slice, source })?;
    let memory = receive(&stream, slice, OFFER[0], deadline)?;
    let first_bell = receive(&stream, slice, OFFER[1], deadline)?;
    let second_bell = receive(&stream, slice, OFFER[2], deadline)?;
    let create = |source| ShmError::Create { slice, source };
    if !is_sealed(&memory).map_err(create)? {
        return Err(ShmError::BadOffer { slice, what: "the memory has another size or no seals" });
    }
    for bell in [&first_bell, &second_bell] {
        set_nonblocking(bell).map_err(create)?;
    }
    let files = Files { memory, first_bell, second_bell };
    Pair::new(slice, Side::Second, &files, stream).map_err(create)
}

fn receive(
    stream: &UnixStream,
    slice: SliceId,
    mark: u8,
    deadline: Instant,
) -> Result<File, ShmError> {
    let handshake = |source| ShmError::Handshake { slice, source };
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(handshake(HandshakeError::Timeout));
    }
    let mut got = [0];
    stream.set_wait(left).map_err(|error| handshake(error.into()))?;
    match stream.recv_with_fd(&mut got) {
        Ok((1, Some(file))) if got == [mark] => Ok(file),
        Ok((0, _)) => Err(handshake(HandshakeError::Closed)),
        Ok(_) => Err(ShmError::BadOffer { slice, what: "a descriptor is missing" }),
        Err(error) => Err(handshake(io::Error::from(error).into())),
    }
}
