//! The IOAPIC (Intel 82093AA, with the EOI register of later versions).
//!
//! A pin is edge- or level-triggered as its redirection entry says:
//!
//! ```text
//! edge:   rising edge -> pending -> (unmasked) message, pending cleared
//! level:  asserted -> (unmasked, remote IRR clear) message, remote IRR set
//!                  -> end of interrupt clears remote IRR -> asserted still? message again
//! ```
//!
//! An edge on a masked pin is remembered, unlike on the 82093AA: a guest then never loses the only
//! edge of an interrupt, and one too many is harmless.
//!
//! Destination ids have 8 bits, plus 7 more in bits 49-55 of the entry for guests that were told
//! so (`KVM_FEATURE_MSI_EXT_DEST_ID`); others leave those bits zero.

mod saved;

pub use saved::{IoApicPinState, IoApicState};

use crate::traits::{DeliveryMode, InterruptMessage};

/// Guest-physical address of the registers.
pub const IOAPIC_BASE: u32 = 0xfec0_0000;
/// Number of input pins, equal to the number of global system interrupts.
pub const IOAPIC_PINS: u8 = 24;
/// Id in the MADT and in the id register at reset.
pub(crate) const IOAPIC_ID: u8 = 0;

/// Version 0x20 (it has an EOI register) and the number of the last pin.
const VERSION: u32 = 0x20 | (IOAPIC_PINS as u32 - 1) << 16;

const DELIVERY_STATUS: u64 = 1 << 12;
const REMOTE_IRR: u64 = 1 << 14;
const LEVEL: u64 = 1 << 15;
const MASKED: u64 = 1 << 16;
const READ_ONLY: u64 = DELIVERY_STATUS | REMOTE_IRR;

/// Offsets of the memory-mapped registers.
const SELECT: u64 = 0x00;
const WINDOW: u64 = 0x10;
const EOI: u64 = 0x40;

#[derive(Clone, Copy, Debug)]
struct Pin {
    entry: u64,
    /// State of a level line.
    asserted: bool,
    /// An edge that has not been sent.
    pending: bool,
}

impl Pin {
    /// The message that is due now, with the state moved on.
    fn service(&mut self) -> Option<InterruptMessage> {
        if self.entry & MASKED != 0 {
            return None;
        }
        let level = self.entry & LEVEL != 0;
        let due = if level { self.asserted && self.entry & REMOTE_IRR == 0 } else { self.pending };
        if !due {
            return None;
        }
        self.pending = false;
        let message = self.message()?;
        if level && matches!(message.mode, DeliveryMode::Fixed | DeliveryMode::LowestPriority) {
            self.entry |= REMOTE_IRR;
        }
        Some(message)
    }

    /// Decodes the redirection entry; `None` for SMI and ExtINT, which have no receiver here.
    fn message(&self) -> Option<InterruptMessage> {
        let mode = match self.entry >> 8 & 7 {
            0 => DeliveryMode::Fixed,
            1 => DeliveryMode::LowestPriority,
            4 => DeliveryMode::Nmi,
            5 => DeliveryMode::Init,
            _ => return None,
        };
        let [vector, .., extended, low] = self.entry.to_le_bytes();
        let logical = self.entry >> 11 & 1 != 0;
        let destination = match u32::from(extended >> 1) << 8 | u32::from(low) {
            0xff if !logical => u32::MAX,
            id => id,
        };
        Some(InterruptMessage { destination, logical, mode, vector })
    }
}

/// The registers and pins. Methods give the messages to send; the owner sends them after it has
/// released its lock.
#[derive(Debug)]
pub(crate) struct IoApic {
    select: u8,
    id: u32,
    pins: [Pin; IOAPIC_PINS as usize],
}

impl Default for IoApic {
    fn default() -> Self {
        let pin = Pin { entry: MASKED, asserted: false, pending: false };
        Self { select: 0, id: u32::from(IOAPIC_ID) << 24, pins: [pin; IOAPIC_PINS as usize] }
    }
}

impl IoApic {
    /// Sets an input line. On an edge-triggered pin only the rising edge counts.
    pub(crate) fn set_line(&mut self, pin: u8, high: bool) -> Option<InterruptMessage> {
        let pin = self.pins.get_mut(usize::from(pin))?;
        pin.pending |= high && !pin.asserted;
        pin.asserted = high;
        pin.service()
    }

    /// A short pulse on an input line: the interrupt of an edge-triggered device.
    pub(crate) fn pulse(&mut self, pin: u8) -> Option<InterruptMessage> {
        let message = self.set_line(pin, true);
        if let Some(pin) = self.pins.get_mut(usize::from(pin)) {
            pin.asserted = false;
        }
        message
    }

    /// A vCPU has ended the service of this vector.
    pub(crate) fn end_of_interrupt(&mut self, vector: u8) -> Vec<InterruptMessage> {
        let ends = |pin: &&mut Pin| {
            pin.entry & (LEVEL | REMOTE_IRR) == LEVEL | REMOTE_IRR
                && pin.entry.to_le_bytes()[0] == vector
        };
        self.pins
            .iter_mut()
            .filter(ends)
            .filter_map(|pin| {
                pin.entry &= !REMOTE_IRR;
                pin.service()
            })
            .collect()
    }

    /// Reads the register at this offset from [`IOAPIC_BASE`].
    pub(crate) fn read(&self, offset: u64) -> u32 {
        match (offset, self.select) {
            (SELECT, _) => u32::from(self.select),
            (WINDOW, 0x00 | 0x02) => self.id,
            (WINDOW, 0x01) => VERSION,
            (WINDOW, select) => match self.pin_of(select) {
                Some((pin, shift)) => {
                    let half = self.pins[pin].entry >> shift & u64::from(u32::MAX);
                    u32::try_from(half).unwrap_or(0)
                }
                None => 0,
            },
            _ => 0,
        }
    }

    /// Writes that register.
    pub(crate) fn write(&mut self, offset: u64, value: u32) -> Vec<InterruptMessage> {
        let [low, ..] = value.to_le_bytes();
        match (offset, self.select) {
            (SELECT, _) => self.select = low,
            (EOI, _) => return self.end_of_interrupt(low),
            (WINDOW, 0x00) => self.id = value & 0x0f00_0000,
            (WINDOW, select) => {
                if let Some((pin, shift)) = self.pin_of(select) {
                    return self.write_entry(pin, shift, value).into_iter().collect();
                }
            }
            _ => {}
        }
        Vec::new()
    }

    fn write_entry(&mut self, pin: usize, shift: u32, value: u32) -> Option<InterruptMessage> {
        let pin = &mut self.pins[pin];
        let writable = u64::from(u32::MAX) << shift & !READ_ONLY;
        pin.entry = pin.entry & !writable | u64::from(value) << shift & writable;
        if pin.entry & LEVEL == 0 {
            pin.entry &= !REMOTE_IRR;
        } else {
            pin.pending = false;
        }
        pin.service()
    }

    /// The pin of a redirection register, and the bit where its half begins.
    fn pin_of(&self, select: u8) -> Option<(usize, u32)> {
        let register = select.checked_sub(0x10)?;
        let pin = usize::from(register / 2);
        (pin < self.pins.len()).then_some((pin, if register % 2 == 0 { 0 } else { 32 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEVEL_LOW: u32 = 1 << 15;

    fn program(ioapic: &mut IoApic, pin: u8, low: u32, high: u32) -> Vec<InterruptMessage> {
        ioapic.write(SELECT, u32::from(0x11 + 2 * pin));
        ioapic.write(WINDOW, high);
        ioapic.write(SELECT, u32::from(0x10 + 2 * pin));
        ioapic.write(WINDOW, low)
    }

    fn fixed(destination: u32, vector: u8) -> InterruptMessage {
        InterruptMessage { destination, logical: false, mode: DeliveryMode::Fixed, vector }
    }

    #[test]
    fn version_and_select_read_back() {
        let mut ioapic = IoApic::default();
        ioapic.write(SELECT, 1);
        assert_eq!((ioapic.read(SELECT), ioapic.read(WINDOW)), (1, 0x0017_0020));
    }

    #[test]
    fn edge_pin_pulse_sends_one_message_each() {
        let mut ioapic = IoApic::default();
        program(&mut ioapic, 4, 0x34, 1 << 24);
        assert_eq!(ioapic.pulse(4), Some(fixed(1, 0x34)));
        assert_eq!(ioapic.pulse(4), Some(fixed(1, 0x34)));
        assert!(ioapic.end_of_interrupt(0x34).is_empty());
    }

    #[test]
    fn edge_while_masked_arrives_at_unmask() {
        let mut ioapic = IoApic::default();
        assert_eq!(ioapic.pulse(4), None);
        assert_eq!(program(&mut ioapic, 4, 0x34, 0), [fixed(0, 0x34)]);
        assert!(program(&mut ioapic, 4, 0x34, 0).is_empty());
    }

    #[test]
    fn level_pin_waits_for_end_of_interrupt() {
        let mut ioapic = IoApic::default();
        program(&mut ioapic, 9, 0x41 | LEVEL_LOW, 0);
        assert_eq!(ioapic.set_line(9, true), Some(fixed(0, 0x41)));
        assert_eq!(ioapic.set_line(9, true), None);
        ioapic.write(SELECT, 0x10 + 18);
        assert_ne!(u64::from(ioapic.read(WINDOW)) & REMOTE_IRR, 0);
        assert!(ioapic.end_of_interrupt(0x42).is_empty());
        assert_eq!(ioapic.end_of_interrupt(0x41), [fixed(0, 0x41)]);
        ioapic.set_line(9, false);
        assert!(ioapic.end_of_interrupt(0x41).is_empty());
        assert_eq!(u64::from(ioapic.read(WINDOW)) & REMOTE_IRR, 0);
    }

    #[test]
    fn level_pin_eoi_register_is_an_end_of_interrupt() {
        let mut ioapic = IoApic::default();
        program(&mut ioapic, 9, 0x41 | LEVEL_LOW, 0);
        ioapic.set_line(9, true);
        assert_eq!(ioapic.write(EOI, 0x41), [fixed(0, 0x41)]);
    }

    #[test]
    fn level_pin_asserted_while_masked_arrives_at_unmask() {
        let mut ioapic = IoApic::default();
        program(&mut ioapic, 9, 0x41 | LEVEL_LOW | 1 << 16, 0);
        assert_eq!(ioapic.set_line(9, true), None);
        assert_eq!(program(&mut ioapic, 9, 0x41 | LEVEL_LOW, 0), [fixed(0, 0x41)]);
    }

    #[test]
    fn remote_irr_cannot_be_written_and_edge_mode_clears_it() {
        let mut ioapic = IoApic::default();
        program(&mut ioapic, 9, 0x41 | LEVEL_LOW, 0);
        ioapic.set_line(9, true);
        program(&mut ioapic, 9, 0x41 | LEVEL_LOW, 0);
        assert_ne!(u64::from(ioapic.read(WINDOW)) & REMOTE_IRR, 0);
        ioapic.set_line(9, false);
        program(&mut ioapic, 9, 0x41, 0);
        assert_eq!(u64::from(ioapic.read(WINDOW)) & REMOTE_IRR, 0);
    }

    #[test]
    fn destinations_broadcast_logical_and_extended_are_decoded() {
        let mut ioapic = IoApic::default();
        program(&mut ioapic, 1, 0x50, 0xff << 24);
        assert_eq!(ioapic.pulse(1), Some(fixed(u32::MAX, 0x50)));
        program(&mut ioapic, 1, 0x50 | 1 << 11 | 1 << 8, 0xff << 24);
        let expected = InterruptMessage {
            destination: 0xff,
            logical: true,
            mode: DeliveryMode::LowestPriority,
            vector: 0x50,
        };
        assert_eq!(ioapic.pulse(1), Some(expected));
        // Id 0x1ff: seven more bits from bit 49 of the entry.
        program(&mut ioapic, 1, 0x50, 0xff << 24 | 1 << 17);
        assert_eq!(ioapic.pulse(1), Some(fixed(0x1ff, 0x50)));
    }

    proptest! {
        #[test]
        fn any_register_traffic_is_harmless(
            steps in prop::collection::vec((0_u64..0x50, any::<u32>(), any::<u8>()), 0..200),
        ) {
            let mut ioapic = IoApic::default();
            for (offset, value, pin) in steps {
                ioapic.write(offset, value);
                ioapic.read(offset);
                ioapic.pulse(pin);
                ioapic.set_line(pin, value & 1 != 0);
                prop_assert!(ioapic.end_of_interrupt(pin).len() <= usize::from(IOAPIC_PINS));
            }
        }
    }
}
