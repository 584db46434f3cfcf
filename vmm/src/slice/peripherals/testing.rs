//! Devices for tests of other rooms.

use super::saved::{DeviceState, DevicesState, FrontEndState, ServedQueue};
use devices::msix::MsixView;
use devices::pci::PciRoot;
use devices::saved::{QueueState, WorkerState};
use devices::virtio::rng;
use devices::{
    Chipset, ChipsetConfig, GuestClock, HotplugConfig, InterruptMessage, InterruptSink,
    ShutdownCause, ShutdownSink,
};
use migrate::Saved;
use std::sync::Arc;
use wire::DeviceId;

struct Nowhere;

impl InterruptSink for Nowhere {
    fn deliver(&self, _: InterruptMessage) {}
}

impl ShutdownSink for Nowhere {
    fn shutdown(&self, _: ShutdownCause) {}
}

impl GuestClock for Nowhere {
    fn ticks(&self) -> u64 {
        1 << 40
    }

    fn frequency_hz(&self) -> u64 {
        1_000_000_000
    }
}

/// Platform devices that nobody is connected to.
pub(in crate::slice) fn chipset() -> Chipset {
    chipset_of(2, None)
}

/// Those of a machine of so many vCPUs, and how many of them its guest has at the start if others can come.
pub(in crate::slice) fn chipset_of(vcpus: u32, present: Option<u32>) -> Chipset {
    let console = Box::new(std::io::sink());
    let (interrupts, shutdown, clock) = (Arc::new(Nowhere), Arc::new(Nowhere), Arc::new(Nowhere));
    let hotplug = present.map(|present| HotplugConfig {
        present,
        vcpu_nodes: (0..vcpus).map(|_| 0).collect(),
        nodes: 2,
    });
    Chipset::new(ChipsetConfig { vcpus, hotplug, console, interrupts, shutdown, clock })
}

/// The form of a bus with a source of randomness, whose queue is served here or not.
pub(in crate::slice) fn devices_state(served: bool) -> DevicesState {
    let bus = PciRoot::new(vec![rng::shape()]).unwrap();
    let raised = MsixView::new(bus.vectors(DeviceId(0)), Arc::new(Nowhere)).save();
    let queue = QueueState { size: 8, next_avail: 3, next_used: 3, broken: false };
    let queue = ServedQueue { queue: 0, worker: WorkerState::Queue(queue) };
    let queues = served.then_some(queue).into_iter().collect();
    let device = DeviceState { front_end: FrontEndState::Nothing, raised, queues };
    DevicesState { bus: bus.save(), devices: vec![device] }
}
