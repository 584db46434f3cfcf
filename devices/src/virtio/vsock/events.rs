//! Events for the driver (5.10.6.7). There is one: after a restore all connections of before are reset.
//!
//! ```text
//!   owed --a buffer is there--> told --the driver makes a buffer available--> heard: connections may begin
//! ```
//! A driver gives the buffer of an event back behind what it does about the event: Linux first ends its connections, those
//! that are new as well, so none may begin before. It is to do so quickly (5.10.6.7.1).

use super::Vsock;
use super::switch::Switch;
use crate::virtio::RingError;
use crate::virtio::ring::{Chain, Ring};
use crate::virtio::worker::{Requests, RingWorker};

/// `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`: the number of the event is all there is of it.
const TRANSPORT_RESET: [u8; 4] = 0_u32.to_le_bytes();

/// Brings events to the driver.
#[derive(Debug)]
pub struct Events {
    vsock: Vsock,
    /// Index of the available ring when the driver was told: beyond it, the driver has heard.
    told: Option<u16>,
}

/// The worker of queue 2.
pub type VsockEvents = RingWorker<Events>;

impl Events {
    /// Of this device.
    #[must_use]
    pub fn new(vsock: &Vsock) -> Self {
        Self { vsock: vsock.clone(), told: None }
    }
}

impl Requests for Events {
    const ROUND: usize = super::ROUND;

    /// A restore rings.
    fn ready(&self) -> bool {
        self.vsock.with(|switch| switch.owes_reset())
    }

    fn serve(&mut self, ring: &Ring, chain: &Chain) -> Result<u64, RingError> {
        let bytes = TRANSPORT_RESET.len() as u64;
        if chain.writable.len() < bytes {
            return Err(RingError::Request);
        }
        ring.write(&chain.writable, 0, &TRANSPORT_RESET)?;
        self.told = Some(ring.offered()?);
        self.vsock.with(Switch::reset_told);
        Ok(bytes)
    }

    fn wait(&mut self, ring: &mut Ring) -> Result<(), RingError> {
        let Some(told) = self.told else { return Ok(()) };
        if ring.listen_beyond(told)? {
            self.told = None;
            self.vsock.with(Switch::reset_heard);
        }
        Ok(())
    }
}
