//! The saved form of workers.

use super::{QueueWorker, Seat};
use crate::virtio::QUEUE_SIZE_MAX;
use crate::virtio::net::NetPairState;
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

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

impl Saved for Seat {
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
