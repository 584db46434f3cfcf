//! Why queues have not moved.

use devices::virtio::{QueueIndex, RestError, RingError, StopTimeout};
use migrate::{AdvanceError, Invalid};
use std::time::Duration;
use thiserror::Error;
use wire::SliceId;

/// For the states at the new place, which waits for the former one. Less than slices have for a change.
pub(super) const STATES_WITHIN: Duration = Duration::from_secs(50);

/// Why queues have not moved. The slices do not agree any more, so the VM cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum MoveError {
    /// There is no such device.
    #[error("there is no device {0}")]
    Device(u16),
    /// One worker serves them together with others.
    #[error("queue {0} moves without those that are served with it")]
    Torn(u16),
    /// The placement cannot be.
    #[error(transparent)]
    Placement(#[from] AdvanceError),
    /// A worker is busy.
    #[error(transparent)]
    Busy(#[from] RestError),
    /// A worker has not stopped.
    #[error(transparent)]
    Running(#[from] StopTimeout),
    /// Its state cannot be written.
    #[error("write the state of queue {0}: {1}")]
    Unsaved(u16, String),
    /// KVM rings for a queue that is not here.
    #[error("KVM does not give up the doorbells of device {0}")]
    Wired(u16),
    /// No file descriptor for a doorbell.
    #[error("make a doorbell: {0}")]
    Bell(String),
    /// The former place says nothing.
    #[error("{from} has not sent the state of queue {queue} within {STATES_WITHIN:?}")]
    Silent {
        /// The former place.
        from: SliceId,
        /// The queue.
        queue: u16,
    },
    /// The former place sends what is no state.
    #[error("{from} sends for queue {queue} what is no state: {why}")]
    Malformed {
        /// The former place.
        from: SliceId,
        /// The queue.
        queue: u16,
        /// What is wrong.
        why: String,
    },
    /// There are states of other queues.
    #[error(
        "{from} has sent the state of queue {queue} of device {device}, which nobody asked for"
    )]
    Unasked {
        /// Who sent it.
        from: SliceId,
        /// The device.
        device: u16,
        /// The queue.
        queue: u16,
    },
    /// There is a state of a queue that the driver does not use.
    #[error("queue {} was served, and is not in use here", .0.0)]
    Unused(QueueIndex),
    /// The state is of another queue.
    #[error("go on with a queue: {0}")]
    Unfit(#[from] Invalid),
    /// The queue was served elsewhere and cannot be here.
    #[error("go on with a queue: {0}")]
    Setup(RingError),
    /// No thread.
    #[error("start the thread of a queue")]
    Thread,
}
