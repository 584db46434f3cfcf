//! A disk that another slice has.

use super::counters::add;
use super::in_flight::InFlight;
use super::outbound::{Letters, Outbound, message_bytes};
use super::role::{Origin, Role};
use super::{ExchangeError, Limits};
use crate::back_end::{Disk, DiskDone, DiskReply, DiskRequest, DiskShape};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use wire::device::{DeviceFrame, DiskAsk, DiskStatus, Part};
use wire::{DeviceId, SliceId};

/// A request that has no answer yet.
struct Waiting {
    done: DiskDone,
    /// Length that the answer must have if it is done.
    answer: usize,
}

/// The disk as its front ends on this slice see it. What its shape forbids is answered here.
pub struct RemoteDisk {
    device: DeviceId,
    owner: SliceId,
    shape: DiskShape,
    outbound: Arc<Outbound>,
    /// Held for moments only: the engine's thread takes it.
    in_flight: Mutex<InFlight<Waiting>>,
    idle: Condvar,
}

impl RemoteDisk {
    pub(super) fn new(
        device: DeviceId,
        owner: SliceId,
        shape: DiskShape,
        limits: Limits,
        outbound: Arc<Outbound>,
    ) -> Self {
        let in_flight = Mutex::new(InFlight::new(limits));
        Self { device, owner, shape, outbound, in_flight, idle: Condvar::new() }
    }

    fn in_flight(&self) -> MutexGuard<'_, InFlight<Waiting>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request in, unless it is too much or its disk is lost.
    fn enter(&self, bytes: u64, waiting: Waiting) -> Result<u64, DiskDone> {
        self.in_flight().enter(bytes, waiting).map_err(|refused| {
            add(&self.outbound.counters.refused, u64::from(refused.full));
            refused.what.done
        })
    }

    fn leave(&self, tag: u64) -> Option<Waiting> {
        self.in_flight().leave(tag)
    }

    /// So many who waited have been answered.
    fn told(&self, count: usize) {
        if self.in_flight().told(count) {
            self.idle.notify_all();
        }
    }

    /// Puts the frames of a request behind others.
    fn write(&self, letters: &mut Letters, tag: u64, request: DiskRequest) {
        let part = Part { device: self.device, tag, ..Part::default() };
        let (ask, total, data) = match request {
            DiskRequest::Read { sector, bytes } => (DiskAsk::Read { sector }, bytes, Vec::new()),
            DiskRequest::Write { sector, data } => {
                (DiskAsk::Write { sector }, message_bytes(&data), data)
            }
            DiskRequest::Flush => (DiskAsk::Flush, 0, Vec::new()),
            DiskRequest::Discard { sector, sectors } => {
                (DiskAsk::Discard { sector, sectors }, 0, Vec::new())
            }
            DiskRequest::WriteZeroes { sector, sectors, unmap } => {
                (DiskAsk::WriteZeroes { sector, sectors, unmap }, 0, Vec::new())
            }
        };
        add(&self.outbound.counters.disk_requests, 1);
        self.outbound.write(letters, &data, |offset, bytes| DeviceFrame::DiskRequest {
            part: Part { offset, total, ..part },
            ask,
            bytes,
        });
    }

    /// Counts a request in and writes its frames, or ends it here. The tag of one under way.
    fn begin(&self, letters: &mut Letters, request: DiskRequest, done: DiskDone) -> Option<u64> {
        if let Some(refusal) = self.shape.refusal(&request) {
            done(refusal);
            return None;
        }
        let (bytes, answer) = match &request {
            DiskRequest::Read { bytes, .. } => (u64::from(*bytes), *bytes as usize),
            DiskRequest::Write { data, .. } => (data.len() as u64, 0),
            _ => (0, 0),
        };
        match self.enter(bytes, Waiting { done, answer }) {
            Ok(tag) => {
                self.write(letters, tag, request);
                Some(tag)
            }
            Err(done) => {
                done(DiskReply::Failed);
                None
            }
        }
    }

    /// Takes the answer to a request.
    fn reply(&self, tag: u64, status: DiskStatus, data: Vec<u8>) -> Result<(), ExchangeError> {
        let wrong = ExchangeError::Answer { device: self.device, from: self.owner };
        let waiting = self.leave(tag).ok_or(wrong)?;
        let (reply, result) = match status {
            DiskStatus::Done if data.len() == waiting.answer => (DiskReply::Done(data), Ok(())),
            DiskStatus::Done => (DiskReply::Failed, Err(wrong)),
            DiskStatus::Failed => (DiskReply::Failed, Ok(())),
            DiskStatus::Unsupported => (DiskReply::Unsupported, Ok(())),
        };
        (waiting.done)(reply);
        self.told(1);
        result
    }

    fn fail(&self, waiting: impl Iterator<Item = Waiting>) {
        let mut count = 0;
        for waiting in waiting {
            (waiting.done)(DiskReply::Failed);
            count += 1;
        }
        self.told(count);
    }

    /// The slice with the disk is gone: all that waits fails, and all that comes.
    fn lose(&self) {
        // What is done then runs without the lock.
        let waiting = self.in_flight().lose();
        self.fail(waiting);
    }
}

impl Role for RemoteDisk {
    fn take(&self, frame: DeviceFrame<'_>, peer: &Origin<'_>) -> Result<(), ExchangeError> {
        let DeviceFrame::DiskReply { part, status, bytes } = frame else {
            return Err(peer.stray(&frame));
        };
        if peer.slice != self.owner {
            return Err(peer.stray(&frame));
        }
        let head = |part| DeviceFrame::DiskReply { part, status, bytes: &[] };
        let data = match bytes {
            [] => Some(Vec::new()),
            bytes => peer.message(head, part, bytes)?,
        };
        data.map_or(Ok(()), |data| self.reply(part.tag, status, data))
    }

    /// Waits until everything is answered.
    fn wait_until_idle(&self, deadline: Instant) -> usize {
        let left = deadline.saturating_duration_since(Instant::now());
        let busy = |in_flight: &mut InFlight<Waiting>| in_flight.count() > 0;
        let waited = self.idle.wait_timeout_while(self.in_flight(), left, busy);
        waited.unwrap_or_else(PoisonError::into_inner).0.count()
    }

    fn lost(&self, slice: SliceId) {
        if slice == self.owner {
            self.lose();
        }
    }
}

impl fmt::Debug for RemoteDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, owner) = (self.device, self.owner);
        f.debug_struct("RemoteDisk")
            .field("device", &device)
            .field("owner", &owner)
            .finish_non_exhaustive()
    }
}

impl Disk for RemoteDisk {
    fn shape(&self) -> DiskShape {
        self.shape.clone()
    }

    fn submit(&self, request: DiskRequest, done: DiskDone) {
        self.submit_all(vec![(request, done)]);
    }

    fn submit_all(&self, requests: Vec<(DiskRequest, DiskDone)>) {
        let mut letters = Letters::default();
        let mut tags = Vec::with_capacity(requests.len());
        for (request, done) in requests {
            tags.extend(self.begin(&mut letters, request, done));
        }
        if letters.is_empty() || self.outbound.post(self.owner, letters) {
            return;
        }
        self.fail(tags.into_iter().filter_map(|tag| self.leave(tag)));
    }
}
