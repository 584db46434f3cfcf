//! Saved forms of all devices: each lies beside its device, this module only gathers them.
//!
//! ```text
//!   Chipset --save--> ChipsetState: serial line, timer, CMOS, PM1, events, IOAPIC, CPU hot-plug if there is
//!   PciRoot --save--> PciRootState: for each function its registers, MSI-X table and virtio transport
//!   MsixView, ConsoleInput, NetDevice, Vsock --save--> what one slice keeps of a device
//!   WorkerThread --rest--> WorkerState: how far each ring has been served
//! ```
//! A state is saved while its part is at rest. What follows from the machine's configuration, from guest memory or from
//! another state is not in it.

#[cfg(test)]
pub(crate) mod testing;

pub use crate::chipset::ChipsetState;
pub use crate::cmos::CmosState;
pub use crate::gpe::EventBlockState;
pub use crate::hotplug::HotplugState;
pub use crate::ioapic::{IoApicPinState, IoApicState};
pub use crate::msix::MsixViewState;
pub use crate::pci::{FunctionState, MsixEntryState, MsixTableState, PciRootState, WindowState};
pub use crate::pit::PitState;
pub use crate::pm::Pm1State;
pub use crate::serial::SerialLineState;
pub use crate::virtio::console::ConsoleInputState;
pub use crate::virtio::net::NetDeviceState;
pub use crate::virtio::vsock::VsockState;
pub use crate::virtio::{
    DeviceConfigState, NetPairState, PacketState, QueueRegistersState, QueueState, TransportState,
    WorkerState,
};
