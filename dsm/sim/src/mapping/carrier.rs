//! A transport whose frames the simulator carries.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use transport::{Class, Event, SendError, Transport};
use wire::SliceId;

/// A frame on its way.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Where it goes, and later where it came from.
    pub(crate) peer: SliceId,
    pub(crate) class: Class,
    pub(crate) bytes: Vec<u8>,
}

/// The two ends that the simulator holds.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    pub(crate) outgoing: Vec<Frame>,
    pub(crate) incoming: VecDeque<Frame>,
    /// Frames that find room before one finds none; unbounded if `None`.
    room: Option<u32>,
    left: u32,
}

impl Mailbox {
    /// After so many frames one is refused, then so many more are taken.
    pub(crate) fn narrow(&mut self, room: u32) {
        (self.room, self.left) = (Some(room), room);
    }
}

/// One slice's transport.
#[derive(Debug)]
pub(crate) struct Carrier {
    local: SliceId,
    peers: Vec<SliceId>,
    mailbox: Arc<Mutex<Mailbox>>,
    /// Readiness that nobody waits for.
    idle: std::fs::File,
}

impl Carrier {
    pub(crate) fn new(
        local: SliceId,
        slices: u16,
        mailbox: Arc<Mutex<Mailbox>>,
    ) -> Result<Self, std::io::Error> {
        let peers = (0..slices).map(SliceId).filter(|peer| *peer != local).collect();
        Ok(Self { local, peers, mailbox, idle: std::fs::File::open("/dev/null")? })
    }
}

impl Transport for Carrier {
    fn local(&self) -> SliceId {
        self.local
    }

    fn peers(&self) -> &[SliceId] {
        &self.peers
    }

    fn send(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        let mut mailbox = self.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = mailbox.room {
            if mailbox.left == 0 {
                mailbox.left = room;
                return Err(SendError::Full);
            }
            mailbox.left -= 1;
        }
        let bytes = [head, payload].concat();
        mailbox.outgoing.push(Frame { peer: to, class, bytes });
        Ok(())
    }

    fn cork(&mut self, _: bool) {}

    /// Nobody is given up for its silence here.
    fn take_heard(&mut self, _: &mut dyn FnMut(SliceId, u64)) {}

    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        let next =
            || self.mailbox.lock().unwrap_or_else(PoisonError::into_inner).incoming.pop_front();
        let frames = std::iter::from_fn(next).take(budget);
        let event = |frame: Frame| {
            let Frame { peer: from, class, bytes } = frame;
            sink(Event::Frame { from, class, bytes: &bytes });
        };
        frames.map(event).count()
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.idle.as_fd()
    }
}
