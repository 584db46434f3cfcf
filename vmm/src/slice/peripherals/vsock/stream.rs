//! The sockets of the host: of a client that is to say where to, and of a connection.

use devices::virtio::vsock::{ConnectionId, End, Vsock};
use rustix::event::epoll::EventFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Longest line of a client, with its end.
const LINE_MAX: usize = 32;
/// Bytes that are carried at once.
const PIECE_BYTES: usize = 16 << 10;

/// Somebody who has connected and is to say where to.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) stream: UnixStream,
    line: Vec<u8>,
}

/// The host's end of a connection.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) stream: UnixStream,
    /// What the thread waits for; none while it waits for nothing, not even for the end.
    pub(super) waits: Option<EventFlags>,
    /// Port of the host that the client is to be told once the guest has answered.
    greeting: Option<u32>,
    /// The host sends no more.
    pub(super) ended: bool,
    /// The host was told that the guest sends, or takes, no more.
    no_more: [bool; 2],
}

impl Client {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, line: Vec::new() }
    }

    /// The port of the guest, once its line is whole. Byte by byte: what comes behind is for the guest.
    pub(super) fn line(&mut self) -> io::Result<Option<u32>> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let mut byte = [0];
        while self.line.last() != Some(&b'\n') {
            match self.stream.read(&mut byte) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) if self.line.len() == LINE_MAX => return wrong("its line is too long"),
                Ok(_) => self.line.push(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let text = std::str::from_utf8(&self.line).ok().map(str::trim_end);
        let port = text.and_then(|text| text.strip_prefix("CONNECT ")?.parse().ok());
        port.map_or_else(|| wrong("it does not say CONNECT and a port"), |port| Ok(Some(port)))
    }
}

impl Stream {
    pub(super) fn new(stream: UnixStream, greeting: Option<u32>) -> Self {
        Self { stream, waits: None, greeting, ended: false, no_more: [false; 2] }
    }

    /// The client is still to be told that the guest has answered.
    pub(super) fn is_to_greet(&self) -> bool {
        self.greeting.is_some()
    }

    /// Tells it, if so.
    pub(super) fn greet(&mut self) -> io::Result<()> {
        let Some(port) = self.greeting.take() else { return Ok(()) };
        // The first bytes of a socket always have room.
        match self.stream.write_all(format!("OK {port}\n").as_bytes()) {
            // It may have sent something before.
            Err(error) if is_gone(&error) => Ok(()),
            told => told,
        }
    }

    /// The host has sent something that was not read yet.
    pub(super) fn has_bytes(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(&self.stream, &mut [0_u8; 1], flags).is_ok_and(|(bytes, _)| bytes > 0)
    }

    /// Drops what the host has sent and the guest does not take. A socket that is closed with bytes unread tells its peer
    /// of a reset, but the guest's end was orderly. No more comes: the socket is shut for reading.
    pub(super) fn discard(&mut self) {
        let mut piece = [0; PIECE_BYTES];
        while matches!(self.stream.read(&mut piece), Ok(1..)) {}
    }

    /// Passes on so many bytes of the guest, as far as there is room, and gives the number that is left.
    pub(super) fn write(
        &mut self,
        vsock: &Vsock,
        id: ConnectionId,
        waiting: usize,
    ) -> io::Result<usize> {
        let (mut piece, mut left) = ([0; PIECE_BYTES], waiting);
        while left > 0 {
            let count = vsock.peek(id, &mut piece[..left.min(PIECE_BYTES)]);
            if count == 0 {
                return Ok(0);
            }
            match self.stream.write(&piece[..count]) {
                Ok(written) => {
                    vsock.forward(id, written);
                    left -= written;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_gone(&error) => {
                    // It may have sent something before.
                    vsock.end(id, End::Taking);
                    return Ok(0);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(left)
    }

    /// Brings so many bytes to the guest, as far as there are any.
    pub(super) fn read(&mut self, vsock: &Vsock, id: ConnectionId, room: usize) -> io::Result<()> {
        let (mut piece, mut left) = ([0; PIECE_BYTES], room);
        while left > 0 && !self.ended {
            let got = match self.stream.read(&mut piece[..left.min(PIECE_BYTES)]) {
                // The host has closed with bytes of the guest unread. What it sent came before (unix(7)).
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(0),
                got => got,
            };
            match got {
                Ok(0) => {
                    self.ended = true;
                    vsock.end(id, End::Sending);
                }
                Ok(count) => {
                    // Only this thread fills the room.
                    vsock.push(id, &piece[..count]);
                    left -= count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tells the host once what the guest does no more.
    pub(super) fn tell(&mut self, which: usize, now: bool, how: Shutdown) -> io::Result<()> {
        if now && !std::mem::replace(&mut self.no_more[which], true) {
            match self.stream.shutdown(how) {
                Err(error) if error.kind() != io::ErrorKind::NotConnected => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether the host takes no more.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Connects at once or not at all.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(socket.as_fd(), &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}
