//! A network that another slice has.

use super::counters::add;
use super::in_flight::InFlight;
use super::outbound::{Outbound, fitting, message_bytes};
use super::role::{Origin, Role};
use super::{ExchangeError, Limits};
use crate::back_end::{Nic, NicShape, PACKET_BYTES_MAX, PacketSink, PacketsDone};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;
use wire::device::{Agreed, DeviceFrame, Part, join_packets, split_packets};
use wire::{DeviceId, SliceId};

/// Runs when the last message of a batch has left, or is dropped with it.
struct Batch(Mutex<Option<PacketsDone>>);

impl Drop for Batch {
    fn drop(&mut self) {
        let done = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(done) = done {
            done();
        }
    }
}

/// Connections between two moves of the real part, as a power of two.
const GENERATION_SHIFT: u32 = 16;

struct State {
    connection: u32,
    /// The batch of each message under way.
    in_flight: InFlight<Arc<Batch>>,
    /// For each pair, packets that this connection still allows.
    allowed: Vec<u64>,
}

/// The network as its front ends on this slice see it.
pub struct RemoteNic {
    device: DeviceId,
    owner: SliceId,
    shape: NicShape,
    outbound: Arc<Outbound>,
    /// Held for moments only: the engine's thread takes it.
    state: Mutex<State>,
    idle: Condvar,
    /// Read while a packet is handed over, written for a moment to change the sink.
    sink: RwLock<Option<Arc<dyn PacketSink>>>,
}

impl RemoteNic {
    pub(super) fn new(
        device: DeviceId,
        owner: SliceId,
        shape: NicShape,
        outbound: Arc<Outbound>,
        generation: u32,
    ) -> Self {
        let in_flight = InFlight::new(Limits::of_queues(shape.pairs));
        // No number of a connection comes again, wherever the real part has been.
        let connection = generation.wrapping_shl(GENERATION_SHIFT);
        let state = Mutex::new(State { connection, in_flight, allowed: Vec::new() });
        let (idle, sink) = (Condvar::new(), RwLock::default());
        Self { device, owner, shape, outbound, state, idle, sink }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one list of packets, or drops it when too much is under way.
    fn send(&self, queue: u16, packets: &[Vec<u8>], batch: &Arc<Batch>) {
        if packets.is_empty() {
            return;
        }
        let list = join_packets(packets);
        let bytes = list.len() as u64;
        let entered = self.state().in_flight.enter(bytes, Arc::clone(batch));
        let Ok(tag) = entered else {
            add(&self.outbound.counters.dropped, packets.len() as u64);
            return;
        };
        add(&self.outbound.counters.batches, 1);
        let part = Part { device: self.device, queue, tag, offset: 0, total: message_bytes(&list) };
        let sent = self.outbound.message(self.owner, &list, |offset, bytes| {
            DeviceFrame::PacketsOut { part: Part { offset, ..part }, bytes }
        });
        if !sent {
            add(&self.outbound.counters.dropped, packets.len() as u64);
            self.leave(tag);
        }
    }

    /// Ends a message. False when there is none with this tag.
    fn leave(&self, tag: u64) -> bool {
        let batch = self.state().in_flight.leave(tag);
        let known = batch.is_some();
        // Without the lock, since that may run the end of the batch.
        drop(batch);
        self.told(usize::from(known));
        known
    }

    /// So many messages have ended.
    fn told(&self, count: usize) {
        if self.state().in_flight.told(count) {
            self.idle.notify_all();
        }
    }

    /// Packets have left.
    fn done(&self, tag: u64) -> Result<(), ExchangeError> {
        let wrong = ExchangeError::Answer { device: self.device, from: self.owner };
        if self.leave(tag) { Ok(()) } else { Err(wrong) }
    }

    /// Packets for the guest, in order. Those of an older connection are dropped.
    fn packets(&self, queue: u16, connection: u32, list: &[u8]) -> Result<(), ExchangeError> {
        let (device, from) = (self.device, self.owner);
        let packets = split_packets(list, PACKET_BYTES_MAX)?;
        let count = packets.len() as u64;
        // The sink changes only together with the connection, so that the two fit.
        let sink = self.sink.read().unwrap_or_else(PoisonError::into_inner);
        {
            let mut state = self.state();
            if state.connection != connection {
                add(&self.outbound.counters.dropped, count);
                return Ok(());
            }
            let allowed = state.allowed.get_mut(usize::from(queue));
            let allowed = allowed.ok_or(ExchangeError::Queue { device, from, queue })?;
            let left = allowed.checked_sub(count);
            *allowed = left.ok_or(ExchangeError::Overrun { device, from })?;
        }
        add(&self.outbound.counters.packets_in, count);
        if let Some(sink) = &*sink {
            sink.packets(queue, packets);
        }
        Ok(())
    }

    /// The slice with the network is gone: what is under way is dropped, as is all that comes.
    fn lose(&self) {
        let waiting: Vec<_> = self.state().in_flight.lose().collect();
        let count = waiting.len();
        drop(waiting);
        self.told(count);
    }
}

impl Role for RemoteNic {
    fn take(&self, frame: DeviceFrame<'_>, peer: &Origin<'_>) -> Result<(), ExchangeError> {
        match frame {
            DeviceFrame::PacketsIn { part, connection, bytes } if peer.slice == self.owner => {
                let head = |part| DeviceFrame::PacketsIn { part, connection, bytes: &[] };
                let list = peer.message(head, part, bytes)?;
                list.map_or(Ok(()), |list| self.packets(part.queue, connection, &list))
            }
            DeviceFrame::PacketsDone { tag, .. } if peer.slice == self.owner => self.done(tag),
            _ => Err(peer.stray(&frame)),
        }
    }

    /// Waits until all packets have left; counts messages.
    fn wait_until_idle(&self, deadline: Instant) -> usize {
        let left = deadline.saturating_duration_since(Instant::now());
        let busy = |state: &mut State| state.in_flight.count() > 0;
        let waited = self.idle.wait_timeout_while(self.state(), left, busy);
        waited.unwrap_or_else(PoisonError::into_inner).0.in_flight.count()
    }

    fn lost(&self, slice: SliceId) {
        if slice == self.owner {
            self.lose();
        }
    }
}

impl fmt::Debug for RemoteNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, owner) = (self.device, self.owner);
        f.debug_struct("RemoteNic")
            .field("device", &device)
            .field("owner", &owner)
            .finish_non_exhaustive()
    }
}

impl Nic for RemoteNic {
    fn shape(&self) -> NicShape {
        self.shape.clone()
    }

    fn connect(&self, features: u64, pairs: u16, sink: Option<Arc<dyn PacketSink>>) {
        let device = self.device;
        let pairs = pairs.clamp(1, self.shape.pairs.max(1));
        let agreed = sink.is_some().then_some(Agreed { features, pairs });
        let mut place = self.sink.write().unwrap_or_else(PoisonError::into_inner);
        *place = sink;
        let connection = {
            let mut state = self.state();
            state.connection = state.connection.wrapping_add(1);
            state.allowed.clear();
            state.allowed.resize(usize::from(self.shape.pairs), 0);
            state.connection
        };
        drop(place);
        // A lost owner is no news: nothing comes from there.
        self.outbound.frame(self.owner, &DeviceFrame::Connect { device, connection, agreed });
    }

    fn transmit(&self, pair: u16, packets: Vec<Vec<u8>>, done: PacketsDone) {
        let batch = Arc::new(Batch(Mutex::new(Some(done))));
        let good = |packet: &Vec<u8>| (1..=PACKET_BYTES_MAX).contains(&packet.len());
        if pair >= self.shape.pairs || !packets.iter().all(good) {
            add(&self.outbound.counters.dropped, packets.len() as u64);
            return;
        }
        let mut rest = &packets[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(fitting(rest));
            self.send(pair, now, &batch);
            rest = later;
        }
    }

    fn allow(&self, pair: u16, packets: u32) {
        let connection = {
            let mut state = self.state();
            let connection = state.connection;
            let Some(allowed) = state.allowed.get_mut(usize::from(pair)) else { return };
            *allowed += u64::from(packets);
            connection
        };
        if packets > 0 {
            let (device, queue) = (self.device, pair);
            let frame = DeviceFrame::Allow { device, queue, connection, packets };
            self.outbound.frame(self.owner, &frame);
        }
    }
}
