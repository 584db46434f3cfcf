//! The socket: who connects, in which language, and the lines of those that speak JSON.
//!
//! ```text
//!   connected --first bytes--> JSON: answered line by line, if its user may
//!                         \--> HTTP/2, and there is who takes it: handed over
//! ```

use super::caller::Caller;
use super::desk::Desk;
use super::message::{Answer, LineError, Progress, REQUEST_MAX, Request, read_line};
use super::refusal::{Reason, Refusal};
use super::view::View;
use crate::local_socket::{LocalSocket, SocketError};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown as Ends, recv};
use std::collections::BTreeMap;
use std::io::{self, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Clients at a time.
const CLIENTS_MAX: usize = 8;
/// A client's time to take an answer.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// How each connection of HTTP/2 begins (RFC 9113, 3.4), as far as it tells from a line of JSON.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";
/// A client's time to say all of it once it has begun; and to begin, for one that may not ask anything.
const PREFACE_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Shared {
    desk: Desk,
    /// By number; none once the socket is closed.
    clients: Mutex<Option<BTreeMap<u64, UnixStream>>>,
}

impl Shared {
    fn clients(&self) -> MutexGuard<'_, Option<BTreeMap<u64, UnixStream>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listening control socket. Its name goes with it.
#[derive(Debug)]
pub struct ControlSocket {
    socket: Arc<LocalSocket>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Listens at a path for what is asked at this desk. What a process that is gone has left there is replaced.
    ///
    /// # Errors
    /// Another process listens there, the name is taken by something else, or the folder cannot be
    /// written.
    pub fn open(path: &Path, desk: Desk) -> Result<Self, SocketError> {
        let socket = Arc::new(LocalSocket::open(path)?);
        let clients = Mutex::new(Some(BTreeMap::new()));
        let shared = Arc::new(Shared { desk, clients });
        let (own, clients) = (Arc::clone(&socket), Arc::clone(&shared));
        let run = move || accept(own.listener(), &clients);
        let thread = Builder::new().name("control".into()).spawn(run);
        let failed = |source| SocketError::Listen { path: path.to_owned(), source };
        Ok(Self { socket, shared, thread: Some(thread.map_err(failed)?) })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.socket.remove();
        // Ends the thread's wait for callers.
        let _ = rustix::net::shutdown(self.socket.listener(), Ends::Both);
        let clients = self.shared.clients().take();
        for stream in clients.into_iter().flat_map(BTreeMap::into_values) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    for number in 0u64.. {
        let Ok((stream, _)) = listener.accept() else {
            // The end, or no descriptors: a look at the list tells which.
            if shared.clients().is_none() {
                return;
            }
            sleep(Duration::from_millis(100));
            continue;
        };
        if let Err(error) = take(stream, number, shared) {
            tracing::debug!(%error, "a client of the control socket is not served");
        }
    }
}

fn take(stream: UnixStream, number: u64, shared: &Arc<Shared>) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    let mut clients = shared.clients();
    let Some(clients) = clients.as_mut() else { return Ok(()) };
    if clients.len() >= CLIENTS_MAX {
        let cause = format!("{CLIENTS_MAX} clients are here already");
        let refusal = Refusal::new(Reason::TooManyClients, cause);
        return send(&mut &stream, &Answer::Refused(refusal));
    }
    clients.insert(number, stream.try_clone()?);
    let own = Arc::clone(shared);
    let run = move || {
        let handed = match welcome(&stream, &own.desk) {
            Ok(handed) => handed,
            Err(error) => {
                tracing::debug!(%error, "a client of the control socket is dropped");
                None
            }
        };
        if let Some(clients) = own.clients().as_mut() {
            clients.remove(&number);
        }
        if let (Some(caller), Some(taker)) = (handed, own.desk.http2()) {
            taker.take(stream, caller);
        }
    };
    let started = Builder::new().name("control-client".into()).spawn(run);
    if started.is_err() {
        clients.remove(&number);
    }
    started.map(drop)
}

/// Finds out who has connected, and serves one that speaks JSON. One that is to be handed over is returned.
fn welcome(stream: &UnixStream, desk: &Desk) -> Result<Option<Caller>, LineError> {
    let caller = Caller::of(stream)?;
    if !caller.may_ask {
        // It may not keep a place by saying nothing.
        stream.set_read_timeout(Some(PREFACE_LIMIT))?;
    }
    if desk.http2().is_some() && speaks_http2(stream)? {
        stream.set_read_timeout(None)?;
        return Ok(Some(caller));
    }
    if caller.may_ask {
        serve(stream, desk)?;
    } else {
        send(&mut &*stream, &Answer::Refused(caller.refusal()))?;
    }
    Ok(None)
}

/// Whether a client begins as HTTP/2 does. Nothing is taken from the stream.
fn speaks_http2(stream: &UnixStream) -> io::Result<bool> {
    let mut bytes = [0; PREFACE.len()];
    let mut end = None;
    loop {
        let count = match recv(stream, &mut bytes[..], RecvFlags::PEEK) {
            Ok((count, _)) => count.min(PREFACE.len()),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if count == 0 || bytes[..count] != PREFACE[..count] {
            return Ok(false);
        }
        if count == PREFACE.len() {
            return Ok(true);
        }
        // The rest of it cannot be waited for: there is something to see already.
        let end = *end.get_or_insert_with(|| Instant::now() + PREFACE_LIMIT);
        if Instant::now() > end {
            return Ok(false);
        }
        sleep(Duration::from_millis(5));
    }
}

/// Answers a client until it goes.
fn serve(stream: &UnixStream, desk: &Desk) -> Result<(), LineError> {
    let mut lines = BufReader::new(stream);
    let mut view = View::default();
    loop {
        let line = read_line(&mut lines, REQUEST_MAX);
        let _answering = desk.begin_answer();
        let malformed = |cause: String| Answer::Refused(Refusal::new(Reason::Malformed, cause));
        let answer = match line {
            Ok(None) => return Ok(()),
            Ok(Some(line)) => match Request::parse(&line) {
                Ok(request) => {
                    // What was begun goes on when the client has gone.
                    let mut listens = true;
                    let mut tell = |progress: Progress| {
                        listens =
                            listens && send(&mut &*stream, &Answer::Progress(progress)).is_ok();
                    };
                    desk.answer(&mut view, &request, &mut tell)
                }
                Err(error) => malformed(format!("this is no request: {error}")),
            },
            Err(error @ LineError::TooLong(_)) => {
                // Where the next line begins is not known.
                send(&mut &*stream, &malformed(error.to_string()))?;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        send(&mut &*stream, &answer)?;
    }
}

fn send(to: &mut impl Write, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    to.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn language_is_told_by_the_first_bytes_and_nothing_is_taken() {
        let language = |pieces: &[&[u8]]| {
            let (client, server) = UnixStream::pair().unwrap();
            let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
            let all = pieces.concat();
            let says = thread::spawn(move || {
                for piece in pieces {
                    (&client).write_all(&piece).unwrap();
                    sleep(Duration::from_millis(20));
                }
                drop(client);
            });
            let http2 = speaks_http2(&server).unwrap();
            says.join().unwrap();
            let mut rest = Vec::new();
            io::Read::read_to_end(&mut &server, &mut rest).unwrap();
            assert_eq!(rest, all);
            http2
        };
        assert!(language(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]));
        assert!(language(&[b"P", b"RI * HT", b"TP/2.0\r\n"]));
        assert!(!language(&[b"{\"report\":{}}\n"]));
        assert!(!language(&[b"PRI", b"NT\n"]));
        assert!(!language(&[b"PRI * HTTP/1.1\r\n"]));
        assert!(!language(&[]));
    }
}
