//! The MSI-X table of a function (PCI 6.8.2), as state that all replicas share.
//!
//! ```text
//! entry unmasked, function unmasked, MSI-X enabled --> route = the message of the entry
//! otherwise                                        --> no route: a raised vector is pending
//! ```
//! Pending bits are not here: a vector is raised by a worker of one slice, and only that slice knows
//! ([`MsixView`](crate::msix::MsixView)). The pending bit array therefore reads 0 everywhere. Drivers look at
//! it, if ever, to wait for a masked interrupt; Linux does not look.

mod saved;

pub use saved::{MsixEntryState, MsixTableState};

use crate::msix::MsixVector;
use crate::traits::{DeliveryMode, InterruptMessage};

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 16;
/// Bits of the message control register that the guest may write.
pub(super) const CONTROL_ENABLE: u16 = 1 << 15;
pub(super) const CONTROL_FUNCTION_MASK: u16 = 1 << 14;
/// Vector control: the entry is masked.
const ENTRY_MASKED: u32 = 1;

/// An entry: address low and high, data, vector control.
type Entry = [u32; 4];

/// Table and the bits of the control register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MsixTable {
    entries: Vec<Entry>,
    control: u16,
}

impl MsixTable {
    /// All entries masked, MSI-X disabled.
    pub(super) fn new(vectors: u16) -> Self {
        Self { entries: vec![[0, 0, 0, ENTRY_MASKED]; usize::from(vectors)], control: 0 }
    }

    /// Number of entries.
    pub(super) fn vectors(&self) -> u16 {
        u16::try_from(self.entries.len()).unwrap_or(u16::MAX)
    }

    /// What entry `vector` sends now.
    pub(super) fn route(&self, vector: MsixVector) -> Option<InterruptMessage> {
        let [low, high, data, control] = *self.entries.get(usize::from(vector.0))?;
        let open = self.control & (CONTROL_ENABLE | CONTROL_FUNCTION_MASK) == CONTROL_ENABLE;
        if !open || control & ENTRY_MASKED != 0 {
            return None;
        }
        message(low, high, data)
    }

    /// Reads bytes of the table; what lies behind it gives zeros.
    pub(super) fn read(&self, offset: usize, data: &mut [u8]) {
        for (byte, at) in data.iter_mut().zip(offset..) {
            let entry = self.entries.get(at / ENTRY_BYTES);
            let word = entry.map_or(0, |entry| entry[at % ENTRY_BYTES / 4]);
            *byte = word.to_le_bytes()[at % 4];
        }
    }

    /// Writes one or two aligned words, which is all that software may do (PCI 6.8.2); anything else
    /// is ignored. Gives the entry whose route has changed.
    pub(super) fn write(&mut self, offset: usize, data: &[u8]) -> Option<MsixVector> {
        if !matches!(data.len(), 4 | 8) || !offset.is_multiple_of(data.len()) {
            return None;
        }
        let vector = MsixVector(u16::try_from(offset / ENTRY_BYTES).ok()?);
        let before = self.route(vector);
        let entry = self.entries.get_mut(usize::from(vector.0))?;
        for (word, bytes) in entry[offset % ENTRY_BYTES / 4..].iter_mut().zip(data.chunks_exact(4))
        {
            *word = u32::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        entry[0] &= !3;
        entry[3] &= ENTRY_MASKED;
        (self.route(vector) != before).then_some(vector)
    }

    /// Takes over the control register and gives the entries whose routes have changed.
    pub(super) fn set_control(&mut self, control: u16) -> Vec<MsixVector> {
        let control = control & (CONTROL_ENABLE | CONTROL_FUNCTION_MASK);
        if control == self.control {
            return Vec::new();
        }
        let all = (0..self.vectors()).map(MsixVector);
        let before: Vec<_> = all.clone().map(|vector| self.route(vector)).collect();
        self.control = control;
        let changed = all.zip(before).filter(|(vector, before)| self.route(*vector) != *before);
        changed.map(|(vector, _)| vector).collect()
    }
}

/// Decodes address and data (Intel SDM vol. 3, 11.11); `None` for what is no interrupt: an address
/// outside the window of the local APICs, SMI and ExtINT.
///
/// Destination ids have 8 bits, plus 7 more in bits 5-11 of the address for guests that were told so
/// (`KVM_FEATURE_MSI_EXT_DEST_ID`); others leave those bits zero.
fn message(low: u32, high: u32, data: u32) -> Option<InterruptMessage> {
    const WINDOW: u32 = 0xfee;
    const LOGICAL: u32 = 1 << 2;
    if high != 0 || low >> 20 != WINDOW {
        return None;
    }
    let mode = match data >> 8 & 7 {
        0 => DeliveryMode::Fixed,
        1 => DeliveryMode::LowestPriority,
        4 => DeliveryMode::Nmi,
        5 => DeliveryMode::Init,
        _ => return None,
    };
    let logical = low & LOGICAL != 0;
    let destination = match (low >> 5 & 0x7f) << 8 | low >> 12 & 0xff {
        0xff if !logical => u32::MAX,
        id => id,
    };
    let [vector, ..] = data.to_le_bytes();
    Some(InterruptMessage { destination, logical, mode, vector })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(destination: u32, vector: u8) -> InterruptMessage {
        InterruptMessage { destination, logical: false, mode: DeliveryMode::Fixed, vector }
    }

    fn program(table: &mut MsixTable, entry: usize, low: u32, data: u32) -> Option<MsixVector> {
        let at = entry * ENTRY_BYTES;
        table.write(at, &u64::from(low).to_le_bytes());
        table.write(at + 8, &u64::from(data).to_le_bytes())
    }

    #[test]
    fn entry_has_a_route_only_when_nothing_masks_it() {
        let mut table = MsixTable::new(2);
        assert_eq!(program(&mut table, 1, 0xfee0_3000, 0x51), None);
        assert_eq!(table.set_control(CONTROL_ENABLE), [MsixVector(1)]);
        assert_eq!(table.route(MsixVector(1)), Some(fixed(3, 0x51)));
        assert_eq!(table.set_control(CONTROL_ENABLE | CONTROL_FUNCTION_MASK), [MsixVector(1)]);
        assert_eq!(table.route(MsixVector(1)), None);
        table.set_control(CONTROL_ENABLE);
        assert_eq!(table.write(ENTRY_BYTES + 12, &1_u32.to_le_bytes()), Some(MsixVector(1)));
        assert_eq!((table.route(MsixVector(1)), table.route(MsixVector(0))), (None, None));
    }

    #[test]
    fn destinations_extended_logical_and_all_are_decoded() {
        assert_eq!(message(0xfee0_3000 | 1 << 5, 0, 0x40), Some(fixed(0x103, 0x40)));
        assert_eq!(message(0xfeef_f000, 0, 0x40), Some(fixed(u32::MAX, 0x40)));
        let logical = message(0xfeef_f00c, 0, 0x140).unwrap();
        let mode = DeliveryMode::LowestPriority;
        assert_eq!((logical.logical, logical.destination, logical.mode), (true, 0xff, mode));
    }

    #[test]
    fn messages_that_are_no_interrupt_have_no_route() {
        assert_eq!(message(0xfed0_0000, 0, 0x40), None);
        assert_eq!(message(0xfee0_0000, 1, 0x40), None);
        assert_eq!((message(0xfee0_0000, 0, 0x240), message(0xfee0_0000, 0, 0x740)), (None, None));
    }

    #[test]
    fn odd_accesses_are_ignored_and_reads_match_writes() {
        let mut table = MsixTable::new(1);
        assert_eq!(table.write(0, &[1, 2]), None);
        assert_eq!(table.write(2, &[0xff; 4]), None);
        assert_eq!(table.write(16, &[0xff; 4]), None);
        table.write(0, &[0xff; 8]);
        let mut bytes = [0; 20];
        table.read(0, &mut bytes);
        assert_eq!(bytes[..8], [0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!((&bytes[8..12], &bytes[12..]), (&[0; 4][..], &[1, 0, 0, 0, 0, 0, 0, 0][..]));
    }
}
