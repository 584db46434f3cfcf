//! A virtio function: configuration space, MSI-X and virtio transport behind one BAR.
//!
//! | offset in the BAR | what | virtio 1.3 |
//! |---|---|---|
//! | 0x0000 | common configuration | 4.1.4.3 |
//! | 0x1000 | ISR status, always 0 | 4.1.4.5 |
//! | 0x2000 | the device's own configuration | 4.1.4.6 |
//! | 0x3000 | notifications: four bytes for each queue | 4.1.4.4 |
//! | 0x4000 | MSI-X table | |
//! | 0x5000 | pending bits, always 0 | |

mod saved;

pub use saved::{FunctionState, WindowState};

use super::config_space::{ConfigSpace, Identity};
use super::msix::{ENTRY_BYTES, MsixTable};
use super::{DeviceId, PciEffect};
use crate::layout::{PCI_WINDOW_END, PCI_WINDOW_START};
use crate::msix::MsixVector;
use crate::traits::InterruptMessage;
use crate::virtio::{
    Activation, COMMON_BYTES, DeviceChange, DeviceShape, QUEUE_SIZE_MAX, QUEUES_MAX, QueueIndex,
    Transport, TransportEvent,
};

/// Bytes of a function's BAR.
pub(super) const BAR_BYTES: u32 = 0x1_0000;
const COMMON: u32 = 0x0000;
const ISR: u32 = 0x1000;
const DEVICE: u32 = 0x2000;
const NOTIFY: u32 = 0x3000;
const TABLE: u32 = 0x4000;
const PENDING: u32 = 0x5000;
/// Bytes of each of these parts.
const PART: u32 = 0x1000;
/// Bytes between the notification addresses of two queues (virtio 1.3, 4.1.4.4).
const NOTIFY_MULTIPLIER: u32 = 4;

const _: () = assert!((QUEUES_MAX + 1) * ENTRY_BYTES <= PART as usize);
const _: () = assert!(QUEUES_MAX * NOTIFY_MULTIPLIER as usize <= PART as usize);

const VENDOR_VIRTIO: u16 = 0x1af4;
/// Device ids begin here (virtio 1.3, 4.1.2).
const DEVICE_BASE: u16 = 0x1040;
const CAP_VENDOR: u8 = 0x09;
const CAP_MSIX: u8 = 0x11;
/// Bytes of `struct virtio_pci_cap`, and the offsets of its fields after id and link (4.1.4).
const CAP_BYTES: u8 = 16;
const CFG_BAR: usize = 4;
const CFG_OFFSET: usize = 8;
const CFG_LENGTH: usize = 12;
const CFG_DATA: usize = 16;

/// Types of capabilities (virtio 1.3, 4.1.4).
const TYPE_COMMON: u8 = 1;
const TYPE_NOTIFY: u8 = 2;
const TYPE_ISR: u8 = 3;
const TYPE_DEVICE: u8 = 4;
const TYPE_PCI: u8 = 5;

/// A function and its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    device: DeviceId,
    shape: DeviceShape,
    config: ConfigSpace,
    /// Offset of the capabilities whose registers do something.
    window: usize,
    msix_control: usize,
    msix: MsixTable,
    transport: Transport,
    device_config: Vec<u8>,
}

/// A virtio capability after id and link.
fn capability(kind: u8, offset: u32, length: u32, more: &[u8]) -> Vec<u8> {
    let bytes = CAP_BYTES + u8::try_from(more.len()).unwrap_or(0);
    let mut body = vec![bytes, kind, 0, 0, 0, 0];
    body.extend(offset.to_le_bytes());
    body.extend(length.to_le_bytes());
    body.extend(more);
    body
}

impl Function {
    /// A function at rest whose BAR lies at `base`.
    pub(super) fn new(device: DeviceId, shape: DeviceShape, base: u32) -> Self {
        let queues = u16::try_from(shape.queues()).unwrap_or(0);
        let vectors = queues + 1;
        let mut config = ConfigSpace::new(Identity {
            vendor: VENDOR_VIRTIO,
            device: DEVICE_BASE + shape.type_id(),
            class: shape.class(),
            revision: 1,
        });
        config.add_bar(base, BAR_BYTES);
        let device_config = shape.config();
        let device_bytes = u32::try_from(device_config.len()).unwrap_or(0);
        let common_bytes = u32::try_from(COMMON_BYTES).unwrap_or(0);
        let notify_bytes = u32::from(queues) * NOTIFY_MULTIPLIER;
        let multiplier = NOTIFY_MULTIPLIER.to_le_bytes();
        let mut add = |body: Vec<u8>, may: &[u8]| config.add_capability(CAP_VENDOR, &body, may);
        add(capability(TYPE_COMMON, COMMON, common_bytes, &[]), &[]);
        add(capability(TYPE_NOTIFY, NOTIFY, notify_bytes, &multiplier), &[]);
        add(capability(TYPE_ISR, ISR, 1, &[]), &[]);
        if device_bytes > 0 {
            add(capability(TYPE_DEVICE, DEVICE, device_bytes, &[]), &[]);
        }
        // BAR, offset and length are the guest's; the data register is not memory (4.1.4.9).
        let may = [&[0, 0, 0xff, 0, 0, 0][..], &[0xff; 8]].concat();
        let window = add(capability(TYPE_PCI, 0, 0, &[0; 4]), &may);
        // Message control, table and pending bits with their BAR in bits 2-0 (PCI 6.8.2).
        let mut body = (vectors - 1).to_le_bytes().to_vec();
        body.extend(TABLE.to_le_bytes());
        body.extend(PENDING.to_le_bytes());
        let msix = config.add_capability(CAP_MSIX, &body, &[0, 0xc0]);
        Self {
            device,
            window,
            msix_control: msix + 2,
            msix: MsixTable::new(vectors),
            transport: Transport::new(shape.features(), queues, QUEUE_SIZE_MAX, vectors),
            device_config,
            config,
            shape,
        }
    }

    pub(super) fn shape(&self) -> &DeviceShape {
        &self.shape
    }

    pub(super) fn vectors(&self) -> u16 {
        self.msix.vectors()
    }

    /// What an entry of the MSI-X table sends now.
    pub(super) fn route(&self, vector: MsixVector) -> Option<InterruptMessage> {
        self.msix.route(vector)
    }

    /// Features and queues of an active device.
    pub(super) fn activation(&self) -> Option<Activation> {
        self.transport.activation()
    }

    /// Where the BAR answers; `None` while it does not, or lies outside the window of the bridge.
    pub(super) fn base(&self) -> Option<u64> {
        let within = |base: &u64| {
            *base >= PCI_WINDOW_START && *base + u64::from(BAR_BYTES) <= PCI_WINDOW_END
        };
        self.config.decoded().filter(within)
    }

    /// Offset of this address in the BAR.
    pub(super) fn offset_of(&self, address: u64) -> Option<u32> {
        let offset = address.checked_sub(self.base()?)?;
        u32::try_from(offset).ok().filter(|offset| *offset < BAR_BYTES)
    }

    /// The queue that is rung for by a write at this offset of the BAR.
    pub(super) fn queue_at(&self, offset: u32) -> Option<QueueIndex> {
        let within = offset.checked_sub(NOTIFY)?;
        let index = within / NOTIFY_MULTIPLIER;
        let exists = within.is_multiple_of(NOTIFY_MULTIPLIER)
            && usize::try_from(index).is_ok_and(|index| index < self.shape.queues());
        u16::try_from(index).ok().filter(|_| exists).map(QueueIndex)
    }

    /// Queues and the offsets in the BAR where they are rung for.
    pub(super) fn doorbells(&self) -> impl Iterator<Item = (QueueIndex, u32)> {
        let queues = u16::try_from(self.shape.queues()).unwrap_or(0);
        (0..queues).map(|index| (QueueIndex(index), NOTIFY + u32::from(index) * NOTIFY_MULTIPLIER))
    }

    /// Reads the configuration space.
    pub(super) fn read_config(&self, offset: usize, data: &mut [u8]) {
        self.config.read(offset, data);
        if offset == self.window + CFG_DATA
            && let Some(target) = self.window_target(data.len())
        {
            self.read_bar(target, data);
        }
    }

    /// Writes the configuration space.
    pub(super) fn write_config(
        &mut self,
        offset: usize,
        data: &[u8],
        effects: &mut Vec<PciEffect>,
    ) {
        if offset == self.window + CFG_DATA {
            if let Some(target) = self.window_target(data.len()) {
                if let Some(queue) = self.queue_at(target) {
                    effects.push(PciEffect::Doorbell { device: self.device, queue });
                }
                self.write_bar(target, data, effects);
            }
            return;
        }
        let before = self.base();
        self.config.write(offset, data);
        if self.base() != before {
            effects.push(PciEffect::DoorbellsMoved { device: self.device });
        }
        for vector in self.msix.set_control(self.config.word(self.msix_control)) {
            let route = self.msix.route(vector);
            effects.push(PciEffect::MsixChanged { device: self.device, vector, route });
        }
    }

    /// What the configuration access capability points at, for an access of so many bytes: these must
    /// be 1, 2 or 4 as the guest has said, and the offset a multiple of them (4.1.4.9.2).
    fn window_target(&self, bytes: usize) -> Option<u32> {
        let mut bar = [0];
        self.config.read(self.window + CFG_BAR, &mut bar);
        let offset = self.config.dword(self.window + CFG_OFFSET);
        let length = self.config.dword(self.window + CFG_LENGTH);
        let sound = matches!(length, 1 | 2 | 4)
            && usize::try_from(length) == Ok(bytes)
            && offset.is_multiple_of(length);
        (bar == [0] && sound && offset < BAR_BYTES).then_some(offset)
    }

    /// Reads the BAR. What is nowhere gives zeros.
    pub(super) fn read_bar(&self, offset: u32, data: &mut [u8]) {
        let within = usize::try_from(offset % PART).unwrap_or(0);
        let copy = |from: &[u8], data: &mut [u8]| {
            for (byte, at) in data.iter_mut().zip(within..) {
                *byte = from.get(at).copied().unwrap_or(0);
            }
        };
        match offset - offset % PART {
            COMMON => copy(&self.transport.read(), data),
            DEVICE => copy(&self.device_config, data),
            TABLE => self.msix.read(within, data),
            _ => data.fill(0),
        }
    }

    /// Writes the BAR. Doorbells are not state: they have been heard already.
    pub(super) fn write_bar(&mut self, offset: u32, data: &[u8], effects: &mut Vec<PciEffect>) {
        let (device, within) = (self.device, usize::try_from(offset % PART).unwrap_or(0));
        match offset - offset % PART {
            COMMON => effects.extend(self.transport.write(within, data).map(|event| match event {
                TransportEvent::Activated(activation) => {
                    PciEffect::Activated { device, activation }
                }
                TransportEvent::Reset => PciEffect::Reset { device },
            })),
            TABLE => effects.extend(self.msix.write(within, data).map(|vector| {
                let route = self.msix.route(vector);
                PciEffect::MsixChanged { device, vector, route }
            })),
            _ => {}
        }
    }

    /// Something happened to the device on the host's side.
    pub(super) fn change(&mut self, change: &DeviceChange, effects: &mut Vec<PciEffect>) {
        let news = if *change == DeviceChange::NeedsReset {
            self.transport.set_needs_reset()
        } else {
            self.shape.change(change, &mut self.device_config)
        };
        if !news {
            return;
        }
        if *change != DeviceChange::NeedsReset {
            self.transport.next_generation();
        }
        if let Some(vector) = self.transport.config_vector() {
            effects.push(PciEffect::ConfigChanged { device: self.device, vector });
        }
    }
}
