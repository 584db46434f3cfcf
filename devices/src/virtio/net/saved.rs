//! The saved forms of a network device.

use super::pair::NetPair;
use super::{NetDevice, lock};
use crate::virtio::{NetPairState, PacketState};
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Most queue pairs of a device (virtio 1.3, 5.1.4.2).
const PAIRS_MAX: u16 = 0x8000;

/// What the driver has said through the control queue (virtio 1.3, 5.1.6.5). The features are in the state of the
/// device's transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetDeviceState {
    /// Queue pairs in use; 0 while the device is not connected.
    pub pairs_in_use: u16,
}

impl SavedState for NetDeviceState {
    const NAME: &'static str = "virtio network";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = 24;

    fn check(&self) -> Result<(), Invalid> {
        Invalid::unless(self.pairs_in_use <= PAIRS_MAX, "pairs_in_use", "more than a device has")
    }
}

impl NetDevice {
    /// What the driver has said. The worker of the control queue is at rest.
    #[must_use]
    pub fn save(&self) -> NetDeviceState {
        NetDeviceState { pairs_in_use: lock(&self.agreed).pairs }
    }

    /// Goes on from there: called after [`Self::connect`] if the device was connected.
    ///
    /// # Errors
    ///
    /// There are not so many pairs, or the device is not connected; nothing has changed then.
    pub fn restore(self: &Arc<Self>, state: NetDeviceState) -> Result<(), Invalid> {
        state.check()?;
        let pairs = state.pairs_in_use;
        let now = lock(&self.agreed).pairs;
        let done = pairs == now || pairs != 0 && self.use_pairs(pairs);
        Invalid::unless(done, "pairs_in_use", "not possible with this device")
    }
}

impl Saved for NetPair {
    type State = NetPairState;

    fn save(&self) -> NetPairState {
        NetPairState {
            receive: self.receive.save(),
            transmit: self.transmit.save(),
            packets: self.waiting.iter().cloned().map(PacketState).collect(),
        }
    }

    fn restore(&mut self, state: NetPairState) -> Result<(), Invalid> {
        state.check()?;
        // Of the second queue only its size can be wrong now.
        let same = state.transmit.size == self.transmit.ring.size();
        Invalid::unless(same, "transmit", "not of the size of this queue")?;
        self.receive.restore(state.receive)?;
        self.transmit.restore(state.transmit)?;
        self.waiting = state.packets.into_iter().map(|packet| packet.0).collect();
        Ok(())
    }
}
