//! The control queue of a network device (5.1.6.5).

use super::super::RingError;
use super::super::ring::{Chain, Ring};
use super::super::worker::{Requests, RingWorker};
use super::NetDevice;
use std::sync::Arc;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, VIRTIO_NET_ERR, VIRTIO_NET_OK,
};

/// The worker of the control queue. It knows one command, the number of pairs in use; all others are
/// answered with an error, as nothing else is offered.
pub type NetControl = RingWorker<Arc<NetDevice>>;

impl Requests for Arc<NetDevice> {
    const ROUND: usize = 16;

    fn serve(&mut self, ring: &Ring, chain: &Chain) -> Result<u64, RingError> {
        // Class and command, then what the command needs: for pairs, two bytes.
        let mut command = [0; 2];
        ring.read(&chain.readable, 0, &mut command)?;
        let pairs_set = [VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET];
        let done = command.map(u32::from) == pairs_set && chain.readable.len() >= 4 && {
            let mut pairs = [0; 2];
            ring.read(&chain.readable, 2, &mut pairs)?;
            self.use_pairs(u16::from_le_bytes(pairs))
        };
        let answer = if done { VIRTIO_NET_OK } else { VIRTIO_NET_ERR };
        ring.write(&chain.writable, 0, &answer.to_le_bytes()[..1])?;
        Ok(1)
    }
}
