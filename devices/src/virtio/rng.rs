//! The front end of a source of randomness (5.4).

use super::ring::{Chain, Ring};
use super::worker::{Requests, RingWorker};
use super::{ConfigChanges, DeviceShape, RingError};
use std::sync::Arc;
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;

/// Most bytes for one request; the driver asks again (5.4.6.2).
const REQUEST_BYTES_MAX: u64 = 4096;

/// A source of randomness, as drivers see it. No class of PCI fits.
#[must_use]
pub fn shape() -> DeviceShape {
    let (type_id, class) = (VIRTIO_ID_RNG, 0xff_0000);
    let (config, changes) = (Vec::new(), ConfigChanges::NONE);
    DeviceShape { type_id, class, features: 0, queues: 1, config, changes }
}

/// Fills the buffer with random bytes; never blocks for long.
pub type RandomSource = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// The worker of the only queue.
pub type RngQueue = RingWorker<RandomSource>;

impl Requests for RandomSource {
    const ROUND: usize = 64;

    fn serve(&mut self, ring: &Ring, chain: &Chain) -> Result<u64, RingError> {
        let wanted = chain.writable.len().min(REQUEST_BYTES_MAX);
        let mut data = vec![0; usize::try_from(wanted).unwrap_or(0)];
        self(&mut data);
        ring.write(&chain.writable, 0, &data)?;
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests;
