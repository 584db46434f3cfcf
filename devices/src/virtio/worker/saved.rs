//! The saved form of workers.

use super::{QueueWorker, ServedQueue};
use crate::back_end::PACKET_BYTES_MAX;
use crate::byte_string;
use crate::virtio::QUEUE_SIZE_MAX;
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// Most bytes of an encoded worker of a pair without packets.
const PAIR_BYTES_MAX: usize = 512;
/// Bytes before those of a packet (RFC 8949, 3.1).
const PACKET_HEAD_BYTES: usize = 5;
/// Most packets that wait at a pair.
pub(crate) const PACKETS_MAX: usize = 128;

/// How far a queue has been served (virtio 1.3, 2.7). At rest everything taken from the available ring has been given
/// back. Where the rings are, and which features hold, is in the state of the device's transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueState {
    /// Entries; the queue that takes the state over must have as many.
    pub size: u16,
    /// Index in the available ring of the next request to take, modulo 2^16.
    pub next_avail: u16,
    /// Index in the used ring of the next request to give back, modulo 2^16.
    pub next_used: u16,
    /// The driver has broken the queue: it is not served before a reset.
    pub broken: bool,
}

/// A pair of queues at rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetPairState {
    /// The queue that brings packets to the driver.
    pub receive: QueueState,
    /// The queue that takes them.
    pub transmit: QueueState,
    /// Packets that have come and wait for buffers of the driver, in order; at most 128.
    pub packets: Vec<PacketState>,
}

/// A packet with its header (virtio 1.3, 5.1.6), at most 65562 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketState(#[serde(with = "byte_string")] pub Vec<u8>);

/// How far a worker has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum WorkerState {
    /// One queue: of a disk, a source of randomness, a console, a socket device, or the control queue of a network.
    Queue(QueueState),
    /// Both queues of a pair of a network.
    Pair(NetPairState),
}

impl SavedState for QueueState {
    const NAME: &'static str = "virtio queue";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = 48;

    fn check(&self) -> Result<(), Invalid> {
        let size = self.size.is_power_of_two() && self.size <= QUEUE_SIZE_MAX;
        Invalid::unless(size, "size", "no power of two up to the largest queue")?;
        let same = self.broken || self.next_avail == self.next_used;
        Invalid::unless(same, "next_used", "requests have been taken and not given back")
    }
}

impl SavedState for NetPairState {
    const NAME: &'static str = "virtio network pair";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = PACKETS_MAX * (PACKET_BYTES_MAX + 5) + 2 * QueueState::MAX_BYTES + 48;

    fn check(&self) -> Result<(), Invalid> {
        self.receive.check()?;
        self.transmit.check()?;
        Invalid::unless(self.packets.len() <= PACKETS_MAX, "packets", "more than may wait")?;
        let long = self.packets.iter().any(|packet| packet.0.len() > PACKET_BYTES_MAX);
        Invalid::unless(!long, "packets", "one that is longer than any")
    }
}

impl SavedState for WorkerState {
    const NAME: &'static str = "virtio worker";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = NetPairState::MAX_BYTES + 16;

    fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::Queue(queue) => queue.check(),
            Self::Pair(pair) => pair.check(),
        }
    }
}

impl WorkerState {
    /// The same state in so many bytes when it is encoded, if it can be: of packets that wait the newest are lost, as in a
    /// network. Without packets it has some hundred bytes.
    #[must_use]
    pub fn within(mut self, bytes: usize) -> Self {
        if let Self::Pair(pair) = &mut self {
            let mut left = bytes.saturating_sub(PAIR_BYTES_MAX);
            let fits = |packet: &&PacketState| {
                let rest = left.checked_sub(packet.0.len() + PACKET_HEAD_BYTES);
                left = rest.unwrap_or(0);
                rest.is_some()
            };
            let count = pair.packets.iter().take_while(fits).count();
            pair.packets.truncate(count);
        }
        self
    }

    /// The state of a worker of one queue.
    ///
    /// # Errors
    /// It is that of a pair.
    pub(crate) fn queue(self) -> Result<QueueState, Invalid> {
        match self {
            Self::Queue(queue) => Ok(queue),
            Self::Pair(_) => Err(Invalid::new("worker", "that of a pair, not of one queue")),
        }
    }

    /// The state of a worker of a pair.
    ///
    /// # Errors
    /// It is that of one queue.
    pub(crate) fn pair(self) -> Result<NetPairState, Invalid> {
        match self {
            Self::Pair(pair) => Ok(pair),
            Self::Queue(_) => Err(Invalid::new("worker", "that of one queue, not of a pair")),
        }
    }
}

impl Saved for ServedQueue {
    type State = QueueState;

    fn save(&self) -> QueueState {
        let (next_avail, next_used) = self.ring.positions();
        QueueState { size: self.ring.size(), next_avail, next_used, broken: self.broken }
    }

    /// The driver is not told: it was told of everything when the worker came to rest.
    fn restore(&mut self, state: QueueState) -> Result<(), Invalid> {
        state.check()?;
        let same = state.size == self.ring.size();
        Invalid::unless(same, "size", "not that of this queue")?;
        self.ring.go_to(state.next_avail, state.next_used);
        self.broken = state.broken;
        Ok(())
    }
}

impl Saved for Box<dyn QueueWorker> {
    type State = WorkerState;

    fn save(&self) -> WorkerState {
        (**self).save()
    }

    fn restore(&mut self, state: WorkerState) -> Result<(), Invalid> {
        state.check()?;
        (**self).restore(state)
    }
}
