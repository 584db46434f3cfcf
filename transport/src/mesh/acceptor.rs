//! Where callers prove themselves, side by side.
//!
//! Anybody can connect, so a connection that has proved nothing must cost little and delay nobody. Each
//! is heard by a thread of its own, at most [`PENDING_MAX`] of them; one more takes the place of the
//! oldest. Only a caller that has proved itself comes out, and is told then whether it is wanted.
//!
//! Refusals are told at a bounded rate, each with the number that went untold before it.

use super::context::PATIENCE;
use super::error::MeshError;
use super::listener::Listener;
use crate::handshake::{self, HandshakeError, Proven};
use crate::one_line;
use crate::ready::next_ready;
use std::collections::VecDeque;
use std::fmt;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Most connections that have not proved themselves yet.
pub(super) const PENDING_MAX: usize = 32;
/// Most refusals that are told one right after the other.
const TOLD_AT_ONCE: u32 = 8;
/// After that, one is told for each time that this has passed.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// How long a listener waits when the machine has no descriptor for one more connection.
const PAUSE: Duration = Duration::from_millis(100);

const TOKEN_LISTENER: u64 = 0;
const TOKEN_BELL: u64 = 1;
const TOKEN_OTHER: u64 = 2;

/// A connection that was turned away; the wait goes on.
#[derive(Debug)]
pub struct Refused {
    /// Who called; nobody in particular when no connection could be taken.
    pub from: Option<SocketAddr>,
    /// Why it was turned away.
    pub error: MeshError,
    /// How many others were turned away before it without being told of.
    pub untold: u64,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            Some(from) => write!(f, "refused {from}: ")?,
            None => f.write_str("no connection can be taken: ")?,
        }
        f.write_str(&one_line(&self.error))?;
        match self.untold {
            0 => Ok(()),
            untold => write!(f, " (and {untold} other refusals before it)"),
        }
    }
}

/// A caller that proved itself and waits for the verdict.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) stream: TcpStream,
    pub(super) from: SocketAddr,
    pub(super) proven: Proven,
}

/// What a wait ends with.
#[derive(Debug)]
pub(super) enum Next {
    Caller(Box<Caller>),
    /// The other descriptor that is watched can be read.
    Other,
    Deadline,
}

#[derive(Debug)]
struct Pending {
    number: u64,
    from: SocketAddr,
    stream: Arc<TcpStream>,
    thread: JoinHandle<()>,
}

impl Pending {
    /// Ends the thread, which waits for nothing but the connection.
    fn drop_now(self) {
        // A connection that is gone already ends it as well.
        let _ = self.stream.shutdown(Shutdown::Both);
        let _ = self.thread.join();
    }
}

#[derive(Debug)]
struct Heard {
    number: u64,
    result: Result<Proven, HandshakeError>,
}

/// Takes connections of a listener.
#[derive(Debug)]
pub(super) struct Acceptor<'a> {
    listener: &'a Listener,
    epoll: Epoll,
    bell: Arc<EventFd>,
    /// The oldest first.
    pending: VecDeque<Pending>,
    heard: Receiver<Heard>,
    tell: Sender<Heard>,
    count: u64,
    rate: Rate,
    untold: Option<Refused>,
}

impl<'a> Acceptor<'a> {
    /// Watches `other` too, if there is one.
    pub(super) fn new(
        listener: &'a Listener,
        other: Option<&dyn AsRawFd>,
    ) -> Result<Self, MeshError> {
        let epoll = Epoll::new().map_err(MeshError::Wait)?;
        let bell = EventFd::new(EFD_NONBLOCK).map_err(MeshError::Wait)?;
        let watched = [
            (TOKEN_LISTENER, Some(listener.socket().as_raw_fd())),
            (TOKEN_BELL, Some(bell.as_raw_fd())),
            (TOKEN_OTHER, other.map(AsRawFd::as_raw_fd)),
        ];
        for (token, fd) in watched {
            let Some(fd) = fd else { continue };
            let event = EpollEvent::new(EventSet::IN, token);
            epoll.ctl(ControlOperation::Add, fd, event).map_err(MeshError::Wait)?;
        }
        let (tell, heard) = channel();
        let rate = Rate::new(Instant::now());
        let (pending, bell) = (VecDeque::new(), Arc::new(bell));
        Ok(Self { listener, epoll, bell, pending, heard, tell, count: 0, rate, untold: None })
    }

    /// Waits for the next caller that proves itself; all others are told to `refused`.
    ///
    /// # Errors
    /// The socket failed; never because of a caller, and not for want of descriptors.
    pub(super) fn next(
        &mut self,
        deadline: Instant,
        refused: &mut dyn FnMut(&Refused),
    ) -> Result<Next, MeshError> {
        loop {
            while let Ok(heard) = self.heard.try_recv() {
                if let Some(caller) = self.settle(heard, refused) {
                    return Ok(Next::Caller(Box::new(caller)));
                }
            }
            match next_ready(&self.epoll, deadline).map_err(MeshError::Wait)? {
                None => return Ok(Next::Deadline),
                Some(0) => self.take(deadline, refused)?,
                Some(1) => {
                    // Empty when another look has emptied it; what was rung for is looked at next.
                    let _ = self.bell.read();
                }
                Some(_) => return Ok(Next::Other),
            }
        }
    }

    /// A handshake came to its end. Of one that was dropped nothing more is told.
    fn settle(&mut self, heard: Heard, refused: &mut dyn FnMut(&Refused)) -> Option<Caller> {
        let place = self.pending.iter().position(|one| one.number == heard.number)?;
        let Pending { from, stream, thread, .. } = self.pending.remove(place)?;
        // It has told its result, so it is about to end, and its hold on the stream with it.
        let _ = thread.join();
        let stream = Arc::try_unwrap(stream).ok()?;
        match heard.result {
            Ok(proven) => Some(Caller { stream, from, proven }),
            Err(source) => {
                self.refuse_handshake(from, source, refused);
                None
            }
        }
    }

    /// Tells that a caller was turned away.
    pub(super) fn refuse_handshake(
        &mut self,
        from: SocketAddr,
        source: HandshakeError,
        refused: &mut dyn FnMut(&Refused),
    ) {
        let error = MeshError::Handshake { with: from.to_string(), source };
        self.refuse(Some(from), error, refused);
    }

    /// Tells of a refusal, if the last ones are not too near.
    pub(super) fn refuse(
        &mut self,
        from: Option<SocketAddr>,
        error: MeshError,
        refused: &mut dyn FnMut(&Refused),
    ) {
        let before = self.untold.take().map_or(0, |last| last.untold + 1);
        let one = Refused { from, error, untold: before };
        if self.rate.permits(Instant::now()) {
            refused(&one);
        } else {
            self.untold = Some(one);
        }
    }

    /// Takes the next connection, if it is still there.
    fn take(
        &mut self,
        deadline: Instant,
        refused: &mut dyn FnMut(&Refused),
    ) -> Result<(), MeshError> {
        match self.listener.socket().accept() {
            Ok((stream, from)) => {
                let set = stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true));
                // A connection that fails at once is gone; the next one may be good.
                if set.is_ok() {
                    self.hear(stream, from, refused);
                }
                Ok(())
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EFAULT) => {
                    Err(MeshError::Wait(error))
                }
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                    // It stays in the queue of the kernel. What proved nothing makes room.
                    if let Some(oldest) = self.pending.pop_front() {
                        oldest.drop_now();
                    }
                    self.refuse(None, MeshError::NoRoom(error), refused);
                    thread::sleep(PAUSE.min(deadline.saturating_duration_since(Instant::now())));
                    Ok(())
                }
                // The caller gave up, or the error is one of its connection (accept(2)).
                _ => Ok(()),
            },
        }
    }

    /// Starts the handshake with a caller.
    fn hear(&mut self, stream: TcpStream, from: SocketAddr, refused: &mut dyn FnMut(&Refused)) {
        if self.pending.len() >= PENDING_MAX
            && let Some(oldest) = self.pending.pop_front()
        {
            let from = oldest.from;
            oldest.drop_now();
            self.refuse_handshake(from, HandshakeError::Crowded, refused);
        }
        self.count += 1;
        let number = self.count;
        let stream = Arc::new(stream);
        let (near, bell, tell) = (Arc::clone(&stream), Arc::clone(&self.bell), self.tell.clone());
        let credential = self.listener.credential().clone();
        let until = Instant::now() + PATIENCE;
        let thread = Builder::new().name("handshake".into()).spawn(move || {
            let result = handshake::hear(&mut &*near, &credential, until);
            drop(near);
            // Nobody hears of it once the wait is over.
            if tell.send(Heard { number, result }).is_ok() {
                let _ = bell.write(1);
            }
        });
        match thread {
            Ok(thread) => self.pending.push_back(Pending { number, from, stream, thread }),
            Err(error) => self.refuse(Some(from), MeshError::NoRoom(error), refused),
        }
    }

    /// Ends the wait: tells of the refusals that were not told.
    pub(super) fn close(mut self, refused: &mut dyn FnMut(&Refused)) {
        if let Some(last) = self.untold.take() {
            refused(&last);
        }
    }
}

impl Drop for Acceptor<'_> {
    fn drop(&mut self) {
        self.pending.drain(..).for_each(Pending::drop_now);
    }
}

/// A bucket of tokens: some at once, then one from time to time.
#[derive(Debug)]
struct Rate {
    tokens: u32,
    filled: Instant,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Self { tokens: TOLD_AT_ONCE, filled: now }
    }

    fn permits(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled);
        let earned = u32::try_from(passed.as_nanos() / TOLD_EVERY.as_nanos()).unwrap_or(u32::MAX);
        if earned > 0 {
            self.tokens = self.tokens.saturating_add(earned).min(TOLD_AT_ONCE);
            self.filled = now;
        }
        let permitted = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        permitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_lets_some_through_at_once_and_then_one_a_second() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let mut burst = |at: f64| {
            let now = start + Duration::from_secs_f64(at);
            (0..20).filter(|_| rate.permits(now)).count()
        };

        assert_eq!([burst(0.0), burst(0.5), burst(1.0), burst(3.5)], [8, 0, 1, 2]);
        assert_eq!(burst(1000.0), 8);
    }
}
