//! What a device is to its driver: type, features, queues and configuration.

use super::{F_EVENT_IDX, F_INDIRECT, F_VERSION_1, QUEUE_SIZE_MAX, blk, net};
use crate::back_end::{DiskShape, NicShape};
use migrate::Invalid;
use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_ids::{
    VIRTIO_ID_BLOCK, VIRTIO_ID_CONSOLE, VIRTIO_ID_NET, VIRTIO_ID_RNG,
};

/// Bytes of a console's configuration; nothing in it is offered (5.3.4).
const CONSOLE_CONFIG_BYTES: usize = 12;

/// A device to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceShape {
    /// A disk (5.2).
    Disk {
        /// What it is.
        disk: DiskShape,
        /// Request queues.
        queues: u16,
    },
    /// A network device (5.1): receive and transmit queue of pair 0, of pair 1, ..., then the control
    /// queue.
    Nic(NicShape),
    /// A source of randomness (5.4).
    Rng,
    /// A console with one port (5.3): receive and transmit queue.
    Console,
}

/// What may happen to a device on the host's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// It cannot go on until it is reset (2.1.2).
    NeedsReset,
    /// A network's link is up or down (5.1.4).
    Link {
        /// Up.
        up: bool,
    },
    /// A disk has another size (5.2.4).
    Sectors(u64),
}

/// What the configuration of a device says that the host may change; the rest of it follows from the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum DeviceConfigState {
    /// A disk's size in sectors of 512 bytes (5.2.4).
    Disk {
        /// Sectors.
        sectors: u64,
    },
    /// A network's link (5.1.4).
    Nic {
        /// It is up.
        link_up: bool,
    },
    /// Nothing: a source of randomness.
    Rng,
    /// Nothing: a console.
    Console,
}

impl DeviceShape {
    /// Number of queues.
    #[must_use]
    pub fn queues(&self) -> usize {
        match self {
            Self::Disk { queues, .. } => usize::from(*queues),
            Self::Nic(nic) => net::queues(nic.pairs),
            Self::Rng => 1,
            Self::Console => 2,
        }
    }

    /// Feature bits offered.
    #[must_use]
    pub fn features(&self) -> u64 {
        let own = match self {
            Self::Disk { disk, queues } => blk::features(disk, *queues),
            Self::Nic(nic) => net::features(nic),
            Self::Rng | Self::Console => 0,
        };
        own | F_VERSION_1 | F_INDIRECT | F_EVENT_IDX
    }

    /// Device type (5).
    pub(crate) fn type_id(&self) -> u16 {
        let id = match self {
            Self::Disk { .. } => VIRTIO_ID_BLOCK,
            Self::Nic(_) => VIRTIO_ID_NET,
            Self::Rng => VIRTIO_ID_RNG,
            Self::Console => VIRTIO_ID_CONSOLE,
        };
        u16::try_from(id).unwrap_or(0)
    }

    /// PCI class: storage, network, none of the others, communication.
    pub(crate) fn class(&self) -> u32 {
        match self {
            Self::Disk { .. } => 0x01_8000,
            Self::Nic(_) => 0x02_0000,
            Self::Rng => 0xff_0000,
            Self::Console => 0x07_8000,
        }
    }

    /// The device's own configuration; the driver writes none of it.
    pub(crate) fn config(&self) -> Vec<u8> {
        match self {
            Self::Disk { disk, queues } => blk::config(disk, *queues, QUEUE_SIZE_MAX),
            Self::Nic(nic) => net::config(nic),
            Self::Rng => Vec::new(),
            Self::Console => vec![0; CONSOLE_CONFIG_BYTES],
        }
    }

    /// Puts a change into the configuration. True when that is news.
    pub(crate) fn change(&self, change: &DeviceChange, config: &mut [u8]) -> bool {
        let (at, bytes) = match (self, change) {
            (Self::Disk { .. }, DeviceChange::Sectors(sectors)) => {
                (blk::CONFIG_CAPACITY, sectors.to_le_bytes().to_vec())
            }
            (Self::Nic(_), DeviceChange::Link { up }) => {
                (net::CONFIG_STATUS, u16::from(*up).to_le_bytes().to_vec())
            }
            _ => return false,
        };
        let place = &mut config[at..at + bytes.len()];
        let news = place != bytes;
        place.copy_from_slice(&bytes);
        news
    }

    /// What a configuration of this shape says that may change.
    pub(crate) fn config_state(&self, config: &[u8]) -> DeviceConfigState {
        let at = |from: usize, bytes: usize| {
            let mut value = [0; 8];
            let there = config.iter().skip(from).take(bytes);
            value.iter_mut().zip(there).for_each(|(to, byte)| *to = *byte);
            u64::from_le_bytes(value)
        };
        match self {
            Self::Disk { .. } => DeviceConfigState::Disk { sectors: at(blk::CONFIG_CAPACITY, 8) },
            Self::Nic(_) => DeviceConfigState::Nic { link_up: at(net::CONFIG_STATUS, 2) & 1 != 0 },
            Self::Rng => DeviceConfigState::Rng,
            Self::Console => DeviceConfigState::Console,
        }
    }

    /// The configuration that says this.
    ///
    /// # Errors
    /// It is that of another kind of device.
    pub(crate) fn config_of(&self, state: &DeviceConfigState) -> Result<Vec<u8>, Invalid> {
        let mut config = self.config();
        let change = match (self, *state) {
            (Self::Disk { .. }, DeviceConfigState::Disk { sectors }) => {
                DeviceChange::Sectors(sectors)
            }
            (Self::Nic(_), DeviceConfigState::Nic { link_up: up }) => DeviceChange::Link { up },
            (Self::Rng, DeviceConfigState::Rng) | (Self::Console, DeviceConfigState::Console) => {
                return Ok(config);
            }
            _ => return Err(Invalid::new("config", "that of another kind of device")),
        };
        self.change(&change, &mut config);
        Ok(config)
    }
}
