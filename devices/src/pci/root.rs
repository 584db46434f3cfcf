//! The root: which function an address belongs to.

mod saved;

pub use saved::PciRootState;

use super::config_space::{ConfigSpace, ECAM_FUNCTION_BYTES, Identity};
use super::function::{BAR_BYTES, Function};
use super::{DEVICES_MAX, DeviceId, DoorbellAddress, PciEffect, PciError};
use crate::layout::{ECAM_END, ECAM_START, PCI_WINDOW_END, PCI_WINDOW_START};
use crate::virtio::{Activation, DeviceChange, DeviceShape, QUEUES_MAX, QueueIndex};

/// Functions of a slot; only the first is there.
const FUNCTIONS_PER_SLOT: u64 = 8;

const _: () = assert!(
    PCI_WINDOW_START.is_multiple_of(BAR_BYTES as u64)
        && (PCI_WINDOW_END - PCI_WINDOW_START) / BAR_BYTES as u64 >= DEVICES_MAX as u64
);

/// The PCI bus of a VM: a replica of it. The host bridge is 00:00.0, device `n` is 00:(n+1).0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciRoot {
    bridge: ConfigSpace,
    functions: Vec<Function>,
}

/// Where an address leads.
enum Target {
    Bridge { offset: usize },
    Config { function: usize, offset: usize },
    Bar { function: usize, offset: u32 },
}

impl PciRoot {
    /// The bus with these devices, in this order, at power-on. Every slice must be given the same.
    ///
    /// # Errors
    ///
    /// More devices than slots, or a device without queues or with too many.
    pub fn new(devices: Vec<DeviceShape>) -> Result<Self, PciError> {
        if devices.len() > DEVICES_MAX {
            return Err(PciError::TooManyDevices { devices: devices.len() });
        }
        // The bridge that QEMU's PCIe machines have; drivers know it to need no care.
        let bridge = Identity { vendor: 0x1b36, device: 0x0008, class: 0x06_0000, revision: 0 };
        let mut functions = Vec::new();
        let bases = (PCI_WINDOW_START..PCI_WINDOW_END).step_by(BAR_BYTES as usize);
        for ((number, shape), base) in (0..).zip(devices).zip(bases) {
            let (device, queues) = (DeviceId(number), shape.queues());
            if !(1..=QUEUES_MAX).contains(&queues) {
                return Err(PciError::Queues { device, queues });
            }
            functions.push(Function::new(device, shape, u32::try_from(base).unwrap_or(0)));
        }
        Ok(Self { bridge: ConfigSpace::new(bridge), functions })
    }

    /// True for all addresses that belong to PCI, whether or not anything answers there now: ECAM and
    /// the window of the BARs. Always the same.
    #[must_use]
    pub fn claims(&self, address: u64) -> bool {
        (ECAM_START..ECAM_END).contains(&address)
            || (PCI_WINDOW_START..PCI_WINDOW_END).contains(&address)
    }

    /// The devices in order.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &DeviceShape)> {
        self.functions.iter().zip(0..).map(|(function, id)| (DeviceId(id), function.shape()))
    }

    /// Entries of a device's MSI-X table; 0 for a device that does not exist.
    #[must_use]
    pub fn vectors(&self, device: DeviceId) -> u16 {
        self.functions.get(usize::from(device.0)).map_or(0, Function::vectors)
    }

    /// Features and queues of a device that a driver has brought up.
    #[must_use]
    pub fn activation(&self, device: DeviceId) -> Option<Activation> {
        self.functions.get(usize::from(device.0))?.activation()
    }

    /// Where drivers ring now: every queue of every device whose BAR answers.
    #[must_use]
    pub fn doorbells(&self) -> Vec<DoorbellAddress> {
        let mut all = Vec::new();
        for (function, id) in self.functions.iter().zip(0..) {
            let Some(base) = function.base() else { continue };
            all.extend(function.doorbells().map(|(queue, offset)| DoorbellAddress {
                device: DeviceId(id),
                queue,
                address: base + u64::from(offset),
            }));
        }
        // Where BARs overlap, the first device answers.
        all.retain(|bell| self.doorbell(bell.address, &[0, 0]) == Some((bell.device, bell.queue)));
        all
    }

    /// The queue that a write to this address rings for, whatever is written (virtio 1.3, 4.1.5.2).
    /// Such a write need not be ordered, and [`Self::write`] ignores it.
    #[must_use]
    pub fn doorbell(&self, address: u64, data: &[u8]) -> Option<(DeviceId, QueueIndex)> {
        let Some(Target::Bar { function, offset }) = self.target(address, data.len()) else {
            return None;
        };
        let queue = self.functions[function].queue_at(offset)?;
        u16::try_from(function).ok().map(|id| (DeviceId(id), queue))
    }

    /// Reads 1 to 8 bytes. Where nothing answers, all ones.
    pub fn read(&self, address: u64, data: &mut [u8]) {
        match self.target(address, data.len()) {
            Some(Target::Bridge { offset }) => self.bridge.read(offset, data),
            Some(Target::Config { function, offset }) => {
                self.functions[function].read_config(offset, data);
            }
            Some(Target::Bar { function, offset }) => {
                self.functions[function].read_bar(offset, data);
            }
            None => data.fill(0xff),
        }
    }

    /// Writes 1 to 8 bytes; appends what follows to `effects`. What makes no sense is ignored, as by
    /// hardware.
    pub fn write(&mut self, address: u64, data: &[u8], effects: &mut Vec<PciEffect>) {
        match self.target(address, data.len()) {
            Some(Target::Bridge { offset }) => self.bridge.write(offset, data),
            Some(Target::Config { function, offset }) => {
                self.functions[function].write_config(offset, data, effects);
            }
            Some(Target::Bar { function, offset }) => {
                self.functions[function].write_bar(offset, data, effects);
            }
            None => {}
        }
    }

    /// A change on the host's side, ordered like a write. Devices that do not exist and what is no
    /// news are ignored.
    pub fn change(
        &mut self,
        device: DeviceId,
        change: &DeviceChange,
        effects: &mut Vec<PciEffect>,
    ) {
        if let Some(function) = self.functions.get_mut(usize::from(device.0)) {
            function.change(change, effects);
        }
    }

    /// Who answers an access; `None` when nobody does, or it reaches over the end of a function.
    fn target(&self, address: u64, bytes: usize) -> Option<Target> {
        let bytes = u64::try_from(bytes).ok()?;
        if (ECAM_START..ECAM_END).contains(&address) {
            let (slot, offset) = (
                (address - ECAM_START) / ECAM_FUNCTION_BYTES,
                (address - ECAM_START) % ECAM_FUNCTION_BYTES,
            );
            if !slot.is_multiple_of(FUNCTIONS_PER_SLOT) || offset + bytes > ECAM_FUNCTION_BYTES {
                return None;
            }
            let slot = usize::try_from(slot / FUNCTIONS_PER_SLOT).ok()?;
            let offset = usize::try_from(offset).ok()?;
            let Some(function) = slot.checked_sub(1) else {
                return Some(Target::Bridge { offset });
            };
            return (function < self.functions.len())
                .then_some(Target::Config { function, offset });
        }
        if !(PCI_WINDOW_START..PCI_WINDOW_END).contains(&address) {
            return None;
        }
        let mut functions = self.functions.iter().enumerate();
        let (function, offset) = functions
            .find_map(|(number, function)| Some((number, function.offset_of(address)?)))?;
        (u64::from(offset) + bytes <= u64::from(BAR_BYTES))
            .then_some(Target::Bar { function, offset })
    }
}
