//! The network of this slice, for front ends here and on other slices.

use super::counters::add;
use super::nic_hub::NicHub;
use super::notices::Notices;
use super::outbound::{Load, Outbound};
use super::role::{Origin, Role};
use super::{ExchangeError, Limits, ServeError};
use crate::back_end::{Nic, NicShape, PACKET_BYTES_MAX, PacketSink, PacketsDone};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;
use wire::device::{Agreed, DeviceFrame, Part, count_packets, split_packets};
use wire::{DeviceId, SliceId};

enum Job {
    /// A list of packets, which has been checked.
    Packets { from: SliceId, part: Part, list: Vec<u8> },
    /// Look at what this slice wants.
    Wants(SliceId),
}

/// What a slice wants and the server's thread has not done yet. Only the latest counts, so that
/// nothing piles up however fast a guest resets its device.
#[derive(Debug, Default)]
struct Wants {
    connect: Option<(u32, Option<Agreed>)>,
    /// For each pair: connection, packets.
    allow: Vec<(u32, u32)>,
    /// The thread has been told.
    told: bool,
}

#[derive(Debug, Default)]
struct Peer {
    load: Load,
    /// Held for moments only: the engine's thread takes it.
    wants: Mutex<Wants>,
}

impl Peer {
    fn wants(&self) -> MutexGuard<'_, Wants> {
        self.wants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Peers = Arc<BTreeMap<SliceId, Peer>>;

/// Takes packets and wishes of other slices and has its thread carry them to the network. It is
/// itself the network for the front ends of its own slice.
pub struct NicServer {
    device: DeviceId,
    local: SliceId,
    shape: NicShape,
    limits: Limits,
    hub: Arc<NicHub>,
    /// The connection of this slice's own front ends.
    connection: AtomicU32,
    peers: Peers,
    /// Nothing once the server ends.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl NicServer {
    pub(super) fn new(
        device: DeviceId,
        local: SliceId,
        nic: Arc<dyn Nic>,
        peers: &[SliceId],
        outbound: Arc<Outbound>,
    ) -> Result<Self, ServeError> {
        let shape = nic.shape();
        let limits = Limits::of_queues(shape.pairs);
        let peers: BTreeMap<_, _> = peers.iter().map(|peer| (*peer, Peer::default())).collect();
        let peers = Arc::new(peers);
        let hub = Arc::new(NicHub::new(device, nic, Arc::clone(&outbound)));
        // The loads bound it, and one place for the wishes of each slice.
        let (jobs, queue) = unbounded();
        let notices = Arc::new(Notices::new(device, Arc::clone(&outbound)));
        let (own, all) = (Arc::clone(&hub), Arc::clone(&peers));
        let server = Server { hub: own, peers: all, outbound, notices };
        let thread = thread::Builder::new()
            .name(format!("{device}"))
            .spawn(move || server.serve(&queue))
            .map_err(|source| ServeError { device, source })?;
        let (connection, jobs) = (AtomicU32::new(0), Some(jobs));
        let thread = Some(thread);
        Ok(Self { device, local, shape, limits, hub, connection, peers, jobs, thread })
    }

    fn peer(&self, from: SliceId) -> Result<&Peer, ExchangeError> {
        self.peers.get(&from).ok_or(ExchangeError::Stranger(from))
    }

    fn check_queue(&self, from: SliceId, queue: u16) -> Result<(), ExchangeError> {
        let device = self.device;
        let known = queue < self.shape.pairs;
        if known { Ok(()) } else { Err(ExchangeError::Queue { device, from, queue }) }
    }

    fn push(&self, from: SliceId, job: Job) -> Result<(), ExchangeError> {
        let overrun = ExchangeError::Overrun { device: self.device, from };
        self.jobs.as_ref().ok_or(overrun)?.send(job).map_err(|_| overrun)
    }

    /// A list of packets whose bytes have all come.
    fn packets(&self, from: SliceId, part: Part, list: Vec<u8>) -> Result<(), ExchangeError> {
        self.check_queue(from, part.queue)?;
        count_packets(&list, PACKET_BYTES_MAX)?;
        let overrun = ExchangeError::Overrun { device: self.device, from };
        self.peer(from)?.load.enter(self.limits, list.len() as u64, overrun)?;
        self.push(from, Job::Packets { from, part, list })
    }

    /// A slice's front ends connect, or leave.
    fn want_connect(
        &self,
        from: SliceId,
        connection: u32,
        agreed: Option<Agreed>,
    ) -> Result<(), ExchangeError> {
        if let Some(last) = agreed.and_then(|agreed| agreed.pairs.checked_sub(1)) {
            self.check_queue(from, last)?;
        }
        let mut wants = self.peer(from)?.wants();
        wants.connect = Some((connection, agreed));
        let told = std::mem::replace(&mut wants.told, true);
        drop(wants);
        if told { Ok(()) } else { self.push(from, Job::Wants(from)) }
    }

    /// A slice's front end has room for packets of a pair.
    fn want_packets(
        &self,
        from: SliceId,
        connection: u32,
        queue: u16,
        packets: u32,
    ) -> Result<(), ExchangeError> {
        self.check_queue(from, queue)?;
        let mut wants = self.peer(from)?.wants();
        wants.allow.resize(usize::from(self.shape.pairs), (0, 0));
        let slot = &mut wants.allow[usize::from(queue)];
        let before = if slot.0 == connection { slot.1 } else { 0 };
        *slot = (connection, before.saturating_add(packets));
        let told = std::mem::replace(&mut wants.told, true);
        drop(wants);
        if told { Ok(()) } else { self.push(from, Job::Wants(from)) }
    }
}

impl Role for NicServer {
    fn take(&self, frame: DeviceFrame<'_>, peer: &Origin<'_>) -> Result<(), ExchangeError> {
        match frame {
            DeviceFrame::PacketsOut { part, bytes } => {
                let head = |part| DeviceFrame::PacketsOut { part, bytes: &[] };
                let list = peer.message(head, part, bytes)?;
                list.map_or(Ok(()), |list| self.packets(peer.slice, part, list))
            }
            DeviceFrame::Allow { queue, connection, packets, .. } => {
                self.want_packets(peer.slice, connection, queue, packets)
            }
            DeviceFrame::Connect { connection, agreed, .. } => {
                self.want_connect(peer.slice, connection, agreed)
            }
            _ => Err(peer.stray(&frame)),
        }
    }

    /// Waits until the network has taken all packets of others; counts messages.
    fn wait_until_idle(&self, deadline: Instant) -> usize {
        self.peers.values().map(|peer| peer.load.wait_for_none(deadline)).sum()
    }

    /// What it agreed on counts no more: the network is what the drivers want that are left.
    fn lost(&self, slice: SliceId) {
        // One that is no peer has never connected.
        let _ = self.want_connect(slice, 0, None);
    }
}

impl Nic for NicServer {
    fn shape(&self) -> NicShape {
        self.shape.clone()
    }

    fn connect(&self, features: u64, pairs: u16, sink: Option<Arc<dyn PacketSink>>) {
        let connection = self.connection.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        let agreed = sink.is_some().then_some(Agreed { features, pairs });
        self.hub.connect(self.local, connection, agreed, sink);
    }

    fn transmit(&self, pair: u16, packets: Vec<Vec<u8>>, done: PacketsDone) {
        self.hub.nic().transmit(pair, packets, done);
    }

    fn allow(&self, pair: u16, packets: u32) {
        self.hub.allow(self.local, self.connection.load(Ordering::Acquire), pair, packets);
    }
}

impl Drop for NicServer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by the panic hook; nothing is left to undo.
            let _ = thread.join();
        }
        // The network and its sink, the hub, hold each other.
        self.hub.nic().connect(0, 0, None);
    }
}

impl fmt::Debug for NicServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NicServer").field("device", &self.device).finish_non_exhaustive()
    }
}

/// What the server's thread has.
struct Server {
    hub: Arc<NicHub>,
    peers: Peers,
    outbound: Arc<Outbound>,
    notices: Arc<Notices>,
}

impl Server {
    fn serve(&self, jobs: &Receiver<Job>) {
        loop {
            let job = match self.notices.due() {
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(time) => jobs.recv_timeout(time),
            };
            match job {
                Ok(Job::Packets { from, part, list }) => self.transmit(from, part, &list),
                Ok(Job::Wants(from)) => self.fulfil(from),
                Err(RecvTimeoutError::Timeout) => self.notices.send_all(),
                Err(RecvTimeoutError::Disconnected) => return self.notices.send_all(),
            }
        }
    }

    fn transmit(&self, from: SliceId, part: Part, list: &[u8]) {
        add(&self.outbound.counters.batches_served, 1);
        let packets = split_packets(list, PACKET_BYTES_MAX).unwrap_or_default();
        let (bytes, peers) = (list.len() as u64, Arc::clone(&self.peers));
        let notices = Arc::clone(&self.notices);
        notices.expect();
        let done = move || {
            if let Some(peer) = peers.get(&from) {
                peer.load.leave(bytes);
            }
            notices.left(from, part, bytes);
        };
        self.hub.nic().transmit(part.queue, packets, Box::new(done));
    }

    fn fulfil(&self, from: SliceId) {
        let Some(peer) = self.peers.get(&from) else { return };
        let wants = std::mem::take(&mut *peer.wants());
        if let Some((connection, agreed)) = wants.connect {
            self.hub.connect(from, connection, agreed, None);
        }
        for (pair, (connection, packets)) in (0_u16..).zip(wants.allow) {
            if packets > 0 {
                self.hub.allow(from, connection, pair, packets);
            }
        }
    }
}
