//! The traits of transports: what the rest of a slice knows of its transport, whatever carries the bytes.

use crate::link::{AddPeerError, FormerPeer, PeerLink};
use crate::memory::PageMemory;
use std::os::fd::BorrowedFd;
use wire::{BATCH_MAX, PAGE_SIZE, SliceId};

/// What a frame is for. Frames of one class to one peer arrive in order; classes are independent,
/// so that an interrupt never queues behind pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Interrupts, device calls and control.
    Interrupt,
    /// Coherence requests, grants and pages.
    Coherence,
    /// Runs of prefetched pages, and their requests. A page that a vCPU waits for overtakes them.
    Run,
    /// Large transfers that nobody waits for.
    Bulk,
}

impl Class {
    /// How many there are.
    pub const COUNT: usize = 4;
    /// All of them, most urgent first; the position is the number of the class on the wire.
    pub const ALL: [Self; Self::COUNT] = [Self::Interrupt, Self::Coherence, Self::Run, Self::Bulk];

    /// The largest frame of the class, head and payload together, in bytes.
    #[must_use]
    pub fn frame_bytes_max(self) -> usize {
        match self {
            Self::Interrupt | Self::Coherence | Self::Bulk => FRAME_BYTES_MAX,
            Self::Run => RUN_BYTES_MAX,
        }
    }
}

/// The largest frame of any class but runs, head and payload together, in bytes.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

/// The largest frame of runs: [`BATCH_MAX`] pages with its head. So many are to be written remotely at a time, and are one
/// frame where that finds no room.
pub const RUN_BYTES_MAX: usize = BATCH_MAX as usize * PAGE_SIZE + DIRECT_HEAD_MAX;

/// The longest head of a frame whose body is received directly into memory, in bytes.
pub const DIRECT_HEAD_MAX: usize = 64;

/// Where to receive the body of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectReceive {
    /// Bytes of the frame that are no body: at most [`DIRECT_HEAD_MAX`].
    pub head: usize,
    /// Byte offset of the body's first byte in the exposed memory.
    pub offset: u64,
}

/// What `poll` reports.
#[derive(Debug)]
pub enum Event<'a> {
    /// A large frame of a run has begun: its body can be received into the exposed memory
    /// ([`Transport::expose`]) if it is said now where. Whoever says so expects it there and touches that
    /// memory no more until `DirectlyReceived`. Otherwise the frame comes as any other.
    Head {
        /// The sender.
        from: SliceId,
        /// The first [`DIRECT_HEAD_MAX`] bytes.
        bytes: &'a [u8],
        /// Bytes of the whole frame.
        length: usize,
        /// To be filled in.
        direct_receive: &'a mut Option<DirectReceive>,
    },
    /// The body of such a frame was received directly into memory. This comes in place of the frame.
    DirectlyReceived {
        /// The sender.
        from: SliceId,
        /// The head alone.
        bytes: &'a [u8],
        /// Bytes of the whole frame.
        length: usize,
    },
    /// A whole frame, exactly as it was sent (head and payload joined).
    Frame {
        /// The sender.
        from: SliceId,
        /// The class it was sent in.
        class: Class,
        /// The bytes, valid until the sink returns.
        bytes: &'a [u8],
    },
    /// The peer is gone. Reported once per peer; no frame from it follows.
    Lost {
        /// The peer.
        peer: SliceId,
        /// One line for a person.
        cause: String,
    },
}

/// Why a frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The queue or the credits to this peer and class are used up.
    #[error("the send queue to the peer is full")]
    Full,
    /// The peer is lost or never was a member.
    #[error("the peer is not a member")]
    Gone,
    /// Head and payload together exceed [`Class::frame_bytes_max`].
    #[error("the frame is larger than a frame may be")]
    TooLarge,
}

/// Moves frames between the slices of one VM. Bounded, polled, in order per peer and class.
pub trait Transport: Send {
    /// This slice.
    fn local(&self) -> SliceId;
    /// The other members, ascending, also those that are lost and not removed.
    fn peers(&self) -> &[SliceId];
    /// Queues `head` followed by `payload` as one frame. Never blocks.
    ///
    /// # Errors
    /// `Full` and `Gone` are answers, not faults.
    fn send(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError>;
    /// While corked, frames are only queued, but for interrupts, which go at once; uncorking writes them,
    /// many by one call. Not to be left corked: what waits is written by the next `poll`, but nobody is
    /// told that it waits.
    fn cork(&mut self, on: bool);
    /// Pushes queued bytes out, reads what came, keeps the lease, and hands at most `budget` events
    /// to the sink, interrupts first. Returns how many it handed over.
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize;
    /// Hands over each peer that was there later than was known at the last call, and when: a time of this host's `CLOCK_BOOTTIME` in
    /// nanoseconds which the peer has sent back. So it was there after that, however late its word has come.
    fn take_heard(&mut self, sink: &mut dyn FnMut(SliceId, u64));
    /// Readable when `poll` has something to do (frames, room to send, or lease work).
    fn readiness(&self) -> BorrowedFd<'_>;
    /// Whether something came, looked up without a system call: for who waits for an answer so short a
    /// time that sleeping costs more. Always false where it takes a system call to know; then
    /// `readiness` tells.
    fn look(&mut self) -> bool {
        false
    }
    /// From now on one `poll` hands over so many frames of runs at most, for each is work for many pages: what
    /// is more urgent is then looked for again. As many as the budget allows until this is called.
    fn limit_runs(&mut self, _frames: usize) {}
    /// Takes one more peer in, while the others go on. It is given the memory that was exposed before. From now
    /// on its lease counts: it must run within that time.
    ///
    /// # Errors
    /// The peer cannot be added; nothing has changed then.
    fn add_peer(&mut self, link: PeerLink) -> Result<(), AddPeerError> {
        Err(AddPeerError::Fixed { peer: link.peer() })
    }
    /// Takes a peer out, lost or not: it is no member any more, `send` says `Gone`, and no event of it follows, nor
    /// its loss. What waits to be sent to it is dropped, and it hears that this slice has let go of it. What is left
    /// is to be dropped where waiting harms nobody. None if there is no such peer.
    fn remove_peer(&mut self, _peer: SliceId) -> Option<FormerPeer> {
        None
    }
    /// Offers this slice's memory to its peers, for pages to be written into, where that takes no adapter's
    /// leave. True if they may do so from now on; others were given the memory when they were made, or
    /// cannot use it.
    fn expose(&mut self, _memory: &PageMemory) -> bool {
        false
    }
    /// Whether pages can be written from this slice's [`PageMemory`] into that of a peer. Once it is so, it
    /// stays so as long as the peer does.
    fn has_remote_write(&self, _peer: SliceId) -> bool {
        false
    }
    /// Writes the pages from a byte offset of this slice's memory on to the same offset of the peer's, and
    /// queues `head` as a frame that comes after them. Until the peer answered, nobody may change the pages
    /// here, and the peer must expect them there.
    ///
    /// # Errors
    /// `Full` when there is no room for it now, and always where [`Self::has_remote_write`] is false: send the pages
    /// as bytes.
    fn remote_write(
        &mut self,
        _to: SliceId,
        _class: Class,
        _head: &[u8],
        _offset: u64,
        _pages: u16,
    ) -> Result<(), SendError> {
        Err(SendError::Full)
    }
}
