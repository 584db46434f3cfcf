//! The front end of a console with one port (5.3): queue 0 brings input to the driver, queue 1 takes
//! its output.

use super::worker::Seat;
use super::{Doorbell, QueueContext, QueueWorker, RingError};
use crate::pci::QueueSetup;
use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Bytes of input that wait for the driver.
const INPUT_BYTES_MAX: usize = 4096;
/// Bytes of output that are written at once.
const OUTPUT_BYTES: usize = 4096;
/// Most bytes of one request of the driver; what is beyond is lost. Nobody prints so much at once.
const CHAIN_BYTES_MAX: u64 = 1 << 20;
/// Buffers served before the thread looks whether it must stop.
const ROUND: usize = 64;

/// Input on its way to the driver; it outlives resets of the device. Clones are the same.
#[derive(Clone, Debug)]
pub struct ConsoleInput {
    waiting: Arc<Mutex<VecDeque<u8>>>,
    doorbell: Doorbell,
}

impl ConsoleInput {
    /// Nothing yet. `doorbell` wakes the worker of queue 0.
    #[must_use]
    pub fn new(doorbell: Doorbell) -> Self {
        Self { waiting: Arc::default(), doorbell }
    }

    /// Feeds bytes and gives the number taken; at most 4096 wait. The caller keeps the rest and comes
    /// back.
    pub fn push(&self, bytes: &[u8]) -> usize {
        let mut waiting = lock(&self.waiting);
        let taken = bytes.len().min(INPUT_BYTES_MAX - waiting.len());
        waiting.extend(&bytes[..taken]);
        drop(waiting);
        self.doorbell.ring();
        taken
    }
}

/// Takes the output. It may block: only the worker waits.
pub type ConsoleOutput = Arc<Mutex<dyn Write + Send>>;

/// A panic of another thread leaves bytes in order.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The worker of queue 0.
#[derive(Debug)]
pub struct ConsoleReceive {
    seat: Seat,
    input: ConsoleInput,
}

impl ConsoleReceive {
    /// A worker for this queue.
    ///
    /// # Errors
    ///
    /// The queue cannot be: the device is broken ([`DeviceFaults`](super::DeviceFaults)).
    pub fn new(
        context: &QueueContext,
        features: u64,
        setup: &QueueSetup,
        input: ConsoleInput,
    ) -> Result<Self, RingError> {
        Ok(Self { seat: Seat::new(context, features, setup)?, input })
    }

    fn round(&mut self) -> Result<bool, RingError> {
        self.seat.ring.quiet()?;
        for _ in 0..ROUND {
            // Only this worker takes bytes away, so what is there now is there later.
            if lock(&self.input.waiting).is_empty() {
                self.seat.tell()?;
                // Input rings.
                return Ok(false);
            }
            let Some(chain) = self.seat.ring.pop()? else {
                self.seat.tell()?;
                return self.seat.ring.listen();
            };
            let room = usize::try_from(chain.writable.len()).unwrap_or(usize::MAX);
            let data: Vec<u8> = {
                let mut waiting = lock(&self.input.waiting);
                let count = room.min(waiting.len());
                waiting.drain(..count).collect()
            };
            self.seat.ring.write(&chain.writable, 0, &data)?;
            self.seat.ring.push(chain.head, data.len() as u64)?;
        }
        self.seat.tell()?;
        Ok(true)
    }
}

impl QueueWorker for ConsoleReceive {
    fn service(&mut self) -> bool {
        if self.seat.broken() {
            return false;
        }
        let round = self.round();
        self.seat.settle(round)
    }

    fn stop(&mut self, _deadline: Instant) -> bool {
        true
    }
}

/// The worker of queue 1.
pub struct ConsoleTransmit {
    seat: Seat,
    output: ConsoleOutput,
}

impl fmt::Debug for ConsoleTransmit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsoleTransmit").field("seat", &self.seat).finish_non_exhaustive()
    }
}

impl ConsoleTransmit {
    /// A worker for this queue.
    ///
    /// # Errors
    ///
    /// The queue cannot be: the device is broken ([`DeviceFaults`](super::DeviceFaults)).
    pub fn new(
        context: &QueueContext,
        features: u64,
        setup: &QueueSetup,
        output: ConsoleOutput,
    ) -> Result<Self, RingError> {
        Ok(Self { seat: Seat::new(context, features, setup)?, output })
    }

    fn round(&mut self) -> Result<bool, RingError> {
        self.seat.ring.quiet()?;
        for _ in 0..ROUND {
            let Some(chain) = self.seat.ring.pop()? else {
                let _ = lock(&self.output).flush();
                self.seat.tell()?;
                return self.seat.ring.listen();
            };
            // Whatever length the driver claims, so much is in memory at a time.
            let (mut offset, end) = (0, chain.readable.len().min(CHAIN_BYTES_MAX));
            while offset < end {
                let left = usize::try_from(end - offset).unwrap_or(usize::MAX);
                let data =
                    self.seat.ring.read_vec(&chain.readable, offset, left.min(OUTPUT_BYTES))?;
                // Where output cannot be written it is lost, as with a cable that is not plugged in.
                let _ = lock(&self.output).write_all(&data);
                offset += data.len() as u64;
            }
            self.seat.ring.push(chain.head, 0)?;
        }
        let _ = lock(&self.output).flush();
        self.seat.tell()?;
        Ok(true)
    }
}

impl QueueWorker for ConsoleTransmit {
    fn service(&mut self) -> bool {
        if self.seat.broken() {
            return false;
        }
        let round = self.round();
        self.seat.settle(round)
    }

    fn stop(&mut self, _deadline: Instant) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
