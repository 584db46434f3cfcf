//! Workers that serve queues.
//!
//! ```text
//!   service --nothing to do--> sleep until the doorbell --+
//!      ^                                                  |
//!      +--------------------------------------------------+
//!   (rest) --> finish what is under way, at most so long --> state --> service
//!   (stop) --> wait for what is under way, at most so long --> end
//! ```
//! A worker has stopped only when its back end has answered everything: a write that is still under way could come
//! behind one that the driver asks for after the reset.

mod saved;
mod thread;

pub(super) use saved::PACKETS_MAX;
pub use saved::{NetPairState, PacketState, QueueState, WorkerState};
pub use thread::{RestError, StopTimeout, WorkerThread};

use super::ring::{Chain, Frame, Ring};
use super::{DeviceFaults, QueueSetup, RingError, UsedMemory};
use crate::msix::{MsixVector, MsixView};
use migrate::{Invalid, Saved};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EventFd};
use wire::DeviceId;

/// Wakes a worker: rung by the driver through an ioeventfd, by a slice that heard the driver's
/// notification, and by back ends. Clones are the same bell.
#[derive(Clone, Debug)]
pub struct Doorbell(Arc<EventFd>);

impl Doorbell {
    /// A silent bell.
    ///
    /// # Errors
    ///
    /// No file descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(EventFd::new(EFD_CLOEXEC)?)))
    }

    /// Rings. Any number of rings before the worker looks are one.
    pub fn ring(&self) {
        // It fails only when it has been rung 2^64 times.
        let _ = self.0.write(1);
    }

    /// Sleeps until it was rung.
    fn wait(&self) {
        let _ = self.0.read();
    }

    /// The event counter behind it, for KVM's ioeventfd.
    #[must_use]
    pub fn event(&self) -> &EventFd {
        &self.0
    }
}

impl AsRawFd for Doorbell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// What every worker of a device needs of its slice.
#[derive(Clone)]
pub struct QueueContext {
    /// The device.
    pub device: DeviceId,
    /// Guest memory. An access may block for as long as a page needs from another slice.
    pub memory: Arc<GuestMemoryMmap>,
    /// Told of all memory that the driver names, rings and buffers.
    pub used: Arc<dyn UsedMemory>,
    /// The way out for interrupts.
    pub msix: Arc<MsixView>,
    /// Told when the driver has broken the device.
    pub faults: Arc<dyn DeviceFaults>,
}

impl fmt::Debug for QueueContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueContext").field("device", &self.device).finish_non_exhaustive()
    }
}

/// Serves a queue, or the two of a network pair. Dropping it is always safe: answers that come later
/// go nowhere.
pub trait QueueWorker: Send {
    /// Takes in what has come from the driver and the back end, for a bounded time. True when there
    /// is more to do; otherwise the next ring of its doorbell says when.
    fn service(&mut self) -> bool;

    /// Comes to rest: finishes what is under way at the back end, or what was taken from a ring in another way, tells the
    /// driver, and takes nothing new. It is called between rounds of [`Self::service`], which goes on afterwards.
    /// False when the back end has not answered by the deadline; what it has answered is finished.
    fn rest(&mut self, deadline: Instant) -> bool;

    /// How far it has come. Called at rest.
    fn save(&self) -> WorkerState;

    /// Goes on from there: called before it serves anything, at a worker of the same queues.
    ///
    /// # Errors
    ///
    /// The state is of another kind of worker or of queues of another size; nothing has changed then.
    fn restore(&mut self, state: WorkerState) -> Result<(), Invalid>;

    /// Touches guest memory no more and waits until nothing is under way at the back end, or the
    /// deadline. True when nothing is.
    fn stop(&mut self, deadline: Instant) -> bool;
}

/// A ring with its way out.
#[derive(Debug)]
pub(crate) struct ServedQueue {
    pub(crate) ring: Ring,
    context: QueueContext,
    vector: Option<MsixVector>,
    broken: bool,
}

impl ServedQueue {
    pub(crate) fn new(
        context: &QueueContext,
        features: u64,
        setup: &QueueSetup,
        frame: Frame,
    ) -> Result<Self, RingError> {
        let ring = Ring::new(setup, features, Arc::clone(&context.memory))?;
        let ring = ring.with_used(setup, Arc::clone(&context.used), frame);
        Ok(Self { ring, context: context.clone(), vector: setup.vector, broken: false })
    }

    /// Interrupts the driver if it wants that for what it was given back.
    pub(crate) fn tell(&mut self) -> Result<(), RingError> {
        if self.ring.interrupt_due()? {
            self.context.msix.raise(self.vector);
        }
        Ok(())
    }

    pub(crate) fn broken(&self) -> bool {
        self.broken
    }

    /// Ends a round of service; a broken ring is reported once and not served again.
    pub(crate) fn settle(&mut self, round: Result<bool, RingError>) -> bool {
        match round {
            Ok(again) => again,
            Err(cause) => {
                self.broken = true;
                self.context.faults.broken(self.context.device, cause);
                false
            }
        }
    }
}

/// Serves requests of a queue on the spot: what a worker needs that asks no back end.
pub trait Requests: Send {
    /// Requests served before the thread looks whether it must stop.
    const ROUND: usize;

    /// False when nothing can be served before somebody rings, whatever the driver has.
    fn ready(&self) -> bool {
        true
    }

    /// Serves a request and gives the number of bytes written for the driver.
    ///
    /// # Errors
    ///
    /// The request makes no sense: the device is broken.
    fn serve(&mut self, ring: &Ring, chain: &Chain) -> Result<u64, RingError>;

    /// A round is over, and the driver is about to be told.
    fn settle(&mut self) {}

    /// Nothing is ready, and the driver was told of all: asks it to ring where its next buffer alone says something.
    ///
    /// # Errors
    ///
    /// The ring is broken.
    fn wait(&mut self, _ring: &mut Ring) -> Result<(), RingError> {
        Ok(())
    }
}

/// The worker of a queue whose requests are served on the spot.
pub struct RingWorker<R> {
    queue: ServedQueue,
    requests: R,
}

impl<R> fmt::Debug for RingWorker<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingWorker").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl<R: Requests> RingWorker<R> {
    /// A worker for this queue.
    ///
    /// # Errors
    ///
    /// The queue cannot be: the device is broken ([`DeviceFaults`]).
    pub fn new(
        context: &QueueContext,
        features: u64,
        setup: &QueueSetup,
        requests: R,
    ) -> Result<Self, RingError> {
        Ok(Self { queue: ServedQueue::new(context, features, setup, Frame::default())?, requests })
    }

    fn round(&mut self) -> Result<bool, RingError> {
        self.queue.ring.quiet()?;
        for _ in 0..R::ROUND {
            if !self.requests.ready() {
                self.tell()?;
                self.requests.wait(&mut self.queue.ring)?;
                return Ok(false);
            }
            let Some(chain) = self.queue.ring.pop()? else {
                self.tell()?;
                return self.queue.ring.listen();
            };
            let written = self.requests.serve(&self.queue.ring, &chain)?;
            self.queue.ring.push(chain.head, written)?;
        }
        self.tell()?;
        Ok(true)
    }

    fn tell(&mut self) -> Result<(), RingError> {
        self.requests.settle();
        self.queue.tell()
    }
}

impl<R: Requests> QueueWorker for RingWorker<R> {
    fn service(&mut self) -> bool {
        if self.queue.broken() {
            return false;
        }
        let round = self.round();
        self.queue.settle(round)
    }

    /// Requests are served on the spot: between rounds nothing is under way.
    fn rest(&mut self, _deadline: Instant) -> bool {
        true
    }

    fn save(&self) -> WorkerState {
        WorkerState::Queue(self.queue.save())
    }

    fn restore(&mut self, state: WorkerState) -> Result<(), Invalid> {
        self.queue.restore(state.queue()?)
    }

    fn stop(&mut self, _deadline: Instant) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
