//! Delegation: a device's front end runs on the slice of the vCPU, its back end on the slice that
//! has the real disk or network. Requests and payload travel in frames, never through coherent pages.
//!
//! ```text
//!  front end                                                     back end
//!      |  submit                                                     ^ submit
//!  RemoteDisk, RemoteNic --outbound--> Courier ~~> Exchange::frame --+ DiskServer, NicServer
//!      ^                                                             |   (a thread of its own)
//!      +----- Exchange::frame <~~ Courier <------outbound------------+
//! ```
//! One [`Exchange`] per slice. `frame` and `lost` are called on the engine's thread: they copy bytes,
//! complete what waits, or hand work to a server's thread; they take no lock that is held while
//! anybody works. What a peer may have under way is bounded ([`Limits`]); a peer that overruns a
//! bound or says what it must not is an error value, on which the VM ends.
//!
//! The real part of a device may go to another slice while all rest: each slice enters its new role, and frames of packets that come late are
//! dropped.
//!
//! To bring a VM to rest, first the workers of all slices rest, which wait for their answers; exchanges work on meanwhile.
//! Then nothing new comes, and [`Exchange::wait_until_idle`] says when nothing is under way in between either.
//!
//! ```text
//!  request: submitted --sent--> under way --reply--> answered
//!               |                   |
//!               +--over the bounds--+--slice lost, courier refuses--> answered: Failed
//! ```

mod counters;
mod disk_server;
mod exchange;
mod in_flight;
mod inbound;
mod nic_hub;
mod nic_server;
mod notices;
mod outbound;
mod remote_disk;
mod remote_nic;
mod role;

#[cfg(test)]
mod tests;

pub use counters::{Counters, Counts};
pub use disk_server::DiskServer;
pub use exchange::Exchange;
pub use nic_server::NicServer;
pub use remote_disk::RemoteDisk;
pub use remote_nic::RemoteNic;

use std::fmt::Debug;
use std::time::Duration;
use thiserror::Error;
use wire::device::{DeviceError, PacketsError};
use wire::{DeviceId, SliceId};

/// Bytes that one queue of a front end may have under way, in requests or in answers.
pub const QUEUE_BYTES_MAX: u64 = 4 << 20;
/// Requests, or batches of packets, that one queue of a front end may have under way.
pub const QUEUE_REQUESTS_MAX: u32 = 1024;

/// Takes frames to other slices.
pub trait Courier: Send + Sync + Debug {
    /// Sends a frame in order with all others to this slice. Never blocks; called from any thread.
    /// False: the slice is lost, or so far behind that it must be given up; whoever says so once
    /// also calls [`Exchange::lost`].
    fn send(&self, to: SliceId, frame: Vec<u8>) -> bool;

    /// Sends several frames as [`Self::send`] does, in order; the way is woken once for all of them.
    fn send_all(&self, to: SliceId, frames: Vec<Vec<u8>>) -> bool {
        frames.into_iter().all(|frame| self.send(to, frame))
    }
}

/// What one slice may have under way at one device of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests, or batches of packets.
    pub requests: u32,
    /// Bytes of payload, including what is still to be read.
    pub bytes: u64,
}

impl Limits {
    /// The limits of a device with so many queues, at least one.
    #[must_use]
    pub fn of_queues(queues: u16) -> Self {
        let queues = queues.max(1);
        Self {
            requests: QUEUE_REQUESTS_MAX * u32::from(queues),
            bytes: QUEUE_BYTES_MAX * u64::from(queues),
        }
    }
}

/// A thread of a server could not be started.
#[derive(Debug, Error)]
#[error("start the thread that serves {device}")]
pub struct ServeError {
    /// The device.
    pub device: DeviceId,
    /// Why.
    pub source: std::io::Error,
}

/// Not everything that slices have asked of each other's devices is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "bring delegated devices to rest: {device} has {requests} requests under way after {within:?}"
)]
pub struct StillInFlight {
    /// The first such device.
    pub device: DeviceId,
    /// Requests, or messages with packets.
    pub requests: usize,
    /// Time that there was.
    pub within: Duration,
}

/// What a peer said that it must not. The VM cannot go on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ExchangeError {
    /// Not a frame.
    #[error(transparent)]
    Frame(#[from] DeviceError),
    /// A list of packets that is none.
    #[error(transparent)]
    Packets(#[from] PacketsError),
    /// The sender is no member.
    #[error("take a device frame: {0} is not a member")]
    Stranger(SliceId),
    /// No such device is served, or used, between these slices.
    #[error("take a device frame: {device} has no such part here for {from}")]
    Device {
        /// The device.
        device: DeviceId,
        /// The sender.
        from: SliceId,
    },
    /// A part that does not continue the message before it.
    #[error("take a device frame: a part from {0} belongs to no message")]
    Part(SliceId),
    /// More under way than agreed.
    #[error("take a device frame: {from} overruns the bounds of {device}")]
    Overrun {
        /// The device.
        device: DeviceId,
        /// The sender.
        from: SliceId,
    },
    /// An answer to nothing, or of a wrong length.
    #[error("take a device frame: {from} answers what {device} was not asked")]
    Answer {
        /// The device.
        device: DeviceId,
        /// The sender.
        from: SliceId,
    },
    /// A queue pair that the device does not have.
    #[error("take a device frame: {from} names queue {queue} of {device}")]
    Queue {
        /// The device.
        device: DeviceId,
        /// The sender.
        from: SliceId,
        /// The queue.
        queue: u16,
    },
}
