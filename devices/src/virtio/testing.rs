//! A driver and its surroundings, for tests of workers.

use super::{DeviceFaults, F_VERSION_1, QueueContext, QueueSetup, RingError, Used, UsedMemory};
use crate::msix::{MsixVector, MsixView};
use crate::traits::{DeliveryMode, InterruptMessage, InterruptSink};
use std::sync::{Arc, Mutex};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use wire::DeviceId;

/// Guest memory of tests, in bytes; in two regions that touch in the middle.
pub(crate) const MEMORY_BYTES: u64 = 16 << 20;
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// Vectors that were sent, and faults that were told.
#[derive(Default)]
pub(crate) struct Outside {
    pub(crate) interrupts: Mutex<Vec<u8>>,
    pub(crate) faults: Mutex<Vec<RingError>>,
}

impl InterruptSink for Outside {
    fn deliver(&self, message: InterruptMessage) {
        self.interrupts.lock().unwrap().push(message.vector);
    }
}

impl DeviceFaults for Outside {
    fn broken(&self, _device: DeviceId, cause: RingError) {
        self.faults.lock().unwrap().push(cause);
    }
}

/// A guest with memory and unmasked interrupts: entry `n` sends vector `0x40 + n`.
pub(crate) struct Guest {
    pub(crate) memory: Arc<GuestMemoryMmap>,
    pub(crate) outside: Arc<Outside>,
    pub(crate) context: QueueContext,
}

impl Guest {
    pub(crate) fn new() -> Self {
        let half = usize::try_from(MEMORY_BYTES / 2).unwrap();
        let regions = [(GuestAddress(0), half), (GuestAddress(MEMORY_BYTES / 2), half)];
        let memory = Arc::new(GuestMemoryMmap::from_ranges(&regions).unwrap());
        let outside = Arc::new(Outside::default());
        let msix = Arc::new(MsixView::new(4, outside.clone()));
        for vector in 0..4 {
            let mode = DeliveryMode::Fixed;
            let to =
                InterruptMessage { destination: 0, logical: false, mode, vector: 0x40 + vector };
            msix.route(MsixVector(u16::from(vector)), Some(to));
        }
        let context = QueueContext {
            used: Arc::new(Anything),
            device: DeviceId(0),
            memory: Arc::clone(&memory),
            msix,
            faults: outside.clone(),
        };
        Self { memory, outside, context }
    }

    pub(crate) fn put(&self, address: u64, data: &[u8]) {
        self.memory.write_slice(data, GuestAddress(address)).unwrap();
    }

    pub(crate) fn get(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.memory.read_slice(&mut data, GuestAddress(address)).unwrap();
        data
    }

    pub(crate) fn interrupts(&self) -> usize {
        self.outside.interrupts.lock().unwrap().len()
    }

    pub(crate) fn fault(&self) -> Option<RingError> {
        self.outside.faults.lock().unwrap().first().copied()
    }
}

/// A buffer of a request: address, length, and whether the device writes it.
pub(crate) type Buffer = (u64, u32, bool);

/// The driver's side of a queue whose areas lie from `base` on: descriptors, available ring, used
/// ring, each on 64 KiB of its own.
pub(crate) struct Driver {
    memory: Arc<GuestMemoryMmap>,
    base: u64,
    pub(crate) size: u16,
    pub(crate) available: u16,
    next_descriptor: u16,
    seen: u16,
}

impl Driver {
    pub(crate) fn new(guest: &Guest, base: u64, size: u16) -> Self {
        let memory = Arc::clone(&guest.memory);
        Self { memory, base, size, available: 0, next_descriptor: 0, seen: 0 }
    }

    pub(crate) fn setup(&self) -> QueueSetup {
        QueueSetup {
            size: self.size,
            descriptors: self.base,
            driver_area: self.base + 0x1_0000,
            device_area: self.base + 0x2_0000,
            vector: Some(MsixVector(1)),
        }
    }

    /// Features of a plain driver.
    pub(crate) const FEATURES: u64 = F_VERSION_1;

    pub(crate) fn store(&self, address: u64, value: u16) {
        self.memory.write_slice(&value.to_le_bytes(), GuestAddress(address)).unwrap();
    }

    fn load(&self, address: u64) -> u16 {
        let mut bytes = [0; 2];
        self.memory.read_slice(&mut bytes, GuestAddress(address)).unwrap();
        u16::from_le_bytes(bytes)
    }

    /// Writes a descriptor into a table.
    pub(crate) fn describe(
        &self,
        table: u64,
        index: u16,
        buffer: (u64, u32),
        flags: u16,
        next: u16,
    ) {
        let mut bytes = buffer.0.to_le_bytes().to_vec();
        bytes.extend(buffer.1.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        let at = GuestAddress(table + 16 * u64::from(index));
        self.memory.write_slice(&bytes, at).unwrap();
    }

    /// Publishes a head without any check.
    pub(crate) fn publish(&mut self, head: u16) {
        let slot = u64::from(self.available % self.size);
        self.store(self.base + 0x1_0000 + 4 + 2 * slot, head);
        self.available = self.available.wrapping_add(1);
        self.store(self.base + 0x1_0000 + 2, self.available);
    }

    /// Writes a chain at the next free descriptors.
    pub(crate) fn chain(&mut self, buffers: &[Buffer]) -> u16 {
        let head = self.next_descriptor;
        for (number, (address, bytes, write)) in buffers.iter().enumerate() {
            let this = self.next_descriptor;
            self.next_descriptor = (this + 1) % self.size;
            let last = number + 1 == buffers.len();
            let flags = if *write { WRITE } else { 0 } | if last { 0 } else { NEXT };
            self.describe(self.base, this, (*address, *bytes), flags, self.next_descriptor);
        }
        head
    }

    /// A request in descriptors of the table.
    pub(crate) fn request(&mut self, buffers: &[Buffer]) -> u16 {
        let head = self.chain(buffers);
        self.publish(head);
        head
    }

    /// A request in a table of its own at `table`.
    pub(crate) fn indirect(&mut self, table: u64, buffers: &[Buffer]) -> u16 {
        let mut own = Self { base: table, next_descriptor: 0, size: u16::MAX, ..self.copy() };
        own.chain(buffers);
        let head = self.next_descriptor;
        self.next_descriptor = (head + 1) % self.size;
        let bytes = u32::try_from(16 * buffers.len()).unwrap();
        self.describe(self.base, head, (table, bytes), INDIRECT, 0);
        self.publish(head);
        head
    }

    fn copy(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), ..*self }
    }

    /// Head and length of what was given back since the last question.
    pub(crate) fn used(&mut self) -> Vec<(u32, u32)> {
        let area = self.base + 0x2_0000;
        let mut used = Vec::new();
        while self.seen != self.load(area + 2) {
            let mut bytes = [0; 8];
            let slot = u64::from(self.seen % self.size);
            self.memory.read_slice(&mut bytes, GuestAddress(area + 4 + 8 * slot)).unwrap();
            let [a, b, c, d, e, f, g, h] = bytes;
            used.push((u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])));
            self.seen = self.seen.wrapping_add(1);
        }
        used
    }

    /// At which used index the driver wants an interrupt (event index).
    pub(crate) fn want_interrupt_at(&self, index: u16) {
        self.store(self.base + 0x1_0000 + 4 + 2 * u64::from(self.size), index);
    }

    /// At which available index the device wants to be told (event index).
    pub(crate) fn told_at(&self) -> u16 {
        self.load(self.base + 0x2_0000 + 4 + 8 * u64::from(self.size))
    }
}

/// Counts nothing.
struct Anything;

impl UsedMemory for Anything {
    fn used(&self, _: u64, _: u64, _: Used) {}
}
