//! What the engine asks of a carrier: a byte stream to one peer for each class, and a way to be woken.

use crate::memory::PageMemory;
use crate::traits::Class;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// Epoll tokens of one peer: the engine gives each peer this many.
pub(crate) const TOKENS: u64 = 5;

/// What an epoll event means for a peer.
#[derive(Debug, Default)]
pub(crate) struct Wakeup {
    /// Classes that may have bytes.
    pub(crate) readable: [bool; Class::COUNT],
    /// Classes that may have room.
    pub(crate) writable: [bool; Class::COUNT],
    /// The peer is known to be gone: why. What it sent before is still read.
    pub(crate) gone: Option<String>,
}

/// The streams to and from one peer.
pub(crate) trait Carrier: Send + 'static {
    /// Where the peer is, for messages.
    fn location(&self) -> &str;
    /// Puts the peer's descriptors into `epoll`, with tokens `base..base + TOKENS`.
    fn register(&self, epoll: &Epoll, base: u64) -> io::Result<()>;
    /// Takes them out again: the peer is lost. What it has exposed is let go of.
    fn deregister(&mut self, epoll: &Epoll);
    /// Explains an event on token `base + offset`.
    fn wakeup(&mut self, offset: u64, events: EventSet) -> Wakeup;
    /// Reads what is there: `WouldBlock` when nothing is, `Ok(0)` at the end of the stream.
    fn read(&mut self, class: usize, into: &mut [u8]) -> io::Result<usize>;
    /// Reads what is there into one place after another.
    fn read_parts(&mut self, class: usize, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut sum = 0;
        for part in parts {
            match self.read(class, part) {
                Ok(count) => {
                    sum += count;
                    if count < part.len() {
                        break;
                    }
                }
                // What was read counts; the error comes again.
                Err(_) if sum > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sum)
    }
    /// Writes what fits: `WouldBlock` when nothing does.
    fn write(&mut self, class: usize, parts: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Nothing can be done with the stream of `class` before so many bytes more are there: it need not be
    /// readable, and wake its owner, before; 0 ends that. A carrier may tell of less all the same.
    fn expect(&mut self, _class: usize, _bytes: usize) -> io::Result<()> {
        Ok(())
    }
    /// Starts or ends waking for room in the stream of `class`.
    fn want_room(&mut self, epoll: &Epoll, base: u64, class: usize, on: bool) -> io::Result<()>;
    /// Offers memory to the peer to write pages into. False where peers do not write into it.
    fn expose(&mut self, _memory: &PageMemory) -> io::Result<bool> {
        Ok(false)
    }
    /// Whether pages can be written into the peer's memory.
    fn has_remote_write(&self) -> bool {
        false
    }
    /// Writes the pages from an offset of our memory on to the same offset of the peer's, ahead of all that
    /// is written to the stream of `class` from now on. False when there is no room for them.
    fn remote_write_pages(&mut self, _class: usize, _offset: u64, _pages: u16) -> io::Result<bool> {
        Ok(false)
    }
    /// Whether something came, known without a system call.
    fn look(&mut self) -> bool {
        false
    }
    /// Called when a poll ends: returns true when something came or room appeared since.
    fn arm(&mut self) -> bool {
        false
    }
}

/// Whether an operation on a non-blocking stream should be tried again later.
pub(crate) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Adds or changes one descriptor.
pub(crate) fn watch(
    epoll: &Epoll,
    operation: ControlOperation,
    fd: RawFd,
    events: EventSet,
    token: u64,
) -> io::Result<()> {
    epoll.ctl(operation, fd, EpollEvent::new(events, token))
}
