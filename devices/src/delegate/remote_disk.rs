//! A disk that another slice has.

use super::counters::add;
use super::outbound::{Outbound, message_bytes};
use super::{ExchangeError, Limits};
use crate::back_end::{Disk, DiskDone, DiskReply, DiskRequest, DiskShape};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::device::{DeviceFrame, DiskAsk, DiskStatus, Part};
use wire::{DeviceId, SliceId};

/// A request that has no answer yet.
struct Waiting {
    done: DiskDone,
    /// Bytes that count against the limits.
    bytes: u64,
    /// Length that the answer must have if it is done.
    answer: usize,
}

#[derive(Default)]
struct State {
    lost: bool,
    last_tag: u64,
    bytes: u64,
    waiting: HashMap<u64, Waiting>,
}

/// The disk as its front ends on this slice see it. What its shape forbids is answered here.
pub struct RemoteDisk {
    device: DeviceId,
    owner: SliceId,
    shape: DiskShape,
    limits: Limits,
    outbound: Arc<Outbound>,
    /// Held for moments only: the engine's thread takes it.
    state: Mutex<State>,
}

impl RemoteDisk {
    pub(super) fn new(
        device: DeviceId,
        owner: SliceId,
        shape: DiskShape,
        limits: Limits,
        outbound: Arc<Outbound>,
    ) -> Self {
        Self { device, owner, shape, limits, outbound, state: Mutex::default() }
    }

    pub(super) fn owner(&self) -> SliceId {
        self.owner
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request in, unless it is too much or its disk is lost.
    fn enter(&self, waiting: Waiting) -> Result<u64, DiskDone> {
        let mut state = self.state();
        let full = state.waiting.len() >= self.limits.requests as usize
            || state.bytes + waiting.bytes > self.limits.bytes;
        if state.lost || full {
            add(&self.outbound.counters.refused, u64::from(full));
            return Err(waiting.done);
        }
        state.last_tag += 1;
        state.bytes += waiting.bytes;
        let tag = state.last_tag;
        state.waiting.insert(tag, waiting);
        Ok(tag)
    }

    fn leave(&self, tag: u64) -> Option<Waiting> {
        let mut state = self.state();
        let waiting = state.waiting.remove(&tag)?;
        state.bytes -= waiting.bytes;
        Some(waiting)
    }

    fn send(&self, tag: u64, request: DiskRequest) -> bool {
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
        self.outbound.message(self.owner, &data, |offset, bytes| DeviceFrame::DiskRequest {
            part: Part { offset, total, ..part },
            ask,
            bytes,
        })
    }

    /// Takes the answer to a request.
    pub(super) fn reply(
        &self,
        tag: u64,
        status: DiskStatus,
        data: Vec<u8>,
    ) -> Result<(), ExchangeError> {
        let wrong = ExchangeError::Answer { device: self.device, from: self.owner };
        let waiting = self.leave(tag).ok_or(wrong)?;
        let (reply, result) = match status {
            DiskStatus::Done if data.len() == waiting.answer => (DiskReply::Done(data), Ok(())),
            DiskStatus::Done => (DiskReply::Failed, Err(wrong)),
            DiskStatus::Failed => (DiskReply::Failed, Ok(())),
            DiskStatus::Unsupported => (DiskReply::Unsupported, Ok(())),
        };
        (waiting.done)(reply);
        result
    }

    /// The slice with the disk is gone: all that waits fails, and all that comes.
    pub(super) fn lose(&self) {
        let waiting = {
            let mut state = self.state();
            state.lost = true;
            state.bytes = 0;
            std::mem::take(&mut state.waiting)
        };
        for waiting in waiting.into_values() {
            (waiting.done)(DiskReply::Failed);
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
        if let Some(refusal) = self.shape.refusal(&request) {
            return done(refusal);
        }
        let (bytes, answer) = match &request {
            DiskRequest::Read { bytes, .. } => (u64::from(*bytes), *bytes as usize),
            DiskRequest::Write { data, .. } => (data.len() as u64, 0),
            _ => (0, 0),
        };
        let tag = match self.enter(Waiting { done, bytes, answer }) {
            Ok(tag) => tag,
            Err(done) => return done(DiskReply::Failed),
        };
        if !self.send(tag, request)
            && let Some(waiting) = self.leave(tag)
        {
            (waiting.done)(DiskReply::Failed);
        }
    }
}
