//! The host's side of a socket device: one thread that waits for its clients, its streams and the device at once.
//!
//! ```text
//!   client: accepted --"CONNECT n"--> guest asked --answered--> stream     \ error, or the device
//!   guest asks --PATH_n connected--> stream                                / forgets it: closed
//!   stream: bytes both ways --one side has no more--> one way --both--> closed
//! ```
//! An orderly end of either side arrives as one, behind all that the side has sent, also when its program has closed at
//! once. A reset of the guest is an end without warning: a UNIX socket has no better word for it.
//! While the process has no descriptor left, clients wait in the listener's queue, and the guest is refused.
//! Who is too slow stops only its own stream: bytes of the host stay in its socket, and the guest has no more credit.
//! Before anything reaches the host the fence is looked at.

use super::stream::{Client, Stream, connect};
use crate::local_socket::LocalSocket;
use devices::Fence;
use devices::virtio::vsock::{CONNECTIONS_MAX, ConnectionId, End, View, Vsock};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Clients that have not said yet what they want.
const CLIENTS_MAX: usize = 64;
/// How long clients wait after one could not be accepted: there are no descriptors, perhaps.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Events taken at once.
const EVENTS: usize = 64;

/// What an event is about. Connections have their own numbers, which never come so far.
const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
/// Clients count from here.
const CLIENTS: u64 = 1 << 63;

/// What becomes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    Dies,
}

/// The thread and all that it has.
#[derive(Debug)]
pub(super) struct Host {
    vsock: Vsock,
    socket: Arc<LocalSocket>,
    fence: Arc<Fence>,
    over: Arc<AtomicBool>,
    path: PathBuf,
    epoll: OwnedFd,
    /// Clients are being accepted.
    listens: bool,
    /// One could not be, and others wait until then.
    rests_until: Option<Instant>,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    streams: BTreeMap<ConnectionId, Stream>,
}

impl Host {
    pub(super) fn new(
        vsock: Vsock,
        (socket, fence, over): (Arc<LocalSocket>, Arc<Fence>, Arc<AtomicBool>),
        path: &Path,
    ) -> io::Result<Self> {
        want_descriptors();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        socket.listener().set_nonblocking(true)?;
        epoll::add(&epoll, vsock.host_bell(), EventData::new_u64(BELL), EventFlags::IN)?;
        epoll::add(&epoll, socket.listener(), EventData::new_u64(LISTENER), EventFlags::IN)?;
        Ok(Self {
            vsock,
            socket,
            fence,
            over,
            path: path.to_owned(),
            epoll,
            listens: true,
            rests_until: None,
            clients: BTreeMap::new(),
            next_client: CLIENTS,
            streams: BTreeMap::new(),
        })
    }

    /// Serves until the VM is over, or nothing may reach the host any more.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.over.load(Ordering::Acquire) {
            if let Err(error) = self.turn(&mut events) {
                tracing::error!("wait for sockets of the guest: {error}");
                return;
            }
        }
    }

    /// Waits for events, and does what they ask for.
    fn turn(&mut self, events: &mut Vec<Event>) -> Result<(), Errno> {
        let left = self.rests_until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() });
        match epoll::wait(&self.epoll, spare_capacity(events), left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        for event in events.drain(..) {
            match event.data.u64() {
                LISTENER => self.welcome(),
                BELL => self.vsock.host_bell().hear(),
                client if client >= CLIENTS => self.hear(client),
                id => self.attend(ConnectionId(id), event.flags),
            }
        }
        for id in self.vsock.news() {
            self.look(id);
        }
        self.listen();
        Ok(())
    }

    /// Accepts clients while there is room for more, and no lack of descriptors.
    fn listen(&mut self) {
        self.rests_until = self.rests_until.filter(|until| *until > Instant::now());
        let room = self.clients.len() + self.streams.len() < CONNECTIONS_MAX;
        let room = room && self.rests_until.is_none() && self.vsock.has_place();
        if room == self.listens {
            return;
        }
        let flags = if room { EventFlags::IN } else { EventFlags::empty() };
        let data = EventData::new_u64(LISTENER);
        match epoll::modify(&self.epoll, self.socket.listener(), data, flags) {
            Ok(()) => self.listens = room,
            Err(error) => tracing::warn!("wait for clients of a socket device: {error}"),
        }
    }

    /// Takes one client in.
    fn welcome(&mut self) {
        let accepted = self.socket.listener().accept().and_then(|(stream, _)| {
            stream.set_nonblocking(true)?;
            let (number, data) = (self.next_client, EventData::new_u64(self.next_client));
            epoll::add(&self.epoll, &stream, data, EventFlags::IN)?;
            Ok((number, Client::new(stream)))
        });
        match accepted {
            Ok((number, client)) => {
                self.next_client += 1;
                if self.clients.len() >= CLIENTS_MAX {
                    // The oldest that has not said what it wants gives way.
                    self.clients.pop_first();
                }
                self.clients.insert(number, client);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::debug!("a client of a socket device: {error}");
                // It stays in the listener's queue, and would be there at once again.
                self.rests_until = Some(Instant::now() + ACCEPT_RETRY);
            }
        }
    }

    /// Hears what a client wants. Whoever says anything else than it must is let go.
    fn hear(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let port = match client.line() {
            Ok(None) => return,
            Ok(Some(port)) => port,
            Err(error) => {
                tracing::debug!("a client of a socket device: {error}");
                self.clients.remove(&number);
                return;
            }
        };
        let Some(stream) = self.clients.remove(&number).map(|client| client.stream) else { return };
        let Some((id, host_port)) = self.vsock.connect(port) else { return };
        if let Err(error) = epoll::delete(&self.epoll, &stream) {
            tracing::debug!("a client of a socket device: {error}");
        }
        self.enter(id, Stream::new(stream, Some(host_port)));
    }

    /// The guest wants to reach a port of the host.
    fn dial(&mut self, id: ConnectionId, port: u32) {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{port}"));
        match connect(Path::new(&path)) {
            Ok(stream) => {
                self.vsock.accept(id);
                self.enter(id, Stream::new(stream, None));
            }
            Err(error) => {
                tracing::debug!("port {port} of the host, for the guest: {error}");
                self.vsock.reset(id);
            }
        }
    }

    fn enter(&mut self, id: ConnectionId, stream: Stream) {
        self.streams.insert(id, stream);
        // Until there is more to do, for its end.
        self.wait_for(id, Some(EventFlags::empty()));
        self.look(id);
    }

    /// Something has happened to a stream.
    fn attend(&mut self, id: ConnectionId, flags: EventFlags) {
        let Some(stream) = self.streams.get(&id) else { return };
        let gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        match self.vsock.view(id) {
            // What it has sent before it closed is for the guest, if the guest wants it.
            Some(View::Asked) if gone && stream.has_bytes() => self.wait_for(id, None),
            // Whoever had no answer yet, or whom nobody reads any more, has let go.
            Some(View::Asked | View::Open { receives: false, .. }) if gone => self.reset(id),
            Some(_) if gone && stream.ended => {
                self.streams.remove(&id);
                self.vsock.end(id, End::Both);
            }
            _ => self.look(id),
        }
    }

    /// Does for a connection what there is to be done.
    fn look(&mut self, id: ConnectionId) {
        match self.vsock.view(id) {
            None => drop(self.streams.remove(&id)),
            Some(View::Dialing(port)) if self.fence.pass() => self.dial(id, port),
            Some(View::Dialing(_)) => self.over.store(true, Ordering::Release),
            Some(View::Asked) => {}
            Some(View::Open { .. }) => match self.carry(id) {
                Ok(Fate::Lives) => self.wait_on(id),
                Ok(Fate::Dies) => self.reset(id),
                Err(error) => {
                    tracing::debug!("a stream between guest and host: {error}");
                    self.reset(id);
                }
            },
        }
    }

    fn reset(&mut self, id: ConnectionId) {
        self.streams.remove(&id);
        self.vsock.reset(id);
    }

    /// Carries bytes both ways, as many as there are and have room.
    fn carry(&mut self, id: ConnectionId) -> io::Result<Fate> {
        let Some(View::Open { waiting, room, sends, receives }) = self.vsock.view(id) else {
            return Ok(Fate::Lives);
        };
        let Some(stream) = self.streams.get_mut(&id) else {
            // The host is gone, and the guest was told.
            return Ok(if sends || receives { Fate::Lives } else { Fate::Dies });
        };
        if (waiting > 0 || stream.is_to_greet()) && !self.fence.pass() {
            self.over.store(true, Ordering::Release);
            return Ok(Fate::Lives);
        }
        stream.greet()?;
        let left = stream.write(&self.vsock, id, waiting)?;
        if receives {
            stream.read(&self.vsock, id, room)?;
        }
        stream.tell(0, !sends && left == 0, Shutdown::Write)?;
        stream.tell(1, !receives, Shutdown::Read)?;
        if !receives {
            stream.discard();
        }
        // Both sides have said all: the guest waits for its reset (5.10.6.5).
        let done = !sends && !receives && left == 0;
        Ok(if done { Fate::Dies } else { Fate::Lives })
    }

    /// Waits for what the stream can do next.
    fn wait_on(&mut self, id: ConnectionId) {
        let view = self.vsock.view(id);
        let (Some(View::Open { waiting, room, receives, .. }), Some(stream)) =
            (view, self.streams.get(&id))
        else {
            return;
        };
        let reads = receives && room > 0 && !stream.ended;
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, reads);
        flags.set(EventFlags::OUT, waiting > 0);
        // A stream that nobody may read yet would tell of its end again and again.
        let silent = receives && !reads && !stream.ended && waiting == 0;
        self.wait_for(id, (!silent).then_some(flags));
    }

    fn wait_for(&mut self, id: ConnectionId, flags: Option<EventFlags>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let (data, socket) = (EventData::new_u64(id.0), &stream.stream);
        let changed = match (stream.waits, flags) {
            (before, now) if before == now => Ok(()),
            (None, Some(flags)) => epoll::add(&self.epoll, socket, data, flags),
            (Some(_), Some(flags)) => epoll::modify(&self.epoll, socket, data, flags),
            (_, None) => epoll::delete(&self.epoll, socket),
        };
        stream.waits = flags;
        if let Err(error) = changed {
            tracing::warn!("a stream between guest and host: {error}");
            self.reset(id);
        }
    }
}

/// Lets this process have as many descriptors more as there may be streams. Most systems give a program 1024 until it asks
/// for more, and all other parts of the VM need some.
fn want_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(now) = current else { return };
    let wanted = now.saturating_add(CONNECTIONS_MAX as u64);
    let limit = maximum.map_or(wanted, |maximum| wanted.min(maximum));
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum }) {
        tracing::warn!("descriptors for sockets of the guest: {error}");
    }
}

#[cfg(test)]
mod tests;
