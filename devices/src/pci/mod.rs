//! PCI: one bus of virtio functions behind ECAM, as a replicated state machine.
//!
//! Every slice has a replica of the [`PciRoot`]. One slice orders all writes and sends each to all
//! replicas; a vCPU goes on when all have applied its write. So a replica may be read locally, and
//! each slice does what concerns it of the effects of a write:
//!
//! ```text
//!   vCPU -- write --> doorbell()? -- yes --> the worker of that queue (no state, not ordered)
//!                          | no
//!                          v
//!                    order of writes ==> write() on every replica --> PciEffect, the same on all
//!   vCPU -- read  --> read() of its own slice's replica              (each slice acts on its own)
//! ```
//!
//! The root is pure: no clock, no I/O, no threads. Replicas that began alike and were given the same
//! writes in the same order are equal. Reads change nothing: there is no INTx, so nothing has to be
//! acknowledged by reading, and the ISR status is always 0.
//!
//! Sections are those of the PCI Express Base Specification 6.0 ("`PCIe`"), the PCI Local Bus
//! Specification 3.0 ("PCI") and of virtio 1.3.

mod config_space;
mod function;
mod msix;
mod root;

pub use function::{FunctionState, WindowState};
pub use msix::{MsixEntryState, MsixTableState};
pub use root::{PciRoot, PciRootState};

pub use wire::DeviceId;

use crate::msix::MsixVector;
use crate::traits::InterruptMessage;
use crate::virtio::{Activation, QUEUES_MAX, QueueIndex};
use thiserror::Error;

/// What follows from a write. Every replica computes the same; each slice acts on what it is home to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PciEffect {
    /// Workers of these queues start, each in the slice of its queue's home.
    Activated {
        /// The device.
        device: DeviceId,
        /// Its features and queues.
        activation: Activation,
    },
    /// All workers of an activated device stop; the write is acknowledged after they have. Pending
    /// interrupts of the device are forgotten ([`MsixView::forget`](crate::msix::MsixView::forget)).
    Reset {
        /// The device.
        device: DeviceId,
    },
    /// An entry of the MSI-X table, or what masks it, has changed: [`MsixView::route`](crate::msix::MsixView::route) on every
    /// slice with workers of the device.
    MsixChanged {
        /// The device.
        device: DeviceId,
        /// The entry.
        vector: MsixVector,
        /// What is sent now; `None` while it is masked or cannot be sent.
        route: Option<InterruptMessage>,
    },
    /// The driver is to look at the status or the configuration of the device: exactly one slice
    /// raises this vector.
    ConfigChanged {
        /// The device.
        device: DeviceId,
        /// What to raise.
        vector: MsixVector,
    },
    /// What [`PciRoot::doorbells`] gives is something else now.
    DoorbellsMoved {
        /// The device whose BAR has moved or was switched. Where BARs lie one over the other, this
        /// uncovers or covers the doorbells of another device.
        device: DeviceId,
    },
    /// A doorbell was rung through the configuration space (virtio 1.3, 4.1.4.9): the home of the
    /// queue wakes its worker.
    Doorbell {
        /// The device.
        device: DeviceId,
        /// The queue.
        queue: QueueIndex,
    },
}

/// Where the driver rings for a queue, for an ioeventfd of any access size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorbellAddress {
    /// The device.
    pub device: DeviceId,
    /// The queue.
    pub queue: QueueIndex,
    /// Guest-physical address; no other queue has it.
    pub address: u64,
}

/// Machines that cannot be made.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PciError {
    /// Slots 1 to 31 of one bus.
    #[error("{devices} PCI devices, {DEVICES_MAX} are possible")]
    TooManyDevices {
        /// How many were asked for.
        devices: usize,
    },
    /// Not one queue, or more than have an interrupt each.
    #[error("PCI device {} has {queues} queues, 1 to {QUEUES_MAX} are possible", device.0)]
    Queues {
        /// The device.
        device: DeviceId,
        /// How many were asked for.
        queues: usize,
    },
}

/// Most devices: all slots of the bus but that of the host bridge.
pub const DEVICES_MAX: usize = 31;
#[cfg(test)]
mod tests;
