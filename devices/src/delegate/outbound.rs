//! Frames on their way out: cuts messages into parts and keeps the parts of one together.

use super::counters::{Counters, add};
use super::{Courier, ExchangeError};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;
use wire::device::{DeviceFrame, MESSAGE_BYTES_MAX, PART_BYTES_MAX, packets_bytes};
use wire::{Epoch, SliceId};

#[derive(Debug, Default)]
struct Peer {
    lost: AtomicBool,
    /// Held while the parts of one message go out. The engine's thread never takes it.
    parts: Mutex<()>,
}

/// Messages that go to one slice together: the way is woken once for all of them.
#[derive(Debug, Default)]
pub(super) struct Letters(Vec<Vec<u8>>);

impl Letters {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The way to all other slices.
#[derive(Debug)]
pub(super) struct Outbound {
    epoch: Epoch,
    courier: Arc<dyn Courier>,
    peers: BTreeMap<SliceId, Peer>,
    pub(super) counters: Arc<Counters>,
}

impl Outbound {
    pub(super) fn new(epoch: Epoch, peers: &[SliceId], courier: Arc<dyn Courier>) -> Self {
        let peers = peers.iter().map(|peer| (*peer, Peer::default())).collect();
        Self { epoch, courier, peers, counters: Arc::default() }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Nothing is sent there any more.
    pub(super) fn lose(&self, slice: SliceId) {
        if let Some(peer) = self.peers.get(&slice) {
            peer.lost.store(true, Ordering::Release);
        }
    }

    pub(super) fn is_lost(&self, slice: SliceId) -> bool {
        self.peers.get(&slice).is_none_or(|peer| peer.lost.load(Ordering::Acquire))
    }

    /// Sends one frame. False when the peer is lost.
    pub(super) fn frame(&self, to: SliceId, frame: &DeviceFrame<'_>) -> bool {
        if self.is_lost(to) {
            return false;
        }
        let bytes = frame.encode(self.epoch);
        add(&self.counters.frames_sent, 1);
        add(&self.counters.bytes_sent, bytes.len() as u64);
        self.courier.send(to, bytes)
    }

    /// Sends a message in as many parts as it takes; `make` gives the frame of the part that starts
    /// at an offset. False when the peer is lost, perhaps in the middle.
    pub(super) fn message<'a>(
        &self,
        to: SliceId,
        bytes: &'a [u8],
        make: impl Fn(u32, &'a [u8]) -> DeviceFrame<'a>,
    ) -> bool {
        if bytes.len() <= PART_BYTES_MAX {
            return self.frame(to, &make(0, bytes));
        }
        let mut letters = Letters::default();
        self.write(&mut letters, bytes, make);
        self.post(to, letters)
    }

    /// Puts a message, in as many parts as it takes, behind what is to go the same way.
    pub(super) fn write<'a>(
        &self,
        letters: &mut Letters,
        bytes: &'a [u8],
        make: impl Fn(u32, &'a [u8]) -> DeviceFrame<'a>,
    ) {
        if bytes.is_empty() {
            return letters.0.push(make(0, bytes).encode(self.epoch));
        }
        let mut offset = 0;
        for chunk in bytes.chunks(PART_BYTES_MAX) {
            letters.0.push(make(offset, chunk).encode(self.epoch));
            offset += message_bytes(chunk);
        }
    }

    /// Sends whole messages in order, without parts of others between them. False when the peer is
    /// lost, perhaps in the middle.
    pub(super) fn post(&self, to: SliceId, letters: Letters) -> bool {
        let Letters(frames) = letters;
        let Some(peer) = self.peers.get(&to).filter(|_| !self.is_lost(to)) else { return false };
        add(&self.counters.frames_sent, frames.len() as u64);
        add(&self.counters.bytes_sent, frames.iter().map(|frame| frame.len() as u64).sum());
        let _together = peer.parts.lock().unwrap_or_else(PoisonError::into_inner);
        self.courier.send_all(to, frames)
    }
}

/// How many of these packets, at least one, are a list that fits one message.
pub(super) fn fitting(packets: &[Vec<u8>]) -> usize {
    let mut count = packets.len();
    while count > 1 && packets_bytes(&packets[..count]) > MESSAGE_BYTES_MAX {
        count = count.div_ceil(2);
    }
    count
}

/// Length of a message or a part of one, as it travels.
pub(super) fn message_bytes(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a message is at most 4 MiB")
}

/// How much one peer has under way at a device of this slice.
#[derive(Debug, Default)]
pub(super) struct Load {
    now: Mutex<(u32, u64)>,
    none: Condvar,
}

impl Load {
    /// Counts a request of so many bytes in; an error when that is more than the limits.
    pub(super) fn enter(
        &self,
        limits: super::Limits,
        bytes: u64,
        overrun: ExchangeError,
    ) -> Result<(), ExchangeError> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let (requests, sum) = (now.0 + 1, now.1 + bytes);
        if requests > limits.requests || sum > limits.bytes {
            return Err(overrun);
        }
        *now = (requests, sum);
        Ok(())
    }

    /// Counts it out, before the peer learns of it.
    pub(super) fn leave(&self, bytes: u64) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = (now.0 - 1, now.1 - bytes);
        if now.0 == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until there is none, or the deadline. Gives the number of requests that are left.
    pub(super) fn wait_for_none(&self, deadline: Instant) -> usize {
        let left = deadline.saturating_duration_since(Instant::now());
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.none.wait_timeout_while(now, left, |now| now.0 > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.0 as usize
    }
}
