//! What a driver says of its queues before they run.

use crate::msix::{MsixVector, VECTORS_MAX};

/// Most queues of a device: each has an entry in the MSI-X table, one is for configuration.
pub const QUEUES_MAX: usize = VECTORS_MAX - 1;

/// A virtqueue of a device (virtio 1.3, 2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueIndex(pub u16);

/// What the driver said of a queue before it enabled it (virtio 1.3, 4.1.4.3). The size is a power
/// of two within the device's limit and the addresses are aligned; whether they lie in guest memory is
/// not known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSetup {
    /// Entries.
    pub size: u16,
    /// Guest-physical address of the descriptor table.
    pub descriptors: u64,
    /// Guest-physical address of the driver area, the available ring.
    pub driver_area: u64,
    /// Guest-physical address of the device area, the used ring.
    pub device_area: u64,
    /// What to raise when buffers were used; `None` when the driver polls.
    pub vector: Option<MsixVector>,
}

/// A device that its driver has brought to life: features are agreed and `DRIVER_OK` is set
/// (virtio 1.3, 3.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activation {
    /// Agreed feature bits.
    pub features: u64,
    /// Enabled queues in ascending order. Nothing of them changes, and none is added, until reset.
    pub queues: Vec<(QueueIndex, QueueSetup)>,
}
