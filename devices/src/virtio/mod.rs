//! Virtio devices: what the driver sees, and the front ends that serve its queues.
//!
//! ```text
//!                     +-- shape, transport: pure, part of every replica of the PCI root
//!   a device is made of
//!                     +-- workers: one thread for a queue (or a pair of a network), in the slice
//!                         that is home to the queue
//!
//!   doorbell --+                         +--> back end (`crate::back_end`), any slice
//!              +--> worker::service() ---+--> guest memory, used ring
//!   reply -----+    the only one that    +--> MsixView::raise()
//!                   touches the ring     +--> DeviceFaults::broken() when the ring is nonsense
//! ```
//! Who rings a worker needs no lock of it: a doorbell is an event counter, and replies come by a
//! bounded channel. What a worker reads of guest memory it reads once and then works on its copy:
//! a guest that changes memory meanwhile changes nothing of what was checked.
//!
//! Sections are those of virtio 1.3. Left out as the driver can do without: packed rings, legacy
//! interfaces, in-order completion, queue reset.

pub mod blk;
pub mod console;
pub mod net;
mod queue;
mod ring;
pub mod rng;
mod shape;
#[cfg(test)]
mod testing;
mod transport;
pub mod vsock;
mod worker;

pub use queue::{Activation, QUEUES_MAX, QueueIndex, QueueSetup};
pub use ring::RingError;
use shape::ConfigChanges;
pub use shape::{DeviceChange, DeviceConfigState, DeviceShape};
pub(crate) use transport::{COMMON_BYTES, Event as TransportEvent, Transport};
pub use transport::{QueueRegistersState, TransportState};
pub use worker::{
    Doorbell, NetPairState, PacketState, QueueContext, QueueState, QueueWorker, RestError,
    RingWorker, StopTimeout, WorkerState, WorkerThread,
};

use wire::DeviceId;

/// The device is no legacy one (6, `VIRTIO_F_VERSION_1`).
pub const F_VERSION_1: u64 = 1 << virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
/// Descriptors may lie in a table of their own (2.7.5.3).
pub(crate) const F_INDIRECT: u64 = 1 << virtio_bindings::virtio_ring::VIRTIO_RING_F_INDIRECT_DESC;
/// Both sides say at which index they want to be told (2.7.7, 2.7.10).
pub(crate) const F_EVENT_IDX: u64 = 1 << virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

/// Most entries of a queue.
pub const QUEUE_SIZE_MAX: u16 = 256;
/// Most bytes of requests under way per queue. One that would be beyond it waits.
pub const IN_FLIGHT_BYTES: usize = 4 << 20;

/// Told which guest memory a driver uses for a device, so that it can be counted how often that
/// travels between slices.
pub trait UsedMemory: Send + Sync {
    /// These bytes are in guest memory and belong to a ring or a buffer. Often called: returns at once.
    fn used(&self, address: u64, bytes: u64, what: Used);
}

/// What a device uses guest memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// A ring or payload: of use for nothing else, so it stays with the queue's vCPU.
    Data,
    /// What a request says of itself, or what became of it (virtio-blk's header and status, 5.2.6). Linux keeps
    /// both in its own description of the request, between fields that other vCPUs look at.
    Frame,
}

/// Told when a device cannot go on because of what its driver did.
pub trait DeviceFaults: Send + Sync {
    /// The device needs a reset: the owner orders
    /// [`DeviceChange::NeedsReset`](DeviceChange) on all replicas. Called from a worker, which
    /// touches the ring no more; returns at once. May be called for each queue.
    fn broken(&self, device: DeviceId, cause: RingError);
}
