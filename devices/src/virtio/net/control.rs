//! The control queue of a network device (5.1.6.5).

use super::super::worker::Seat;
use super::super::{QueueContext, QueueWorker, RingError};
use super::NetDevice;
use crate::pci::QueueSetup;
use std::sync::Arc;
use std::time::Instant;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, VIRTIO_NET_ERR, VIRTIO_NET_OK,
};

/// Commands served before the thread looks whether it must stop.
const ROUND: usize = 16;

/// The worker of the control queue. It knows one command, the number of pairs in use; all others are
/// answered with an error, as nothing else is offered.
#[derive(Debug)]
pub struct NetControl {
    seat: Seat,
    device: Arc<NetDevice>,
}

impl NetControl {
    /// A worker for this queue.
    ///
    /// # Errors
    ///
    /// The queue cannot be: the device is broken ([`DeviceFaults`](crate::virtio::DeviceFaults)).
    pub fn new(
        context: &QueueContext,
        features: u64,
        setup: &QueueSetup,
        device: Arc<NetDevice>,
    ) -> Result<Self, RingError> {
        Ok(Self { seat: Seat::new(context, features, setup)?, device })
    }

    fn round(&mut self) -> Result<bool, RingError> {
        self.seat.ring.quiet()?;
        for _ in 0..ROUND {
            let Some(chain) = self.seat.ring.pop()? else {
                self.seat.tell()?;
                return self.seat.ring.listen();
            };
            // Class and command, then what the command needs: for pairs, two bytes.
            let mut command = [0; 2];
            self.seat.ring.read(&chain.readable, 0, &mut command)?;
            let pairs_set = [VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET];
            let done = command.map(u32::from) == pairs_set && chain.readable.len() >= 4 && {
                let mut pairs = [0; 2];
                self.seat.ring.read(&chain.readable, 2, &mut pairs)?;
                self.device.use_pairs(u16::from_le_bytes(pairs))
            };
            let answer = if done { VIRTIO_NET_OK } else { VIRTIO_NET_ERR };
            self.seat.ring.write(&chain.writable, 0, &answer.to_le_bytes()[..1])?;
            self.seat.ring.push(chain.head, 1)?;
        }
        self.seat.tell()?;
        Ok(true)
    }
}

impl QueueWorker for NetControl {
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
