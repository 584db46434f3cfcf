//! A queue pair of a network device (5.1.6).

use super::super::ring::{Chain, Frame};
use super::super::worker::{PACKETS_MAX, ServedQueue};
use super::super::{Doorbell, QueueContext, QueueSetup, QueueWorker, RingError, WorkerState};
use super::in_flight::InFlight;
use super::{F_MRG_RXBUF, HEADER_BUFFERS, HEADER_BYTES, Inlet, NetDevice};
use crate::back_end::PACKET_BYTES_MAX;
use migrate::{Invalid, Saved};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

/// Packets that the back end may send ahead of the driver's buffers.
const RECEIVE_WINDOW: u32 = 128;
// A saved pair has room for all of them.
const _: () = assert!(RECEIVE_WINDOW as usize <= PACKETS_MAX);
/// Packets brought before the back end is told that it may send so many more: a message for each would
/// be as many again on the way back.
const ALLOWANCE: u32 = RECEIVE_WINDOW / 4;
/// Bytes of packets under way to the back end above which no more are begun. Little, so that packets
/// wait in the driver, which knows what to do about it.
const TRANSMIT_BYTES: usize = 1 << 20;
/// Packets of a batch.
const BATCH: usize = 64;

/// The worker of both queues of a pair.
#[derive(Debug)]
pub struct NetPair {
    pub(super) receive: ServedQueue,
    pub(super) transmit: ServedQueue,
    device: Arc<NetDevice>,
    doorbell: Doorbell,
    pair: u16,
    mergeable: bool,
    packets: Receiver<Vec<u8>>,
    /// Packets that wait for buffers before those that come, and the buffers that the first has. More than one only
    /// after a rest.
    pub(super) waiting: VecDeque<Vec<u8>>,
    held: Vec<Chain>,
    room: u64,
    /// Packets brought that have not been allowed again.
    brought: u32,
    /// The back end may send.
    open: bool,
    in_flight: Arc<InFlight>,
}

impl NetPair {
    /// A worker for these queues. `doorbell` is rung for both; the back end may send
    /// packets from its first service on.
    ///
    /// # Errors
    ///
    /// A queue cannot be: the device is broken ([`DeviceFaults`](crate::virtio::DeviceFaults)).
    pub fn new(
        context: &QueueContext,
        features: u64,
        (receive, transmit): (&QueueSetup, &QueueSetup),
        (device, pair): (Arc<NetDevice>, u16),
        doorbell: Doorbell,
    ) -> Result<Self, RingError> {
        let receive = ServedQueue::new(context, features, receive, Frame::default())?;
        let transmit = ServedQueue::new(context, features, transmit, Frame::default())?;
        let window = usize::try_from(RECEIVE_WINDOW).unwrap_or(0);
        let (inlet, packets) = sync_channel(window);
        device.open(pair, Inlet { packets: inlet, doorbell: doorbell.clone(), room: 0 });
        Ok(Self {
            receive,
            transmit,
            device,
            doorbell,
            pair,
            mergeable: features & F_MRG_RXBUF != 0,
            packets,
            waiting: VecDeque::new(),
            held: Vec::new(),
            room: 0,
            brought: 0,
            open: false,
            in_flight: Arc::default(),
        })
    }

    /// Brings packets to the driver. True when more can be brought at once.
    fn receive_round(&mut self) -> Result<bool, RingError> {
        if !std::mem::replace(&mut self.open, true) {
            // Not in `new`: what it was restored with takes up room.
            let there = u32::try_from(self.waiting.len()).unwrap_or(RECEIVE_WINDOW);
            self.device.allow(self.pair, RECEIVE_WINDOW.saturating_sub(there));
        }
        let mut brought = 0;
        let mut again = false;
        while let Some(packet) = self.waiting.pop_front().or_else(|| self.packets.try_recv().ok()) {
            if brought == RECEIVE_WINDOW {
                again = true;
                self.waiting.push_front(packet);
                break;
            }
            if !self.gather(packet.len())? {
                self.waiting.push_front(packet);
                if self.receive.ring.listen()? {
                    continue;
                }
                break;
            }
            self.deliver(packet)?;
            brought += 1;
        }
        self.receive.tell()?;
        self.brought += brought;
        if self.brought >= ALLOWANCE {
            self.device.allow(self.pair, std::mem::take(&mut self.brought));
        }
        Ok(again)
    }

    /// Takes buffers until a packet of so many bytes fits, or as many as a packet may have. False when
    /// the driver has given too few.
    fn gather(&mut self, bytes: usize) -> Result<bool, RingError> {
        let most = if self.mergeable { usize::from(self.receive.ring.size()) } else { 1 };
        while self.room < bytes as u64 && self.held.len() < most {
            let Some(chain) = self.receive.ring.pop()? else { return Ok(false) };
            let header = if self.held.is_empty() { HEADER_BYTES as u64 } else { 1 };
            if chain.writable.len() < header {
                return Err(RingError::Request);
            }
            self.room += chain.writable.len();
            self.held.push(chain);
        }
        Ok(true)
    }

    /// Writes a packet into the buffers held. One that does not fit is dropped and the buffers are
    /// kept for the next.
    fn deliver(&mut self, mut packet: Vec<u8>) -> Result<(), RingError> {
        if packet.len() < HEADER_BYTES || self.room < packet.len() as u64 {
            return Ok(());
        }
        let (mut need, mut count) = (packet.len() as u64, 0);
        for chain in &self.held {
            count += 1;
            need = need.saturating_sub(chain.writable.len());
            if need == 0 {
                break;
            }
        }
        let buffers = u16::try_from(count).unwrap_or(u16::MAX);
        packet[HEADER_BUFFERS..HEADER_BYTES].copy_from_slice(&buffers.to_le_bytes());
        let (mut rest, mut used) = (&packet[..], Vec::with_capacity(count));
        for chain in self.held.drain(..count) {
            let room = chain.writable.len();
            self.room -= room;
            let here = usize::try_from(room).unwrap_or(usize::MAX).min(rest.len());
            let (part, left) = rest.split_at(here);
            self.receive.ring.write(&chain.writable, 0, part)?;
            used.push((chain.head, here as u64));
            rest = left;
        }
        self.receive.ring.push_together(&used)
    }

    /// Sends what the driver has. True when there is more that may be sent.
    fn transmit_round(&mut self) -> Result<bool, RingError> {
        self.transmit.ring.quiet()?;
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut empty = false;
        // Packets that are lost count too: somebody may want this worker to rest.
        for _ in 0..BATCH {
            if self.full(bytes) {
                break;
            }
            let Some(chain) = self.transmit.ring.pop()? else {
                empty = true;
                break;
            };
            let length = usize::try_from(chain.readable.len()).unwrap_or(usize::MAX);
            // No packet, or longer than any: lost, as by a network.
            if (HEADER_BYTES..=PACKET_BYTES_MAX).contains(&length) {
                batch.push(self.transmit.ring.read_vec(&chain.readable, 0, length)?);
                bytes += length;
            }
            self.transmit.ring.push(chain.head, 0)?;
        }
        if !batch.is_empty() {
            self.send(batch, bytes);
        }
        self.transmit.tell()?;
        if empty {
            return self.transmit.ring.listen();
        }
        // A full way rings when it is free.
        Ok(!self.full(0))
    }

    fn full(&self, more: usize) -> bool {
        self.in_flight.bytes() + more >= TRANSMIT_BYTES
    }

    fn send(&self, batch: Vec<Vec<u8>>, bytes: usize) {
        self.in_flight.add(bytes);
        let (in_flight, doorbell) = (Arc::clone(&self.in_flight), self.doorbell.clone());
        let done = move || {
            if in_flight.take(bytes) >= TRANSMIT_BYTES {
                doorbell.ring();
            }
        };
        self.device.nic.transmit(self.pair, batch, Box::new(done));
    }
}

impl QueueWorker for NetPair {
    fn service(&mut self) -> bool {
        let mut again = false;
        if !self.transmit.broken() {
            let round = self.transmit_round();
            again |= self.transmit.settle(round);
        }
        if !self.receive.broken() {
            let round = self.receive_round();
            again |= self.receive.settle(round);
        }
        again
    }

    /// Packets that have come wait in the worker, as far as they were allowed; buffers without a packet are the driver's
    /// again.
    fn rest(&mut self, deadline: Instant) -> bool {
        let left = self.in_flight.wait_for_none(deadline);
        let held = u16::try_from(self.held.len()).unwrap_or(0);
        if !self.receive.broken() {
            self.receive.ring.put_back(held);
        }
        self.held.clear();
        self.room = 0;
        let most = usize::try_from(RECEIVE_WINDOW).unwrap_or(0);
        while self.waiting.len() < most
            && let Ok(packet) = self.packets.try_recv()
        {
            self.waiting.push_back(packet);
        }
        left
    }

    fn save(&self) -> WorkerState {
        WorkerState::Pair(Saved::save(self))
    }

    fn restore(&mut self, state: WorkerState) -> Result<(), Invalid> {
        Saved::restore(self, state.pair()?)
    }

    fn stop(&mut self, _deadline: Instant) -> bool {
        // Packets under way are copies, and may be lost.
        self.device.close(self.pair);
        true
    }
}
