//! The queues of a slice at rest, and the form of its devices then.
//!
//! ```text
//!   workers serve --rest_queues--> nothing is asked of a back end, here or elsewhere --save--> DevicesState
//!        ^                                   |
//!        +-----------resume_queues-----------+
//! ```

use super::queues::Slot;
use super::saved::{DeviceState, DevicesState};
use super::{SliceDevices, lock};
use devices::delegate::StillInFlight;
use devices::virtio::RestError;
use migrate::Saved;
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::DeviceId;

/// Why the queues of a slice are not at rest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum QueuesError {
    /// A worker here.
    #[error(transparent)]
    Worker(#[from] RestError),
    /// Requests between slices.
    #[error(transparent)]
    Delegated(#[from] StillInFlight),
}

impl SliceDevices {
    /// Brings all queues that are served here to rest, and waits until nothing is asked of a back end of another slice or
    /// by one. vCPUs are at rest on all slices; frames are still delivered.
    pub(crate) fn rest_queues(&self, within: Duration) -> Result<(), QueuesError> {
        let deadline = Instant::now() + within;
        lock(&self.queues).rest(within)?;
        let left = deadline.saturating_duration_since(Instant::now());
        let idle = self.exchange.wait_until_idle(left);
        if idle.is_err() {
            self.resume_queues();
        }
        Ok(idle?)
    }

    /// The queues are served again.
    pub(crate) fn resume_queues(&self) {
        lock(&self.queues).resume();
    }

    /// The form, while queues and device thread are at rest. What back ends have brought meanwhile is in it.
    ///
    /// # Errors
    /// A worker does not answer within this time. All of them go on then.
    pub(crate) fn save(&self, within: Duration) -> Result<DevicesState, QueuesError> {
        let mut served = lock(&self.queues).rest(within)?;
        let bus = self.bus_state();
        let device = |(number, slot): (u16, &Slot)| DeviceState {
            front_end: slot.front_end.save(),
            raised: slot.msix.save(),
            queues: served.remove(&DeviceId(number)).unwrap_or_default(),
        };
        Ok(DevicesState { bus, devices: (0..).zip(&self.slots).map(device).collect() })
    }
}
