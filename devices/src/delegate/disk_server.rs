//! The disk of this slice, for front ends on other slices.

use super::counters::add;
use super::outbound::{Load, Outbound, message_bytes};
use super::role::{Origin, Role};
use super::{ExchangeError, Limits, ServeError};
use crate::back_end::{Disk, DiskReply, DiskRequest, DiskShape};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;
use wire::device::{DeviceFrame, DiskAsk, DiskStatus, Part};
use wire::{DeviceId, SliceId};

struct Job {
    from: SliceId,
    tag: u64,
    request: DiskRequest,
    load: Arc<Load>,
}

/// Takes requests of other slices, checks them once more, and has its thread start them at the disk.
pub struct DiskServer {
    device: DeviceId,
    limits: Limits,
    loads: BTreeMap<SliceId, Arc<Load>>,
    /// Nothing once the server ends.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl DiskServer {
    pub(super) fn new(
        device: DeviceId,
        disk: Arc<dyn Disk>,
        limits: Limits,
        peers: &[SliceId],
        outbound: Arc<Outbound>,
    ) -> Result<Self, ServeError> {
        let loads: BTreeMap<_, _> = peers.iter().map(|peer| (*peer, Arc::default())).collect();
        // The loads bound it.
        let (jobs, queue) = unbounded();
        let run = move || serve(device, &*disk, &queue, &outbound);
        let thread = thread::Builder::new()
            .name(format!("{device}"))
            .spawn(run)
            .map_err(|source| ServeError { device, source })?;
        Ok(Self { device, limits, loads, jobs: Some(jobs), thread: Some(thread) })
    }

    /// A request whose bytes have all come.
    fn request(
        &self,
        from: SliceId,
        part: Part,
        ask: DiskAsk,
        data: Vec<u8>,
    ) -> Result<(), ExchangeError> {
        let device = self.device;
        let overrun = ExchangeError::Overrun { device, from };
        let load = self.loads.get(&from).ok_or(ExchangeError::Stranger(from))?;
        let request = match ask {
            DiskAsk::Read { sector } => DiskRequest::Read { sector, bytes: part.total },
            DiskAsk::Write { sector } => DiskRequest::Write { sector, data },
            DiskAsk::Flush => DiskRequest::Flush,
            DiskAsk::Discard { sector, sectors } => DiskRequest::Discard { sector, sectors },
            DiskAsk::WriteZeroes { sector, sectors, unmap } => {
                DiskRequest::WriteZeroes { sector, sectors, unmap }
            }
        };
        load.enter(self.limits, u64::from(part.total), overrun)?;
        let job = Job { from, tag: part.tag, request, load: Arc::clone(load) };
        let jobs = self.jobs.as_ref().ok_or(overrun)?;
        jobs.send(job).map_err(|_| overrun)
    }
}

impl Role for DiskServer {
    fn take(&self, frame: DeviceFrame<'_>, peer: &Origin<'_>) -> Result<(), ExchangeError> {
        let DeviceFrame::DiskRequest { part, ask, bytes } = frame else {
            return Err(peer.stray(&frame));
        };
        let head = |part| DeviceFrame::DiskRequest { part, ask, bytes: &[] };
        let data = match bytes {
            [] => Some(Vec::new()),
            bytes => peer.message(head, part, bytes)?,
        };
        data.map_or(Ok(()), |data| self.request(peer.slice, part, ask, data))
    }

    /// Waits until the disk has answered all requests of others.
    fn wait_until_idle(&self, deadline: Instant) -> usize {
        self.loads.values().map(|load| load.wait_for_none(deadline)).sum()
    }
}

impl Drop for DiskServer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by the panic hook; nothing is left to undo.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for DiskServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskServer").field("device", &self.device).finish_non_exhaustive()
    }
}

fn serve(device: DeviceId, disk: &dyn Disk, jobs: &Receiver<Job>, outbound: &Arc<Outbound>) {
    let shape = disk.shape();
    for job in jobs {
        start(device, disk, &shape, job, outbound);
    }
}

fn start(device: DeviceId, disk: &dyn Disk, shape: &DiskShape, job: Job, outbound: &Arc<Outbound>) {
    let Job { from, tag, request, load } = job;
    let expected = match &request {
        DiskRequest::Read { bytes, .. } => *bytes as usize,
        _ => 0,
    };
    let bytes = match &request {
        DiskRequest::Write { data, .. } => data.len() as u64,
        _ => expected as u64,
    };
    let outbound = Arc::clone(outbound);
    add(&outbound.counters.disk_served, 1);
    let refusal = shape.refusal(&request);
    let answer = move |reply: DiskReply| {
        load.leave(bytes);
        answer(&outbound, from, device, tag, expected, reply);
    };
    match refusal {
        Some(refusal) => answer(refusal),
        None => disk.submit(request, Box::new(answer)),
    }
}

/// Sends the reply. When the asker is lost nobody waits for it.
fn answer(
    outbound: &Outbound,
    to: SliceId,
    device: DeviceId,
    tag: u64,
    expected: usize,
    reply: DiskReply,
) {
    let (status, data) = match reply {
        DiskReply::Done(data) if data.len() == expected => (DiskStatus::Done, data),
        // A disk that reads too little or too much is broken; its bytes are not the guest's.
        DiskReply::Done(_) | DiskReply::Failed => (DiskStatus::Failed, Vec::new()),
        DiskReply::Unsupported => (DiskStatus::Unsupported, Vec::new()),
    };
    let total = message_bytes(&data);
    let part = Part { device, tag, total, ..Part::default() };
    outbound.message(to, &data, |offset, bytes| DeviceFrame::DiskReply {
        part: Part { offset, ..part },
        status,
        bytes,
    });
}
