//! The platform devices, which the coordinator has, as vCPUs reach them on any slice.

use super::channels::Channels;
use super::events::SliceEvent;
use devices::Bus;
use std::sync::Arc;
use std::time::Duration;
use wire::control::{DeviceCall, Space};

/// A device call that has no answer by then means that the coordinator hangs. It may be behind a change of the devices that waits for a
/// disk, and be such a change itself; who does not apply one is named before.
const CALL_LIMIT: Duration = Duration::from_secs(150);

/// Calls to the device thread of the coordinator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceCalls<'a>(pub(crate) &'a Channels);

impl DeviceCalls<'_> {
    /// Waits for the answer.
    pub(crate) fn call(
        self,
        space: Space,
        write: bool,
        address: u64,
        length: usize,
        data: u64,
    ) -> u64 {
        let Ok(length) = u8::try_from(length) else { return u64::MAX };
        let (id, answer) = self.0.calls.begin();
        let call = DeviceCall { id, space, write, address, length, data };
        self.0.call_devices(call);
        answer.recv_timeout(CALL_LIMIT).unwrap_or_else(|_| {
            let text = format!("no answer to a device call at {address:#x}");
            self.0.event(SliceEvent::Fatal(text));
            u64::MAX
        })
    }
}

/// The platform devices: those of this slice while it coordinates, else by a call to the slice that does. Which one that
/// is changes only while no vCPU runs.
#[derive(Debug)]
pub(crate) struct PlatformBus(pub(crate) Arc<Channels>);

impl PlatformBus {
    fn read(&self, space: Space, address: u64, data: &mut [u8]) {
        let value = DeviceCalls(&self.0).call(space, false, address, data.len(), 0).to_le_bytes();
        let count = data.len().min(8);
        data[..count].copy_from_slice(&value[..count]);
    }

    fn write(&self, space: Space, address: u64, data: &[u8]) {
        DeviceCalls(&self.0).call(space, true, address, data.len(), little_endian(data));
    }
}

impl Bus for PlatformBus {
    fn pio_read(&self, port: u16, data: &mut [u8]) {
        match &*self.0.chipset.load() {
            Some(chipset) => chipset.pio_read(port, data),
            None => self.read(Space::Port, u64::from(port), data),
        }
    }
    fn pio_write(&self, port: u16, data: &[u8]) {
        match &*self.0.chipset.load() {
            Some(chipset) => chipset.pio_write(port, data),
            None => self.write(Space::Port, u64::from(port), data),
        }
    }
    fn mmio_read(&self, address: u64, data: &mut [u8]) {
        match &*self.0.chipset.load() {
            Some(chipset) => chipset.mmio_read(address, data),
            None => self.read(Space::Memory, address, data),
        }
    }
    fn mmio_write(&self, address: u64, data: &[u8]) {
        match &*self.0.chipset.load() {
            Some(chipset) => chipset.mmio_write(address, data),
            None => self.write(Space::Memory, address, data),
        }
    }
}

/// Carries a call out and gives what was read.
pub(crate) fn access(bus: &impl Bus, call: &DeviceCall) -> u64 {
    let mut bytes = call.data.to_le_bytes();
    let data = &mut bytes[..usize::from(call.length.min(8))];
    match (call.space, u16::try_from(call.address)) {
        (Space::Memory, _) if call.write => bus.mmio_write(call.address, data),
        (Space::Memory, _) => bus.mmio_read(call.address, data),
        (Space::Port, Ok(port)) if call.write => bus.pio_write(port, data),
        (Space::Port, Ok(port)) => bus.pio_read(port, data),
        // The decoder lets no such port through.
        (Space::Port, Err(_)) => data.fill(0xff),
    }
    little_endian(data)
}

/// The bytes of a register of so many bytes.
pub(crate) fn written(bytes: &[u8; 8], length: u8) -> &[u8] {
    &bytes[..usize::from(length.min(8))]
}

pub(crate) fn little_endian(data: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let count = data.len().min(8);
    bytes[..count].copy_from_slice(&data[..count]);
    u64::from_le_bytes(bytes)
}
