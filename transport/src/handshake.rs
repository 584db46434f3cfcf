//! Both ends of a new connection prove that they know its key, before anything else. The key depends on
//! who calls whom, in which VM (`key`).
//!
//! ```text
//!  caller                                          listener
//!    | -- Hello   magic version role class vm epoch from to nonce --> |  version? answers and ends
//!    | <- Reply   magic version CHALLENGE nonce --------------------- |
//!    | -- Proof   HMAC("caller", hello, reply) ---------------------> |  proof? answers and ends
//!    | <- Verdict magic version ACCEPT HMAC("listener", ...) -------- |  expected? or reason code
//! ```
//!
//! The caller proves first, so a scanner learns nothing that the secret touched. A verdict with a
//! reason code is signed too: only a peer that proved itself learns why it is not wanted. The
//! transcript holds both nonces, roles, slices, VM, epoch, version and class, so a proof fits one
//! connection only. After the handshake the stream is plain: the secret guards against strangers
//! and mistakes, not against someone who changes packets on the wire.
//!
//! The first eight bytes of a hello and of a reply (magic, version) never change between versions.

mod error;
mod layout;

pub use crate::connection_id::{ConnectionId, Role, VmId};
pub use error::HandshakeError;
pub use layout::{HELLO_BYTES, Hello, REPLY_BYTES, Reply, Status};

use crate::key::{Key, Keys, MAC_BYTES};
use layout::VERSION;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const LABEL_CALLER: &[u8] = b"tessera caller 1";
const LABEL_LISTENER: &[u8] = b"tessera listener 1";
/// How long a refusing side waits for the other to read the reason before it closes.
const PARTING: Duration = Duration::from_millis(250);

/// A blocking stream whose waits can be bounded.
pub trait Channel: Read + Write {
    /// Bounds the next read and the next write.
    ///
    /// # Errors
    /// The socket refuses.
    fn set_wait(&self, wait: Duration) -> io::Result<()>;
    /// Says that nothing more will be written.
    fn finish(&self);
}

impl Channel for TcpStream {
    fn set_wait(&self, wait: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(wait))?;
        self.set_write_timeout(Some(wait))
    }

    fn finish(&self) {
        // It fails when the connection is gone already, which is as good.
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// For a stream that another thread may have to shut down.
impl Channel for &TcpStream {
    fn set_wait(&self, wait: Duration) -> io::Result<()> {
        TcpStream::set_wait(self, wait)
    }

    fn finish(&self) {
        TcpStream::finish(self);
    }
}

impl Channel for UnixStream {
    fn set_wait(&self, wait: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(wait))?;
        self.set_write_timeout(Some(wait))
    }

    fn finish(&self) {
        // As above.
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// Bounds the next operation by what is left until `deadline`.
fn bound(channel: &impl Channel, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    channel.set_wait(left)
}

/// Reads all of `into` until `deadline`, however the bytes come.
pub(crate) fn read_all(
    channel: &mut impl Channel,
    into: &mut [u8],
    deadline: Instant,
) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        bound(channel, deadline)?;
        match channel.read(&mut into[done..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `bytes` until `deadline`.
pub(crate) fn write_all(
    channel: &mut impl Channel,
    bytes: &[u8],
    deadline: Instant,
) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        bound(channel, deadline)?;
        match channel.write(&bytes[done..]) {
            Ok(0) => return Err(ErrorKind::BrokenPipe.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Closes so that the last words arrive: data left unread would turn them into a reset.
pub(crate) fn part(channel: &mut impl Channel) {
    channel.finish();
    let deadline = Instant::now() + PARTING;
    let mut rest = [0; 256];
    for _ in 0..16 {
        if bound(channel, deadline).is_err() || !matches!(channel.read(&mut rest), Ok(1..)) {
            break;
        }
    }
}

fn nonce() -> io::Result<[u8; 32]> {
    let mut nonce = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut nonce)?;
    Ok(nonce)
}

/// Proves `connection` to the listener at the other end and has it prove itself.
///
/// # Errors
/// See [`HandshakeError`].
pub fn call(
    channel: &mut impl Channel,
    keys: &impl Keys,
    connection: &ConnectionId,
    deadline: Instant,
) -> Result<(), HandshakeError> {
    let key = keys.key(connection).ok_or(HandshakeError::NoKey { to: connection.to })?;
    let hello = Hello { connection: *connection, nonce: nonce()? }.encode();
    write_all(channel, &hello, deadline)?;
    let mut challenge = [0; REPLY_BYTES];
    let reply = read_reply(channel, &mut challenge, deadline)?;
    if reply.status != Status::Challenge {
        let value = u16::from(reply.status.code());
        return Err(HandshakeError::Malformed { field: "the first status", value });
    }
    let proof = key.sign(LABEL_CALLER, &[&hello, &challenge]);
    write_all(channel, &proof, deadline)?;
    let mut verdict = [0; REPLY_BYTES];
    let reply = read_reply(channel, &mut verdict, deadline)?;
    if reply.status == Status::ProofRefused {
        return Err(HandshakeError::ProofRefused);
    }
    let status = [reply.status.code()];
    if !key.verify(LABEL_LISTENER, &[&hello, &challenge, &proof, &status], &reply.body) {
        return Err(HandshakeError::Unproven);
    }
    match reply.refusal(connection) {
        Some(refusal) => Err(refusal),
        None if reply.status == Status::Accept => Ok(()),
        None => {
            Err(HandshakeError::Malformed { field: "the last status", value: u16::from(status[0]) })
        }
    }
}

/// Reads the head first: another version may have another length.
fn read_reply(
    channel: &mut impl Channel,
    into: &mut [u8; REPLY_BYTES],
    deadline: Instant,
) -> Result<Reply, HandshakeError> {
    read_all(channel, &mut into[..8], deadline)?;
    layout::check_version(&into[..8])?;
    read_all(channel, &mut into[8..], deadline)?;
    Reply::decode(into)
}

/// Lets a caller prove itself, then asks `expect` whether it is wanted, then proves this side.
///
/// # Errors
/// See [`HandshakeError`]. The caller was told the reason where that reveals nothing.
pub fn answer(
    channel: &mut impl Channel,
    keys: &impl Keys,
    expect: impl FnOnce(&ConnectionId) -> Result<(), HandshakeError>,
    deadline: Instant,
) -> Result<ConnectionId, HandshakeError> {
    let proven = hear(channel, keys, deadline)?;
    let expected = expect(&proven.connection);
    proven.tell(channel, expected, deadline)
}

/// A caller that has proved itself and is not yet told whether it is wanted.
#[derive(Debug)]
pub(crate) struct Proven {
    /// Who it is.
    pub(crate) connection: ConnectionId,
    key: Key,
    hello: [u8; HELLO_BYTES],
    challenge: [u8; REPLY_BYTES],
    proof: [u8; MAC_BYTES],
}

/// The first half of [`answer`]: lets a caller prove itself.
pub(crate) fn hear(
    channel: &mut impl Channel,
    keys: &impl Keys,
    deadline: Instant,
) -> Result<Proven, HandshakeError> {
    let mut hello = [0; HELLO_BYTES];
    read_all(channel, &mut hello[..8], deadline)?;
    if let Err(error) = layout::check_version(&hello[..8]) {
        if matches!(error, HandshakeError::Version { .. }) {
            let reply = Reply { status: Status::Version, body: [0; MAC_BYTES] }.encode();
            tell(channel, &reply, deadline);
        }
        return Err(error);
    }
    read_all(channel, &mut hello[8..], deadline)?;
    let connection = Hello::decode(&hello)?.connection;
    let challenge = Reply { status: Status::Challenge, body: nonce()? }.encode();
    write_all(channel, &challenge, deadline)?;
    let mut proof = [0; MAC_BYTES];
    read_all(channel, &mut proof, deadline)?;
    // Who has no key for this caller hears it to the end all the same: which slice this is, is told to
    // nobody who proved nothing.
    let key = keys.key(&connection);
    let Some(key) = key.filter(|key| key.verify(LABEL_CALLER, &[&hello, &challenge], &proof))
    else {
        let reply = Reply { status: Status::ProofRefused, body: [0; MAC_BYTES] }.encode();
        tell(channel, &reply, deadline);
        return Err(HandshakeError::Unproven);
    };
    Ok(Proven { connection, key, hello, challenge, proof })
}

impl Proven {
    /// The second half of [`answer`]: tells the caller whether it is wanted, and proves this side.
    pub(crate) fn tell(
        self,
        channel: &mut impl Channel,
        expected: Result<(), HandshakeError>,
        deadline: Instant,
    ) -> Result<ConnectionId, HandshakeError> {
        let status = expected.as_ref().map_or_else(Status::of, |()| Status::Accept);
        let code = [status.code()];
        let transcript: [&[u8]; 4] = [&self.hello, &self.challenge, &self.proof, &code];
        let body = self.key.sign(LABEL_LISTENER, &transcript);
        let verdict = Reply { status, body }.encode();
        if let Err(error) = expected {
            tell(channel, &verdict, deadline);
            return Err(error);
        }
        write_all(channel, &verdict, deadline)?;
        Ok(self.connection)
    }
}

/// Says why the connection ends. The reason stands whether or not it still arrives.
fn tell(channel: &mut impl Channel, reply: &[u8], deadline: Instant) {
    if write_all(channel, reply, deadline).is_ok() {
        part(channel);
    }
}

/// The version that both ends must speak.
#[must_use]
pub const fn version() -> u16 {
    VERSION
}
