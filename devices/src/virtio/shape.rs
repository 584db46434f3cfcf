//! What a device is to its driver: type, features, queues and configuration. Each front end makes its own
//! ([`blk::shape`](super::blk::shape) and the like); nothing here knows them.

use super::{F_EVENT_IDX, F_INDIRECT, F_VERSION_1};
use crate::byte_string;
use migrate::{Invalid, SavedState};
use serde::{Deserialize, Serialize};

/// Most bytes of a configuration that the host may change.
const CHANGES_MAX: usize = 8;

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
    /// What of it the host may change.
    pub(super) changes: ConfigChanges,
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

/// Bits of a device's configuration that the host may change while the VM runs; all else of it follows from the shape.
/// Between these bits there are zeros only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConfigChanges {
    /// Where the bytes with these bits begin.
    pub(super) at: usize,
    /// The bits; at most 8 bytes.
    pub(super) bits: &'static [u8],
}

impl ConfigChanges {
    /// The host changes nothing.
    pub(super) const NONE: Self = Self { at: 0, bits: &[] };

    /// Whether the host may say this.
    fn permit(&self, at: usize, bytes: &[u8]) -> bool {
        let within = bytes.iter().zip(self.bits).all(|(byte, bits)| byte & !bits == 0);
        within && at == self.at && bytes.len() == self.bits.len()
    }
}

/// What the configuration of a device says that the host may change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfigState {
    /// Type of the device (virtio 1.3, 5).
    pub type_id: u32,
    /// The bytes that may change: of a disk its capacity (5.2.4), of a network its status (5.1.4), of others none.
    #[serde(with = "byte_string")]
    pub bytes: Vec<u8>,
}

impl SavedState for DeviceConfigState {
    const NAME: &'static str = "virtio configuration";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = CHANGES_MAX + 24;

    fn check(&self) -> Result<(), Invalid> {
        let few = self.bytes.len() <= CHANGES_MAX;
        Invalid::unless(few, "bytes", "more than any device may change")
    }
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

    /// Puts a change into the configuration. True when that is news. What the host may not change stays.
    pub(crate) fn change(&self, change: &DeviceChange, config: &mut [u8]) -> bool {
        let DeviceChange::Config { type_id, at, bytes } = change else { return false };
        if *type_id != self.type_id || !self.changes.permit(*at, bytes) {
            return false;
        }
        let place = config.get_mut(*at..).and_then(|rest| rest.get_mut(..bytes.len()));
        let Some(place) = place else { return false };
        let news = place != bytes;
        place.copy_from_slice(bytes);
        news
    }

    /// What a configuration of this shape says that may change.
    pub(crate) fn config_state(&self, config: &[u8]) -> DeviceConfigState {
        let ConfigChanges { at, bits } = self.changes;
        let bytes = config.iter().skip(at).take(bits.len()).copied().collect();
        DeviceConfigState { type_id: self.type_id, bytes }
    }

    /// The configuration that says this.
    ///
    /// # Errors
    /// It is that of another kind of device, or says what the host cannot have said.
    pub(crate) fn config_of(&self, state: DeviceConfigState) -> Result<Vec<u8>, Invalid> {
        let DeviceConfigState { type_id, bytes } = state;
        let same = type_id == self.type_id;
        Invalid::unless(same, "config", "that of another kind of device")?;
        let permitted = self.changes.permit(self.changes.at, &bytes);
        Invalid::unless(permitted, "config", "not what may change of this device")?;
        let mut config = self.config();
        self.change(&DeviceChange::Config { type_id, at: self.changes.at, bytes }, &mut config);
        Ok(config)
    }
}
