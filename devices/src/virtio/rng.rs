//! The front end of a source of randomness (5.4).

use super::worker::Seat;
use super::{QueueContext, QueueWorker, RingError};
use crate::pci::QueueSetup;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Most bytes for one request; the driver asks again (5.4.6.2).
const REQUEST_BYTES_MAX: u64 = 4096;
/// Requests served before the thread looks whether it must stop.
const ROUND: usize = 64;

/// Fills the buffer with random bytes; never blocks for long.
pub type RandomSource = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// The worker of the only queue.
pub struct RngQueue {
    seat: Seat,
    source: RandomSource,
}

impl fmt::Debug for RngQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RngQueue").field("seat", &self.seat).finish_non_exhaustive()
    }
}

impl RngQueue {
    /// A worker for this queue.
    ///
    /// # Errors
    ///
    /// The queue cannot be: the device is broken ([`DeviceFaults`](super::DeviceFaults)).
    pub fn new(
        context: &QueueContext,
        features: u64,
        setup: &QueueSetup,
        source: RandomSource,
    ) -> Result<Self, RingError> {
        Ok(Self { seat: Seat::new(context, features, setup)?, source })
    }

    fn round(&mut self) -> Result<bool, RingError> {
        let ring = &mut self.seat.ring;
        ring.quiet()?;
        for _ in 0..ROUND {
            let Some(chain) = ring.pop()? else {
                self.seat.tell()?;
                return self.seat.ring.listen();
            };
            let wanted = chain.writable.len().min(REQUEST_BYTES_MAX);
            let mut data = vec![0; usize::try_from(wanted).unwrap_or(0)];
            (self.source)(&mut data);
            ring.write(&chain.writable, 0, &data)?;
            ring.push(chain.head, wanted)?;
        }
        self.seat.tell()?;
        Ok(true)
    }
}

impl QueueWorker for RngQueue {
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
