//! What a vCPU's access to a register comes to: the replica of PCI on its own slice, a doorbell, a change
//! for all slices, or a device that only the coordinator has.

use super::SliceDevices;
use crate::slice::bus::{DeviceCalls, little_endian};
use crate::slice::channels::Channels;
use devices::{Bus, SharedBus};
use std::sync::Arc;
use wire::control::Space;

/// The bus of a slice of a VM with PCI.
pub(crate) struct PciBus {
    pub(crate) devices: Arc<SliceDevices>,
    pub(crate) channels: Arc<Channels>,
    /// Everything else.
    pub(crate) rest: SharedBus,
}

impl PciBus {
    fn ring(&self, device: u16, queue: u16) {
        let from = self.channels.local();
        self.devices.ring_at_its_place(&self.channels, from, (device, queue));
    }
}

impl Bus for PciBus {
    fn pio_read(&self, port: u16, data: &mut [u8]) {
        self.rest.pio_read(port, data);
    }

    fn pio_write(&self, port: u16, data: &[u8]) {
        self.rest.pio_write(port, data);
    }

    fn mmio_read(&self, address: u64, data: &mut [u8]) {
        if !self.devices.read(address, data) {
            self.rest.mmio_read(address, data);
        }
    }

    fn mmio_write(&self, address: u64, data: &[u8]) {
        if !self.devices.claims(address) {
            self.rest.mmio_write(address, data);
        } else if let Some((device, queue)) = self.devices.doorbell(address, data) {
            self.ring(device, queue);
        } else {
            let value = little_endian(data);
            DeviceCalls(&self.channels).call(Space::Memory, true, address, data.len(), value);
        }
    }
}
