//! What a device is to its driver: type, features, queues and configuration. Each front end makes its own
//! ([`blk::shape`](super::blk::shape) and the like); nothing here knows them.

use super::{F_EVENT_IDX, F_INDIRECT, F_VERSION_1};

/// A device to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceShape {
    /// Device type (5).
    pub(super) type_id: u32,
    /// Class, subclass and interface on PCI.
    pub(super) class: u32,
    /// Feature bits of this type of device.
    pub(super) features: u64,
    pub(super) queues: usize,
    /// The device's own configuration at the start.
    pub(super) config: Vec<u8>,
}

/// What may happen to a device on the host's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// It cannot go on until it is reset (2.1.2).
    NeedsReset,
    /// Its configuration changes. The front end of this type of device makes these.
    Config {
        /// Type of the device (5). Devices of other types ignore it.
        type_id: u32,
        /// Where.
        at: usize,
        /// What is there now.
        bytes: Vec<u8>,
    },
}

impl DeviceShape {
    /// Number of queues.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.queues
    }

    /// Feature bits offered.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features | F_VERSION_1 | F_INDIRECT | F_EVENT_IDX
    }

    /// Device type (5).
    pub(crate) fn type_id(&self) -> u16 {
        u16::try_from(self.type_id).unwrap_or(0)
    }

    /// Class on PCI.
    pub(crate) fn class(&self) -> u32 {
        self.class
    }

    /// The device's own configuration; the driver writes none of it.
    pub(crate) fn config(&self) -> Vec<u8> {
        self.config.clone()
    }

    /// Puts a change into the configuration. True when that is news.
    pub(crate) fn change(&self, change: &DeviceChange, config: &mut [u8]) -> bool {
        let DeviceChange::Config { type_id, at, bytes } = change else { return false };
        let place = config.get_mut(*at..).and_then(|rest| rest.get_mut(..bytes.len()));
        let Some(place) = place.filter(|_| *type_id == self.type_id) else { return false };
        let news = place != bytes;
        place.copy_from_slice(bytes);
        news
    }
}
