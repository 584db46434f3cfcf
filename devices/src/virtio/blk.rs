//! The front end of a disk (5.2): one worker for each request queue.
//!
//! ```text
//!   popped --> refused (range, kind, read-only) ------------------------+
//!          --> submitted --> answered --> data and status written ------+--> used --> interrupt
//! ```
//! A request's header and data are copied out of guest memory once; what is checked is the copy.

mod answering;

use super::ring::{Buffers, Chain, Frame};
use super::worker::ServedQueue;
use super::{
    ConfigChanges, DeviceChange, DeviceShape, Doorbell, IN_FLIGHT_BYTES, QUEUE_SIZE_MAX,
    QueueContext, QueueSetup, QueueWorker, RingError, WorkerState,
};
use crate::back_end::{
    DISK_ID_BYTES, Disk, DiskDone, DiskReply, DiskRequest, DiskShape, REQUEST_BYTES_MAX,
    SECTOR_BYTES,
};
use answering::{Answer, Answering};
use migrate::{Invalid, Saved};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_WRITE_ZEROES,
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;

/// Offset of the capacity in the configuration.
const CONFIG_CAPACITY: usize = 0;
/// Bytes of `struct virtio_blk_config` up to what zoned disks have (5.2.4).
const CONFIG_BYTES: usize = 60;
/// Bytes of a request's header (5.2.6).
const HEADER_BYTES: usize = 16;
/// Header and status of a request (5.2.6).
const FRAME: Frame = Frame { head: HEADER_BYTES as u64, tail: 1 };
/// Bytes of `struct virtio_blk_discard_write_zeroes`; a request has one of them.
const RANGE_BYTES: usize = 16;
/// Most sectors that one request gives back or fills with zeros: 1 GiB.
const RANGE_SECTORS_MAX: u32 = 1 << 21;
/// Requests begun before replies are looked at again.
const ROUND: usize = 64;

/// Buffers of a request: a full queue less header and status.
const SEGMENTS_MAX: u16 = QUEUE_SIZE_MAX - 2;
/// Largest buffer, so that the largest request is within [`REQUEST_BYTES_MAX`].
const SEGMENT_BYTES_MAX: u32 = 16 << 10;
const _: () = assert!(SEGMENTS_MAX as usize * SEGMENT_BYTES_MAX as usize <= REQUEST_BYTES_MAX);

/// Such a disk with so many request queues, as drivers see it (5.2). Its class is storage.
#[must_use]
pub fn shape(disk: &DiskShape, queues: u16) -> DeviceShape {
    DeviceShape {
        type_id: VIRTIO_ID_BLOCK,
        class: 0x01_8000,
        features: features(disk, queues),
        queues: queues.into(),
        config: config(disk, queues, QUEUE_SIZE_MAX),
        changes: ConfigChanges { at: CONFIG_CAPACITY, bits: &[0xff; 8] },
    }
}

/// A disk has so many sectors now (5.2.4).
#[must_use]
pub fn resized(sectors: u64) -> DeviceChange {
    let bytes = sectors.to_le_bytes().to_vec();
    DeviceChange::Config { type_id: VIRTIO_ID_BLOCK, at: CONFIG_CAPACITY, bytes }
}

/// Features of such a disk.
fn features(disk: &DiskShape, queues: u16) -> u64 {
    let writable = !disk.read_only;
    let offered = [
        (VIRTIO_BLK_F_SIZE_MAX, true),
        (VIRTIO_BLK_F_SEG_MAX, true),
        (VIRTIO_BLK_F_BLK_SIZE, true),
        (VIRTIO_BLK_F_FLUSH, true),
        (VIRTIO_BLK_F_RO, disk.read_only),
        (VIRTIO_BLK_F_MQ, queues > 1),
        (VIRTIO_BLK_F_DISCARD, writable && disk.discard),
        (VIRTIO_BLK_F_WRITE_ZEROES, writable),
    ];
    offered.iter().filter(|(_, on)| *on).fold(0, |all, (bit, _)| all | 1 << bit)
}

/// Configuration of such a disk (5.2.4). No topology: block size is all that back ends know.
fn config(disk: &DiskShape, queues: u16, queue_size: u16) -> Vec<u8> {
    let mut config = vec![0; CONFIG_BYTES];
    let mut put = |at: usize, value: &[u8]| config[at..at + value.len()].copy_from_slice(value);
    put(CONFIG_CAPACITY, &disk.sectors.to_le_bytes());
    put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
    put(12, &u32::from(queue_size - 2).to_le_bytes());
    put(20, &disk.block_bytes.to_le_bytes());
    put(34, &queues.to_le_bytes());
    let one_segment = 1_u32.to_le_bytes();
    if disk.discard {
        put(36, &RANGE_SECTORS_MAX.to_le_bytes());
        put(40, &one_segment);
        let alignment = u64::from(disk.block_bytes) / SECTOR_BYTES;
        put(44, &u32::try_from(alignment).unwrap_or(1).to_le_bytes());
    }
    put(48, &RANGE_SECTORS_MAX.to_le_bytes());
    put(52, &one_segment);
    put(56, &[u8::from(disk.discard)]);
    config
}

/// Status of a request (5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ok,
    Failed,
    Unsupported,
}

impl Status {
    fn code(self) -> u8 {
        let code = match self {
            Self::Ok => VIRTIO_BLK_S_OK,
            Self::Failed => VIRTIO_BLK_S_IOERR,
            Self::Unsupported => VIRTIO_BLK_S_UNSUPP,
        };
        code.to_le_bytes()[0]
    }
}

/// A request that the back end has.
#[derive(Debug)]
struct InFlight {
    head: u16,
    writable: Buffers,
    /// Bytes that it may move.
    bytes: usize,
    /// Bytes that a read must bring.
    read: usize,
    /// It is given back when what it has changed is on stable storage.
    is_made_stable: bool,
}

/// The worker of a request queue.
#[derive(Debug)]
pub struct DiskQueue {
    queue: ServedQueue,
    disk: Arc<dyn Disk>,
    shape: DiskShape,
    /// The driver never flushes: what it is told is written has to be stable (5.2.6.2).
    writes_through: bool,
    doorbell: Doorbell,
    answers: Receiver<Answer>,
    answering: SyncSender<Answer>,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<usize>,
    bytes: usize,
    /// Requests of this round, which are submitted together.
    begun: Begun,
}

/// Requests on their way to the back end.
#[derive(Default)]
struct Begun(Vec<(DiskRequest, DiskDone)>);

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Begun").field(&self.0.len()).finish()
    }
}

impl DiskQueue {
    /// A worker for this queue; `doorbell` is the one that wakes it.
    ///
    /// # Errors
    ///
    /// The queue cannot be: the device is broken ([`DeviceFaults`](super::DeviceFaults)).
    pub fn new(
        context: &QueueContext,
        features: u64,
        setup: &QueueSetup,
        disk: Arc<dyn Disk>,
        doorbell: Doorbell,
    ) -> Result<Self, RingError> {
        let queue = ServedQueue::new(context, features, setup, FRAME)?;
        let size = usize::from(queue.ring.size());
        let (answering, answers) = sync_channel(size);
        Ok(Self {
            queue,
            shape: disk.shape(),
            writes_through: features & 1 << VIRTIO_BLK_F_FLUSH == 0,
            disk,
            doorbell,
            answers,
            answering,
            in_flight: (0..size).map(|_| None).collect(),
            free: (0..size).rev().collect(),
            bytes: 0,
            begun: Begun::default(),
        })
    }

    /// Whether a request has room beside those under way: a back end on another slice takes no more bytes from a queue. Where none are under
    /// way any request has.
    fn has_room(&self, chain: &Chain) -> bool {
        let moves = chain.writable.len().max(chain.readable.len());
        let bytes = usize::try_from(moves).unwrap_or(usize::MAX);
        self.bytes == 0 || self.bytes.saturating_add(bytes) <= IN_FLIGHT_BYTES
    }

    fn round(&mut self) -> Result<bool, RingError> {
        self.finish_answered()?;
        self.queue.ring.quiet()?;
        let begun = self.begin_all();
        // What was begun before a ring turned out broken is carried out too.
        let requests = std::mem::take(&mut self.begun.0);
        if !requests.is_empty() {
            self.disk.submit_all(requests);
        }
        let (begun, waits) = begun?;
        let answered = self.finish_answered()?;
        self.queue.tell()?;
        if waits {
            // An answer that is still to come rings.
            return Ok(answered);
        }
        Ok(begun == ROUND || self.queue.ring.listen()?)
    }

    /// Takes in what the driver asks for: how many requests, and whether the next one waits for an answer.
    fn begin_all(&mut self) -> Result<(usize, bool), RingError> {
        for begun in 0..ROUND {
            if self.free.is_empty() {
                return Ok((begun, true));
            }
            let Some(chain) = self.queue.ring.pop()? else { return Ok((begun, false)) };
            if !self.has_room(&chain) {
                self.queue.ring.put_back(1);
                return Ok((begun, true));
            }
            self.begin(chain)?;
        }
        Ok((ROUND, false))
    }

    /// Reads a request and prepares it, or ends it here.
    fn begin(&mut self, chain: Chain) -> Result<(), RingError> {
        let mut header = [0; HEADER_BYTES];
        self.queue.ring.read(&chain.readable, 0, &mut header)?;
        if chain.writable.len() == 0 {
            return Err(RingError::Request);
        }
        match self.request(&header, &chain)? {
            Ok(request) => {
                self.submit(chain, request);
                Ok(())
            }
            Err(status) => self.end(chain.head, &chain.writable, &[], status),
        }
    }

    /// What the driver asks for, or how that ends at once.
    fn request(
        &self,
        header: &[u8; HEADER_BYTES],
        chain: &Chain,
    ) -> Result<Result<DiskRequest, Status>, RingError> {
        let [a, b, c, d, _, _, _, _, sector @ ..] = *header;
        let sector = u64::from_le_bytes(sector);
        let data_in = chain.writable.len() - 1;
        let data_out = chain.readable.len().saturating_sub(HEADER_BYTES as u64);
        Ok(match u32::from_le_bytes([a, b, c, d]) {
            VIRTIO_BLK_T_IN => match self.bytes_within(sector, data_in) {
                Some(bytes) => {
                    Ok(DiskRequest::Read { sector, bytes: u32::try_from(bytes).unwrap_or(0) })
                }
                None => Err(Status::Failed),
            },
            VIRTIO_BLK_T_OUT => match self.bytes_within(sector, data_out) {
                Some(bytes) if !self.shape.read_only => {
                    let ring = &self.queue.ring;
                    let data = ring.read_vec(&chain.readable, HEADER_BYTES as u64, bytes)?;
                    Ok(DiskRequest::Write { sector, data })
                }
                _ => Err(Status::Failed),
            },
            VIRTIO_BLK_T_FLUSH => Ok(DiskRequest::Flush),
            VIRTIO_BLK_T_GET_ID => {
                if data_in < DISK_ID_BYTES as u64 {
                    Err(Status::Failed)
                } else {
                    self.queue.ring.write(&chain.writable, 0, &self.shape.id)?;
                    Err(Status::Ok)
                }
            }
            kind @ (VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES) => {
                if data_out == RANGE_BYTES as u64 {
                    let mut range = [0; RANGE_BYTES];
                    self.queue.ring.read(&chain.readable, HEADER_BYTES as u64, &mut range)?;
                    self.range_request(kind, range)
                } else {
                    Err(Status::Failed)
                }
            }
            _ => Err(Status::Unsupported),
        })
    }

    /// Discard or zeroes (5.2.6.2).
    fn range_request(&self, kind: u32, range: [u8; RANGE_BYTES]) -> Result<DiskRequest, Status> {
        const UNMAP: u32 = VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP;
        let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, flags @ ..] = range;
        let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        let count = u32::from_le_bytes([n0, n1, n2, n3]);
        let flags = u32::from_le_bytes(flags);
        let (zeroes, sectors) = (kind == VIRTIO_BLK_T_WRITE_ZEROES, u64::from(count));
        if !zeroes && !self.shape.discard {
            return Err(Status::Unsupported);
        }
        if flags & !UNMAP != 0 || !zeroes && flags != 0 {
            return Err(Status::Unsupported);
        }
        let inside = sector.checked_add(sectors).is_some_and(|end| end <= self.shape.sectors);
        if self.shape.read_only || count == 0 || count > RANGE_SECTORS_MAX || !inside {
            return Err(Status::Failed);
        }
        Ok(if zeroes {
            DiskRequest::WriteZeroes { sector, sectors, unmap: flags & UNMAP != 0 }
        } else {
            DiskRequest::Discard { sector, sectors }
        })
    }

    /// The length of a transfer, if it is one of whole sectors of this disk and not too long.
    fn bytes_within(&self, sector: u64, bytes: u64) -> Option<usize> {
        let whole = bytes > 0 && bytes.is_multiple_of(SECTOR_BYTES);
        let end = sector.checked_add(bytes / SECTOR_BYTES)?;
        let bytes = usize::try_from(bytes).ok()?;
        (whole && end <= self.shape.sectors && bytes <= REQUEST_BYTES_MAX).then_some(bytes)
    }

    fn submit(&mut self, chain: Chain, request: DiskRequest) {
        // There is one: the caller has looked.
        let Some(place) = self.free.pop() else { return };
        let (bytes, read, changes) = match &request {
            DiskRequest::Read { bytes, .. } => {
                let bytes = usize::try_from(*bytes).unwrap_or(0);
                (bytes, bytes, false)
            }
            DiskRequest::Write { data, .. } => (data.len(), 0, true),
            DiskRequest::Flush => (0, 0, false),
            DiskRequest::Discard { .. } | DiskRequest::WriteZeroes { .. } => (0, 0, true),
        };
        self.bytes += bytes;
        let Chain { head, writable, .. } = chain;
        let is_made_stable = changes && self.writes_through;
        self.in_flight[place] = Some(InFlight { head, writable, bytes, read, is_made_stable });
        let answering = self.answering(place);
        self.begun.0.push((request, Box::new(move |reply| answering.with(reply))));
    }

    fn answering(&self, place: usize) -> Answering {
        Answering {
            place,
            answers: self.answering.clone(),
            doorbell: self.doorbell.clone(),
            reply: DiskReply::Failed,
        }
    }

    /// Takes the request of an answer off the list.
    fn take(&mut self, place: usize) -> Option<InFlight> {
        let request = self.in_flight.get_mut(place)?.take()?;
        self.bytes -= request.bytes;
        self.free.push(place);
        Some(request)
    }

    /// Whether there was any.
    fn finish_answered(&mut self) -> Result<bool, RingError> {
        let mut any = false;
        while let Ok((place, reply)) = self.answers.try_recv() {
            self.finish(place, reply)?;
            any = true;
        }
        Ok(any)
    }

    /// Gives an answered request back.
    fn finish(&mut self, place: usize, reply: DiskReply) -> Result<(), RingError> {
        let written = self.in_flight.get_mut(place).and_then(Option::as_mut);
        let written = written.filter(|_| matches!(reply, DiskReply::Done(_)));
        if written.is_some_and(|it| std::mem::take(&mut it.is_made_stable)) {
            let answering = self.answering(place);
            let done: DiskDone = Box::new(move |reply| answering.with(reply));
            self.disk.submit_all(vec![(DiskRequest::Flush, done)]);
            return Ok(());
        }
        let Some(request) = self.take(place) else { return Ok(()) };
        let (data, status) = match reply {
            DiskReply::Done(data) if data.len() == request.read => (data, Status::Ok),
            DiskReply::Done(_) | DiskReply::Failed => (Vec::new(), Status::Failed),
            DiskReply::Unsupported => (Vec::new(), Status::Unsupported),
        };
        self.end(request.head, &request.writable, &data, status)
    }

    /// The next answer, if one comes by the deadline or is there.
    fn answer(&self, deadline: Instant) -> Option<Answer> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.answers.recv_timeout(left).ok()
    }

    fn idle(&self) -> bool {
        self.free.len() == self.in_flight.len()
    }

    /// Writes data and status and gives the request back.
    fn end(
        &mut self,
        head: u16,
        writable: &Buffers,
        data: &[u8],
        status: Status,
    ) -> Result<(), RingError> {
        self.queue.ring.write(writable, 0, data)?;
        let last = writable.len() - 1;
        self.queue.ring.write(writable, last, &[status.code()])?;
        // The length counts from the first buffer (2.7.8.2): after a failure nothing before the
        // status was written.
        let whole = status == Status::Ok || last == 0;
        self.queue.ring.push(head, if whole { last + 1 } else { 0 })
    }
}

impl QueueWorker for DiskQueue {
    fn service(&mut self) -> bool {
        if self.queue.broken() {
            return false;
        }
        let round = self.round();
        self.queue.settle(round)
    }

    fn rest(&mut self, deadline: Instant) -> bool {
        while !self.idle() {
            let Some((place, reply)) = self.answer(deadline) else { return false };
            if self.queue.broken() {
                drop(self.take(place));
            } else if let Err(cause) = self.finish(place, reply) {
                self.queue.settle(Err(cause));
            }
        }
        if !self.queue.broken() {
            let told = self.queue.tell();
            self.queue.settle(told.map(|()| false));
        }
        true
    }

    fn save(&self) -> WorkerState {
        WorkerState::Queue(self.queue.save())
    }

    fn restore(&mut self, state: WorkerState) -> Result<(), Invalid> {
        self.queue.restore(state.queue()?)
    }

    fn stop(&mut self, deadline: Instant) -> bool {
        while !self.idle() {
            match self.answer(deadline) {
                Some((place, _)) => drop(self.take(place)),
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
