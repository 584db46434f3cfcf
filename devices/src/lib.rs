//! Platform devices of the virtual machine, its ACPI tables and its memory map.
//!
//! A device never knows whether the vCPU that it interrupts, or that accesses it, is local: it
//! sees a [`Bus`] access coming in and sends an [`InterruptMessage`] out. All devices live in one
//! [`Chipset`] on the slice that coordinates; the other slices forward their accesses to it.
//!
//! [`layout`] says where RAM lies and [`acpi`] tells the guest about vCPUs, memory and nodes.

pub mod acpi;
pub mod back_end;
mod byte_string;
mod chipset;
mod cmos;
pub mod delegate;
mod fence;
pub mod generation;
mod gpe;
mod hotplug;
mod ioapic;
pub mod layout;
pub mod msix;
pub mod pci;
mod pit;
mod pm;
pub mod saved;
mod serial;
mod traits;
pub mod virtio;

pub use chipset::{Chipset, ChipsetConfig};
pub use fence::{Fence, NotOurs, Standing};
pub use generation::GenerationId;
pub use hotplug::{HotplugConfig, Plug, PlugError, PlugState};
pub use ioapic::{IOAPIC_BASE, IOAPIC_PINS};
pub use traits::{
    Bus, DeliveryMode, GuestClock, InterruptMessage, InterruptSink, SharedBus, ShutdownCause,
    ShutdownSink,
};
