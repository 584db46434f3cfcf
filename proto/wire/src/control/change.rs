//! Changes that all slices make in one order, and their fields in a head.
//!
//! ```text
//! event 0: length bytes 1, 2, 4 or 8 | address | data
//! event 1: address device
//! event 2: vector, length: the new place u16 | address first frame | data: placement u32, frames u32
//! event 3: vector, length: the new place u16 | address: device u16, first queue u16, queues u16, zeros | data: placement u32
//! ```

use crate::{Epoch, SliceId};

/// A change of what all slices share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrderedChange {
    /// The guest writes a register.
    Write {
        /// Guest-physical address.
        address: u64,
        /// Bytes: 1, 2, 4 or 8.
        length: u8,
        /// Little endian.
        data: u64,
    },
    /// A device needs a reset.
    Broken {
        /// The device.
        device: u16,
    },
    /// A part has another place.
    Relocated {
        /// What.
        part: RelocatedPart,
        /// Where it is from now on.
        to: SliceId,
        /// Epoch of the placement that says so.
        placement: Epoch,
    },
}

/// What has another place. None of it is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RelocatedPart {
    /// These frames have another home, and all slices ask that one already.
    Memory {
        /// Guest frame number.
        first: u64,
        /// How many.
        frames: u32,
    },
    /// These queues are served elsewhere.
    Queues {
        /// Their device.
        device: u16,
        /// The first of them.
        first: u16,
        /// How many.
        queues: u16,
    },
}

/// Fields of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) event: u8,
    pub(super) vector: u8,
    pub(super) length: u8,
    pub(super) address: u64,
    pub(super) data: u64,
}

pub(super) fn encode(change: OrderedChange) -> Fields {
    match change {
        OrderedChange::Write { address, length, data } => {
            Fields { length, address, data, ..Fields::default() }
        }
        OrderedChange::Broken { device } => {
            Fields { event: 1, address: device.into(), ..Fields::default() }
        }
        OrderedChange::Relocated { part, to, placement } => {
            let [vector, length] = to.0.to_le_bytes();
            let low = u64::from(placement.0);
            let (event, address, data) = match part {
                RelocatedPart::Memory { first, frames } => {
                    (2, first, low | u64::from(frames) << 32)
                }
                RelocatedPart::Queues { device, first, queues } => {
                    let rest = u64::from(first) << 16 | u64::from(queues) << 32;
                    (3, u64::from(device) | rest, low)
                }
            };
            Fields { event, vector, length, address, data }
        }
    }
}

pub(super) fn decode(fields: Fields) -> Option<OrderedChange> {
    let Fields { event, vector, length, address, data } = fields;
    let relocated = |part, placement| {
        let (to, placement) = (SliceId(u16::from_le_bytes([vector, length])), Epoch(placement));
        OrderedChange::Relocated { part, to, placement }
    };
    match event {
        0 if matches!(length, 1 | 2 | 4 | 8) => {
            Some(OrderedChange::Write { address, length, data })
        }
        1 if length == 0 => Some(OrderedChange::Broken { device: u16::try_from(address).ok()? }),
        2 => {
            let (placement, frames) = (low(data), low(data >> 32));
            let has_end = frames > 0 && address.checked_add(u64::from(frames)).is_some();
            has_end.then(|| relocated(RelocatedPart::Memory { first: address, frames }, placement))
        }
        3 if address >> 48 == 0 => {
            let [device, first, queues] = [0, 16, 32].map(|at| short(address >> at));
            let has_end = queues > 0 && first.checked_add(queues).is_some();
            let placement = u32::try_from(data).ok()?;
            has_end.then(|| relocated(RelocatedPart::Queues { device, first, queues }, placement))
        }
        _ => None,
    }
}

/// The lowest 32 bits.
fn low(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).expect("32 bits")
}

/// The lowest 16 bits.
fn short(value: u64) -> u16 {
    u16::try_from(value & u64::from(u16::MAX)).expect("16 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_of_encode_gives_the_change() {
        let relocated = |part| OrderedChange::Relocated {
            part,
            to: SliceId(0x1234),
            placement: Epoch(u32::MAX),
        };
        for change in [
            OrderedChange::Write { address: 0xe000_0004, length: 2, data: 6 },
            OrderedChange::Broken { device: 3 },
            relocated(RelocatedPart::Memory { first: 1 << 40, frames: u32::MAX }),
            relocated(RelocatedPart::Queues { device: 31, first: 128, queues: 2 }),
        ] {
            assert_eq!(decode(encode(change)), Some(change));
        }
    }

    #[test]
    fn change_that_cannot_be_is_refused() {
        let good = Fields { event: 2, address: 7, data: 1 << 32 | 5, ..Fields::default() };
        assert!(decode(good).is_some());
        for bad in [
            Fields { data: 5, ..good },
            Fields { address: u64::MAX, ..good },
            Fields { event: 3, address: 1 << 48 | 1 << 32, data: 5, ..good },
            Fields { event: 3, address: 4 << 16, data: 5, ..good },
            Fields { event: 3, address: 0xffff << 16 | 1 << 32, data: 5, ..good },
            Fields { event: 3, address: 1 << 32, data: 1 << 32, ..good },
            Fields { event: 4, ..good },
            Fields { event: 0, length: 3, ..good },
        ] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
    }
}
