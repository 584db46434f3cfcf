//! Slices of one host find each other and share memory, in step over the streams of the mesh.
//!
//! ```text
//!  to every peer: host, network namespace, name of a UNIX socket     from every peer: the same
//!                 (who calls over TCP calls here too, proves itself, and offers memory: `setup`)
//!                 shared, or why not                                                  the same
//! ```
//! Every slice hears of all hosts, so all come to the same answer. The socket has a random name without a file
//! (`unix(7)`, abstract). Any process in the network namespace can call it; one that cannot prove that it is the
//! expected slice is turned away, and can at most keep the slices on their next carrier.

use super::setup::{Pair, accept, connect};
use crate::credential::Keyring;
use crate::handshake::{ConnectionId, HandshakeError, Role, VmId};
use crate::one_line;
use crate::ready::next_ready;
use crate::steps::{Step, exchange};
use crate::traits::Class;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use wire::SliceId;

/// How long all slices may take to connect.
const CONNECTING: Duration = Duration::from_secs(10);
/// How long one caller may take to prove itself.
const PROVING: Duration = Duration::from_secs(2);
/// Between two calls of a socket whose queue is full.
const RETRY: Duration = Duration::from_millis(10);

/// Where a slice runs, and where it listens there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Offer {
    /// The kernel's id of this boot: the same for all processes of one host.
    boot: u128,
    /// Inode of the network namespace: abstract names are known in one of them.
    network: u64,
    /// Name of the socket.
    name: u128,
}

/// The socket that peers of this slice call.
#[derive(Debug)]
struct Socket {
    listener: UnixListener,
    offer: Offer,
}

impl Socket {
    fn open() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let boot = u128::from_str_radix(&text.trim().replace('-', ""), 16)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let network = fs::metadata("/proc/self/ns/net")?.ino();
        let name = u128::from_ne_bytes(VmId::random()?.0);
        let address = SocketAddr::from_abstract_name(socket_name(name))?;
        let listener = UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, offer: Offer { boot, network, name } })
    }

    /// The next caller, or `None` at the deadline.
    fn next(&self, epoll: &Epoll, deadline: Instant) -> io::Result<Option<UnixStream>> {
        // Strangers may call without end.
        while Instant::now() < deadline {
            match self.listener.accept() {
                Ok((stream, _)) => return Ok(Some(stream)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            next_ready(epoll, deadline)?;
        }
        Ok(None)
    }
}

/// Calls a socket. Its queue may be full of strangers: a call that waits for room would have no end.
fn call(name: u128, deadline: Instant) -> io::Result<UnixStream> {
    loop {
        match try_call(name) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                thread::sleep(RETRY);
            }
            called => return called,
        }
    }
}

/// Connects at once or not at all.
fn try_call(name: u128) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new_abstract_name(socket_name(name).as_bytes())?;
    rustix::net::connect(&socket, &address)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn socket_name(name: u128) -> String {
    format!("tessera-{name:032x}")
}

/// What a slice proves itself with, and as what: the identity of a call from here, but for its other end.
#[derive(Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) keys: &'a Keyring,
    pub(crate) connection: ConnectionId,
}

impl Identity<'_> {
    /// As in the mesh: the bootstrap calls all, a companion those below it, and all call a newcomer. There is always
    /// one that calls nobody, so no circle of slices waits for each other.
    fn calls(&self, peer: SliceId) -> bool {
        self.keys.calls(peer)
    }
}

/// Shares memory with all peers, in the order of the streams; or says why that cannot be.
///
/// # Errors
/// A stream failed (with the slice at its other end). That slices share no host is no error.
pub(crate) fn negotiate(
    identity: &Identity<'_>,
    streams: &mut [(SliceId, [TcpStream; Class::COUNT])],
    deadline: Instant,
) -> Result<Step<Vec<Pair>>, (SliceId, io::Error)> {
    let own = Socket::open().map_err(|error| format!("no socket for peers on this host: {error}"));
    let offer = own.as_ref().map(|own| own.offer.clone()).map_err(Clone::clone);
    let theirs = exchange(streams, &vec![offer; streams.len()], deadline)?;

    let peers: Vec<_> = streams.iter().map(|(slice, _)| *slice).collect();
    let until = deadline.min(Instant::now() + CONNECTING);
    let mut pairs = own.and_then(|own| {
        let theirs = same_host(&own.offer, &peers, theirs)?;
        join(identity, &own, &peers, &theirs, until)
    });

    let standing = pairs.as_ref().map(drop).map_err(Clone::clone);
    for theirs in exchange(streams, &vec![standing; streams.len()], deadline)? {
        pairs = pairs.and_then(|pairs| theirs.map(|()| pairs));
    }
    Ok(pairs)
}

/// The offers, if all are of this host and network namespace.
fn same_host(own: &Offer, peers: &[SliceId], theirs: Vec<Step<Offer>>) -> Step<Vec<Offer>> {
    let check = |(peer, offer): (&SliceId, Step<Offer>)| {
        let offer = offer?;
        if offer.boot != own.boot {
            return Err(format!("{peer} is on another host"));
        }
        if offer.network != own.network {
            return Err(format!("{peer} is in another network namespace of this host"));
        }
        Ok(offer)
    };
    peers.iter().zip(theirs).map(check).collect()
}

fn join(
    identity: &Identity<'_>,
    own: &Socket,
    peers: &[SliceId],
    theirs: &[Offer],
    deadline: Instant,
) -> Step<Vec<Pair>> {
    let mut pairs: Vec<Pair> = Vec::with_capacity(peers.len());
    for (peer, offer) in peers.iter().zip(theirs).filter(|(peer, _)| identity.calls(**peer)) {
        let stream = call(offer.name, deadline);
        let stream = stream.map_err(|error| format!("cannot reach {peer}: {error}"))?;
        let connection = ConnectionId { to: *peer, ..identity.connection };
        let pair = connect(stream, identity.keys, &connection, deadline)
            .map_err(|error| one_line(&error))?;
        pairs.push(pair);
    }
    let called = peers.iter().copied().filter(|peer| !identity.calls(*peer)).collect();
    pairs.extend(await_callers(identity, own, called, deadline)?);
    pairs.sort_by_key(|pair| peers.iter().position(|peer| *peer == pair.peer()));
    Ok(pairs)
}

/// Takes calls until all of these slices have called. Whoever else calls is turned away.
fn await_callers(
    identity: &Identity<'_>,
    own: &Socket,
    mut awaited: Vec<SliceId>,
    deadline: Instant,
) -> Step<Vec<Pair>> {
    let waiting = |error: io::Error| format!("cannot wait for peers on this host: {error}");
    let epoll = Epoll::new().map_err(waiting)?;
    let event = EpollEvent::new(EventSet::IN, 0);
    let fd = own.listener.as_raw_fd();
    epoll.ctl(ControlOperation::Add, fd, event).map_err(waiting)?;
    let mut pairs = Vec::with_capacity(awaited.len());
    let mut refused = String::new();
    while let Some(missing) = awaited.first() {
        let Some(stream) = own.next(&epoll, deadline).map_err(waiting)? else {
            return Err(format!("{missing} did not call on this host in time{refused}"));
        };
        let expect =
            |connection: &ConnectionId| expected(&identity.connection, connection, &awaited);
        let until = deadline.min(Instant::now() + PROVING);
        match accept(stream, identity.keys, expect, until) {
            Ok(pair) => {
                awaited.retain(|slice| *slice != pair.peer());
                pairs.push(pair);
            }
            Err(error) => {
                refused = format!("; the last caller was refused: {}", one_line(&error));
            }
        }
    }
    Ok(pairs)
}

fn expected(
    own: &ConnectionId,
    caller: &ConnectionId,
    awaited: &[SliceId],
) -> Result<(), HandshakeError> {
    if caller.vm != own.vm {
        return Err(HandshakeError::WrongVm { theirs: Some(caller.vm) });
    }
    if caller.epoch != own.epoch {
        return Err(HandshakeError::WrongEpoch { theirs: Some(caller.epoch) });
    }
    if caller.role != Role::SharedMemory {
        return Err(HandshakeError::UnexpectedPurpose);
    }
    if caller.to != own.from || !awaited.contains(&caller.from) {
        return Err(HandshakeError::UnexpectedSlice { from: caller.from, to: caller.to });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        Offer { boot: 7, network: 4_026_531_840, name: 1 }
    }

    #[test]
    fn slices_of_other_hosts_and_namespaces_are_named() {
        let peers = [SliceId(1), SliceId(2)];
        let with = |second: Step<Offer>| same_host(&offer(), &peers, vec![Ok(offer()), second]);

        assert_eq!(with(Ok(offer())), Ok(vec![offer(), offer()]));
        let cases = [
            (Ok(Offer { boot: 8, ..offer() }), "slice2 is on another host"),
            (
                Ok(Offer { network: 1, ..offer() }),
                "slice2 is in another network namespace of this host",
            ),
            (Err(String::from("slice2 says: no socket")), "slice2 says: no socket"),
        ];
        for (second, text) in cases {
            assert_eq!(with(second), Err(text.to_owned()));
        }
    }

    #[test]
    fn only_awaited_slices_of_this_vm_and_epoch_are_expected() {
        use wire::Epoch;
        let own =
            |from, to, role| ConnectionId { role, vm: VmId([3; 16]), epoch: Epoch(1), from, to };
        let (here, peer) = (SliceId(2), SliceId(3));
        let good = own(peer, here, Role::SharedMemory);
        let judge = |connection: ConnectionId| {
            expected(&own(here, here, Role::SharedMemory), &connection, &[peer])
        };

        assert!(judge(good).is_ok());
        for bad in [
            ConnectionId { vm: VmId([4; 16]), ..good },
            ConnectionId { epoch: Epoch(2), ..good },
            ConnectionId { role: Role::Frames(0), ..good },
            ConnectionId { from: SliceId(1), ..good },
            ConnectionId { to: SliceId(1), ..good },
        ] {
            assert!(judge(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn strangers_that_call_without_end_do_not_outlast_the_deadline() {
        let own = Socket::open().unwrap();
        let epoll = Epoll::new().unwrap();
        let event = EpollEvent::new(EventSet::IN, 0);
        epoll.ctl(ControlOperation::Add, own.listener.as_raw_fd(), event).unwrap();
        // More than are taken below: the queue is never empty.
        let strangers: Vec<_> = (0..16).map(|_| try_call(own.offer.name).unwrap()).collect();
        let soon = Instant::now() + Duration::from_secs(60);
        assert!(own.next(&epoll, soon).unwrap().is_some());
        assert!(own.next(&epoll, Instant::now()).unwrap().is_none());
        drop(strangers);
    }

    #[test]
    fn call_of_a_full_queue_ends() {
        let own = Socket::open().unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match try_call(own.offer.name) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let late = call(own.offer.name, Instant::now()).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }
}
