//! A virtqueue of a driver that is not trusted (2.7, split rings).
//!
//! Crate `virtio-queue` walks the rings; this module takes its chains apart once, checks all of a
//! chain and keeps the copy. What can never be right makes the ring broken: an index torn or too far
//! ahead, a chain that loops, ends nowhere or mixes its order, an area outside guest memory.

use super::{F_EVENT_IDX, QUEUE_SIZE_MAX, QueueSetup, Used, UsedMemory};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use thiserror::Error;
use virtio_bindings::virtio_ring::{VRING_AVAIL_F_NO_INTERRUPT, VRING_DESC_F_INDIRECT};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

/// What a driver has done that no device can work with.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RingError {
    /// Size or place of the queue.
    #[error("the queue has a size or addresses that cannot be")]
    Setup,
    /// The available index is further ahead than the queue has entries, or names a descriptor that
    /// does not exist.
    #[error("the available ring is not a ring")]
    Available,
    /// A chain that is empty, loops, is too long, ends in an address that does not exist, or has a
    /// buffer to read after one to write.
    #[error("a descriptor chain makes no sense")]
    Chain,
    /// A buffer that is not all in guest memory.
    #[error("a buffer lies outside guest memory")]
    Memory,
    /// A chain without room for what every request of the device has.
    #[error("a request has no room for its header or its status")]
    Request,
    /// Nothing is wrong with the ring: this host has no thread for its worker.
    #[error("no thread could be started that serves the queue")]
    Worker,
}

/// A piece of guest memory, checked to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    address: GuestAddress,
    bytes: u32,
}

/// Buffers in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Buffers {
    pieces: Vec<Piece>,
    bytes: u64,
}

impl Buffers {
    /// Bytes in all.
    pub(crate) fn len(&self) -> u64 {
        self.bytes
    }

    fn push(&mut self, piece: Piece) {
        self.bytes += u64::from(piece.bytes);
        self.pieces.push(piece);
    }

    /// Calls for each piece from `offset` on, at most `bytes`: with its address and its part of the
    /// range.
    fn walk(
        &self,
        offset: u64,
        bytes: usize,
        mut each: impl FnMut(GuestAddress, Range<usize>) -> Result<(), RingError>,
    ) -> Result<(), RingError> {
        let (mut skip, mut done) = (offset, 0);
        for piece in &self.pieces {
            let length = u64::from(piece.bytes);
            if skip >= length {
                skip -= length;
                continue;
            }
            let part = usize::try_from(length - skip).unwrap_or(usize::MAX).min(bytes - done);
            // Within a range that was checked to be in memory.
            each(GuestAddress(piece.address.0 + skip), done..done + part)?;
            (skip, done) = (0, done + part);
            if done == bytes {
                break;
            }
        }
        if done == bytes { Ok(()) } else { Err(RingError::Request) }
    }
}

/// A request as the driver described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// What the used ring calls it.
    pub(crate) head: u16,
    /// What the driver has written for the device.
    pub(crate) readable: Buffers,
    /// What the device is to fill.
    pub(crate) writable: Buffers,
}

/// A running queue.
pub struct Ring {
    queue: Queue,
    memory: Arc<GuestMemoryMmap>,
    /// Used index when the driver's wish for an interrupt was last looked at.
    told: u16,
    used: Option<Arc<dyn UsedMemory>>,
    /// Address and bytes of the three areas of the rings (2.7).
    areas: [(u64, u64); 3],
    frame: Frame,
}

/// Bytes of each request that are neither ring nor payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frame {
    /// At the begin of what the driver has written.
    pub(crate) head: u64,
    /// At the end of what the device is to fill.
    pub(crate) tail: u64,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Ring {
    /// Takes over a queue. All that the transport has checked is checked again, and that the rings lie
    /// in guest memory.
    pub(crate) fn new(
        setup: &QueueSetup,
        features: u64,
        memory: Arc<GuestMemoryMmap>,
    ) -> Result<Self, RingError> {
        let mut queue = Queue::new(QUEUE_SIZE_MAX).map_err(|_| RingError::Setup)?;
        let areas = [setup.descriptors, setup.driver_area, setup.device_area].map(GuestAddress);
        let [descriptors, driver, device] = areas;
        queue
            .try_set_size(setup.size)
            .and_then(|()| queue.try_set_desc_table_address(descriptors))
            .and_then(|()| queue.try_set_avail_ring_address(driver))
            .and_then(|()| queue.try_set_used_ring_address(device))
            .map_err(|_| RingError::Setup)?;
        queue.set_event_idx(features & F_EVENT_IDX != 0);
        queue.set_ready(true);
        // An available ring at address 0 is what the crate takes for none.
        if setup.driver_area == 0 || !queue.is_valid(&*memory) {
            return Err(RingError::Setup);
        }
        Ok(Self { queue, memory, told: 0, used: None, areas: [(0, 0); 3], frame: Frame::default() })
    }

    /// Tells of the rings' memory now and with each request, for whoever listens may forget, and of that of buffers.
    pub(crate) fn with_used(
        self,
        setup: &QueueSetup,
        used: Arc<dyn UsedMemory>,
        frame: Frame,
    ) -> Self {
        let size = u64::from(setup.size);
        let areas = [
            (setup.descriptors, 16 * size),
            (setup.driver_area, 6 + 2 * size),
            (setup.device_area, 6 + 8 * size),
        ];
        let ring = Self { used: Some(used), areas, frame, ..self };
        ring.tell_areas();
        ring
    }

    fn tell_areas(&self) {
        let Some(used) = &self.used else { return };
        for (address, bytes) in self.areas {
            used.used(address, bytes, Used::Data);
        }
    }

    /// Entries.
    pub(crate) fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Indexes of the next entries of available and used ring.
    pub(crate) fn positions(&self) -> (u16, u16) {
        (self.queue.next_avail(), self.queue.next_used())
    }

    /// Goes on at these indexes; the driver has been told of all that was given back.
    pub(crate) fn go_to(&mut self, next_avail: u16, next_used: u16) {
        self.queue.set_next_avail(next_avail);
        self.queue.set_next_used(next_used);
        self.told = next_used;
    }

    /// Takes back that the last so many requests were taken off the available ring: they are taken again. Their entries
    /// are still there, for the driver does not reuse one before its request is given back.
    pub(crate) fn put_back(&mut self, requests: u16) {
        self.queue.set_next_avail(self.queue.next_avail().wrapping_sub(requests));
    }

    /// Takes the next request off the available ring.
    pub(crate) fn pop(&mut self) -> Result<Option<Chain>, RingError> {
        let memory = Arc::clone(&self.memory);
        let mut available = self.queue.iter(&*memory).map_err(|_| RingError::Available)?;
        let Some(descriptors) = available.next() else { return Ok(None) };
        let (head, size) = (descriptors.head_index(), self.queue.size());
        if head >= size {
            return Err(RingError::Available);
        }
        self.tell_table(head);
        let mut chain = Chain { head, readable: Buffers::default(), writable: Buffers::default() };
        let (mut complete, mut count) = (false, 0);
        for descriptor in descriptors {
            count += 1;
            let flags = u32::from(descriptor.flags());
            if count > size || flags & VRING_DESC_F_INDIRECT != 0 {
                return Err(RingError::Chain);
            }
            let piece = Piece { address: descriptor.addr(), bytes: descriptor.len() };
            self.check(piece, descriptor.is_write_only())?;
            let last = !descriptor.has_next();
            self.tell_used(piece, descriptor.is_write_only(), chain.readable.bytes, last);
            if descriptor.is_write_only() {
                chain.writable.push(piece);
            } else if chain.writable.pieces.is_empty() {
                chain.readable.push(piece);
            } else {
                return Err(RingError::Chain);
            }
            complete = last;
        }
        self.tell_areas();
        // The iterator ends as well where a chain cannot go on.
        if complete { Ok(Some(chain)) } else { Err(RingError::Chain) }
    }

    fn check(&self, piece: Piece, write: bool) -> Result<(), RingError> {
        let access = if write { Permissions::Write } else { Permissions::Read };
        let bytes = usize::try_from(piece.bytes).map_err(|_| RingError::Memory)?;
        let there = bytes == 0
            || piece.address.0.checked_add(u64::from(piece.bytes)).is_some()
                && self.memory.check_range(piece.address, bytes, access);
        if there { Ok(()) } else { Err(RingError::Memory) }
    }

    /// Tells of the table of its own that a request has (2.7.5.3), if it has one and that is in memory. What counts
    /// is looked at again by the crate.
    fn tell_table(&self, head: u16) {
        let Some(used) = &self.used else { return };
        let at = GuestAddress(self.queue.desc_table() + 16 * u64::from(head));
        let mut descriptor = [0; 16];
        if self.memory.read_slice(&mut descriptor, at).is_err() {
            return;
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l, flags, ..] = descriptor;
        let address = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let bytes = u32::from_le_bytes([i, j, k, l]);
        let piece = Piece { address: GuestAddress(address), bytes };
        let indirect = u32::from(flags) & VRING_DESC_F_INDIRECT != 0;
        // A chain has no more descriptors than the ring; longer tables are not walked over for a count.
        let sane = (1..=16 * u32::from(self.queue.size())).contains(&bytes);
        if indirect && sane && self.check(piece, false).is_ok() {
            used.used(address, u64::from(bytes), Used::Data);
        }
    }

    /// Tells of a checked piece, `before` which so many bytes of the chain are to be read.
    fn tell_used(&self, piece: Piece, write: bool, before: u64, last: bool) {
        let Some(used) = &self.used else { return };
        let (bytes, frame) = (u64::from(piece.bytes), self.frame);
        let (head, tail) = match (write, last) {
            (false, _) => (frame.head.saturating_sub(before).min(bytes), 0),
            (true, true) => (0, frame.tail.min(bytes)),
            (true, false) => (0, 0),
        };
        let parts = [(head, Used::Frame), (bytes - head - tail, Used::Data), (tail, Used::Frame)];
        let mut at = piece.address.0;
        for (bytes, what) in parts.into_iter().filter(|(bytes, _)| *bytes > 0) {
            used.used(at, bytes, what);
            at += bytes;
        }
    }

    /// Copies out of a chain's buffers.
    pub(crate) fn read(
        &self,
        from: &Buffers,
        offset: u64,
        data: &mut [u8],
    ) -> Result<(), RingError> {
        from.walk(offset, data.len(), |address, range| {
            self.memory.read_slice(&mut data[range], address).map_err(|_| RingError::Memory)
        })
    }

    /// Copies so many bytes out of a chain's buffers.
    pub(crate) fn read_vec(
        &self,
        from: &Buffers,
        offset: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, RingError> {
        let mut data = vec![0; bytes];
        self.read(from, offset, &mut data)?;
        Ok(data)
    }

    /// Copies into a chain's buffers.
    pub(crate) fn write(&self, to: &Buffers, offset: u64, data: &[u8]) -> Result<(), RingError> {
        to.walk(offset, data.len(), |address, range| {
            self.memory.write_slice(&data[range], address).map_err(|_| RingError::Memory)
        })
    }

    /// Gives a request back to the driver with the number of bytes written.
    pub(crate) fn push(&mut self, head: u16, written: u64) -> Result<(), RingError> {
        let written = u32::try_from(written).unwrap_or(u32::MAX);
        self.queue.add_used(&*self.memory, head, written).map_err(|_| RingError::Memory)
    }

    /// The driver need not ring: the worker is awake.
    pub(crate) fn quiet(&mut self) -> Result<(), RingError> {
        self.queue.disable_notification(&*self.memory).map_err(|_| RingError::Memory)
    }

    /// The driver is to ring from now on. True when there is something to do already.
    pub(crate) fn listen(&mut self) -> Result<bool, RingError> {
        self.queue.enable_notification(&*self.memory).map_err(|_| RingError::Memory)
    }

    /// Index of the next entry that the driver will make available.
    pub(crate) fn offered(&self) -> Result<u16, RingError> {
        let index = self.queue.avail_idx(&*self.memory, Ordering::Acquire);
        index.map(|index| index.0).map_err(|_| RingError::Memory)
    }

    /// The driver is to ring once it has made the entry with this index available. True if it has.
    pub(crate) fn listen_beyond(&mut self, index: u16) -> Result<bool, RingError> {
        self.listen()?;
        if self.queue.event_idx_enabled() {
            let event = 4 + 8 * u64::from(self.queue.size());
            let at = GuestAddress(self.queue.used_ring() + event);
            let stored = self.memory.store(index.to_le(), at, Ordering::Relaxed);
            stored.map_err(|_| RingError::Memory)?;
        }
        // The wish must be seen before the index is looked at.
        fence(Ordering::SeqCst);
        Ok(self.offered()? != index)
    }

    /// Gives several requests back so that the driver sees all of them or none, as the buffers of one
    /// packet must be (5.1.6.4). The crate publishes each by itself, so all but the last are written
    /// here, and the last brings the index of all.
    pub(crate) fn push_together(&mut self, used: &[(u16, u64)]) -> Result<(), RingError> {
        const HEADER: u64 = 4;
        const ELEMENT: u64 = 8;
        let Some(((last, written), others)) = used.split_last() else { return Ok(()) };
        for (head, written) in others {
            let next = self.queue.next_used();
            let slot = u64::from(next % self.queue.size());
            let at = GuestAddress(self.queue.used_ring() + HEADER + ELEMENT * slot);
            let written = u32::try_from(*written).unwrap_or(u32::MAX);
            let [h0, h1, h2, h3] = u32::from(*head).to_le_bytes();
            let [w0, w1, w2, w3] = written.to_le_bytes();
            let element = [h0, h1, h2, h3, w0, w1, w2, w3];
            self.memory.write_slice(&element, at).map_err(|_| RingError::Memory)?;
            self.queue.set_next_used(next.wrapping_add(1));
        }
        self.push(*last, *written)
    }

    /// True when the driver wants an interrupt for what was given back since the last question
    /// (2.7.7). Asked here and not of the crate, which does not know what
    /// [`Self::push_together`] has given back.
    pub(crate) fn interrupt_due(&mut self) -> Result<bool, RingError> {
        let (now, before) = (self.queue.next_used(), self.told);
        if now == before {
            return Ok(false);
        }
        self.told = now;
        // The index must be seen before the driver's wish is looked at.
        fence(Ordering::SeqCst);
        let load = |offset: u64| {
            let at = GuestAddress(self.queue.avail_ring() + offset);
            self.memory.load(at, Ordering::Relaxed).map(u16::from_le).map_err(|_| RingError::Memory)
        };
        if self.queue.event_idx_enabled() {
            let event = load(4 + 2 * u64::from(self.queue.size()))?;
            let since = now.wrapping_sub(event).wrapping_sub(1);
            return Ok(since < now.wrapping_sub(before));
        }
        Ok(u32::from(load(0)?) & VRING_AVAIL_F_NO_INTERRUPT == 0)
    }
}

#[cfg(test)]
mod tests;
