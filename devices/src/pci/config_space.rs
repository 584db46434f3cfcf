//! The configuration space of a function: bytes, and which of their bits the guest may write
//! (PCI 6.1, 6.7). The extended space from 256 on is empty and reads 0.

/// Bytes that exist.
const BYTES: usize = 256;
/// Bytes of a function in ECAM.
pub(super) const ECAM_FUNCTION_BYTES: u64 = 4096;

/// Registers (PCI 6.1).
pub(super) const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const REVISION: usize = 0x08;
pub(super) const BAR_0: usize = 0x10;
const SUBSYSTEM: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
/// First byte after the header.
const HEADER_END: u8 = 0x40;

/// Command: the function answers at its BAR.
pub(super) const COMMAND_MEMORY: u16 = 1 << 1;
/// Bus master and interrupt disable are kept for the driver and mean nothing here: every access that
/// the guest has asked for is made, and there is no INTx.
const COMMAND_KEPT: u16 = 1 << 2 | 1 << 10;
/// All that the guest may write of the command register.
pub(super) const COMMAND_WRITABLE: u16 = COMMAND_MEMORY | COMMAND_KEPT;
/// Status: there is a list of capabilities.
const STATUS_CAPABILITIES: u8 = 1 << 4;

/// Who made a function and what it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) vendor: u16,
    pub(super) device: u16,
    /// Class, subclass and interface in bits 23-0.
    pub(super) class: u32,
    pub(super) revision: u8,
}

/// Bytes and masks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigSpace {
    bytes: [u8; BYTES],
    /// Bits that the guest may write.
    writable: [u8; BYTES],
    /// Where the next capability goes, and the byte that points at it.
    next: u8,
    link: u8,
}

impl ConfigSpace {
    /// A header of type 0 without BAR and capabilities.
    pub(super) fn new(identity: Identity) -> Self {
        let mut space = Self {
            bytes: [0; BYTES],
            writable: [0; BYTES],
            next: HEADER_END,
            link: u8::try_from(CAPABILITIES).unwrap_or(0),
        };
        space.set(0, &identity.vendor.to_le_bytes());
        space.set(2, &identity.device.to_le_bytes());
        space.set(REVISION, &(identity.class << 8 | u32::from(identity.revision)).to_le_bytes());
        space.set(SUBSYSTEM, &identity.vendor.to_le_bytes());
        // Ids of at least 0x40 say that the device is not a legacy one (virtio 1.3, 4.1.2.1).
        space.set(SUBSYSTEM + 2, &0x1100_u16.to_le_bytes());
        space.allow(COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        space
    }

    /// Gives the function BAR 0: 32-bit memory, not prefetchable, of `size` bytes, a power of two.
    pub(super) fn add_bar(&mut self, base: u32, size: u32) {
        self.set(BAR_0, &base.to_le_bytes());
        self.allow(BAR_0, &(!(size - 1)).to_le_bytes());
    }

    /// Appends a capability (PCI 6.7) and gives its offset. `body` is what follows id and link,
    /// `writable` says for each byte of it what the guest may write; missing ones may not be.
    pub(super) fn add_capability(&mut self, id: u8, body: &[u8], writable: &[u8]) -> usize {
        let at = usize::from(self.next);
        self.bytes[usize::from(self.link)] = self.next;
        self.bytes[STATUS] |= STATUS_CAPABILITIES;
        self.link = self.next + 1;
        self.set(at, &[id, 0]);
        self.set(at + 2, body);
        self.allow(at + 2, writable);
        let end = (at + 2 + body.len()).next_multiple_of(4);
        self.next = u8::try_from(end).unwrap_or(u8::MAX);
        at
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Reads at any offset.
    pub(super) fn read(&self, offset: usize, data: &mut [u8]) {
        for (byte, at) in data.iter_mut().zip(offset..) {
            *byte = self.bytes.get(at).copied().unwrap_or(0);
        }
    }

    /// Writes at any offset what may be written.
    pub(super) fn write(&mut self, offset: usize, data: &[u8]) {
        for (value, at) in data.iter().zip(offset..) {
            if let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *byte = *byte & !mask | value & mask;
            }
        }
    }

    /// A register of two bytes.
    pub(super) fn word(&self, at: usize) -> u16 {
        let mut bytes = [0; 2];
        self.read(at, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// A register of four bytes.
    pub(super) fn dword(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Where BAR 0 answers; `None` while memory accesses are switched off.
    pub(super) fn decoded(&self) -> Option<u64> {
        let base = u64::from(self.dword(BAR_0) & !0xf);
        (self.word(COMMAND) & COMMAND_MEMORY != 0).then_some(base)
    }
}
