//! Events for the driver (5.10.6.7). There is one: after a restore all connections of before are reset.

use super::Vsock;
use super::switch::Switch;
use crate::virtio::RingError;
use crate::virtio::ring::{Chain, Ring};
use crate::virtio::worker::{Requests, RingWorker};

/// `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`: the number of the event is all there is of it.
const TRANSPORT_RESET: [u8; 4] = 0_u32.to_le_bytes();

/// Brings events to the driver.
#[derive(Debug)]
pub struct Events(Vsock);

/// The worker of queue 2.
pub type VsockEvents = RingWorker<Events>;

impl Events {
    /// Of this device.
    #[must_use]
    pub fn new(vsock: &Vsock) -> Self {
        Self(vsock.clone())
    }
}

impl Requests for Events {
    const ROUND: usize = super::ROUND;

    /// A restore rings.
    fn ready(&self) -> bool {
        self.0.with(|switch| switch.owes_reset())
    }

    fn serve(&mut self, ring: &Ring, chain: &Chain) -> Result<u64, RingError> {
        let bytes = TRANSPORT_RESET.len() as u64;
        if chain.writable.len() < bytes {
            return Err(RingError::Request);
        }
        ring.write(&chain.writable, 0, &TRANSPORT_RESET)?;
        self.0.with(Switch::reset_told);
        Ok(bytes)
    }
}
