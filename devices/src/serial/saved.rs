//! The saved form of the serial line.

use super::{INPUT_LIMIT, SerialLine};
use crate::byte_string;
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use vm_superio::serial::{NoEvents, Serial, SerialState};

/// Bytes that the receiver of the crate's 16550 holds.
const RECEIVER_BYTES: usize = 64;
/// Interrupts that a 16550 can enable (PC16550D, 8.6).
const ENABLES: u8 = 0x0f;
/// What the interrupt identification register can be (PC16550D, 8.5): none, transmitter empty, data received, both.
const IDENTIFICATIONS: [u8; 4] = [1, 2, 4, 6];
/// Line status: there is data to read (PC16550D, 8.4).
const DATA_READY: u8 = 1;

/// Registers of the 16550 and the input that waits for them. Line and modem status follow from the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SerialLineState {
    /// Divisor latch, both bytes.
    pub divisor: u16,
    /// Interrupt enable register.
    pub interrupt_enable: u8,
    /// Interrupt identification register, without the bits of the FIFO.
    pub interrupt_identification: u8,
    /// Line control register.
    pub line_control: u8,
    /// Modem control register.
    pub modem_control: u8,
    /// Scratch register.
    pub scratch: u8,
    /// Bytes in the receiver, oldest first; at most 64.
    #[serde(with = "byte_string")]
    pub received: Vec<u8>,
    /// Bytes that wait for room in the receiver, oldest first; at most 4096.
    #[serde(with = "byte_string")]
    pub waiting: Vec<u8>,
}

impl SavedState for SerialLineState {
    const NAME: &'static str = "serial line";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = INPUT_LIMIT + RECEIVER_BYTES + 192;

    fn check(&self) -> Result<(), Invalid> {
        let enables = self.interrupt_enable & !ENABLES == 0;
        Invalid::unless(enables, "interrupt_enable", "bits above the lowest four")?;
        let known = IDENTIFICATIONS.contains(&self.interrupt_identification);
        Invalid::unless(known, "interrupt_identification", "no state of a 16550")?;
        let received = self.received.len() <= RECEIVER_BYTES;
        Invalid::unless(received, "received", "more than the receiver holds")?;
        Invalid::unless(self.waiting.len() <= INPUT_LIMIT, "waiting", "more than may wait")
    }
}

impl Saved for SerialLine {
    type State = SerialLineState;

    fn save(&self) -> SerialLineState {
        let uart = self.uart.state();
        SerialLineState {
            divisor: u16::from_le_bytes([uart.baud_divisor_low, uart.baud_divisor_high]),
            interrupt_enable: uart.interrupt_enable,
            interrupt_identification: uart.interrupt_identification,
            line_control: uart.line_control,
            modem_control: uart.modem_control,
            scratch: uart.scratch,
            received: uart.in_buffer,
            waiting: self.waiting.iter().copied().collect(),
        }
    }

    /// Sends no interrupt: one that was sent before is in the state of the IOAPIC or of a vCPU.
    fn restore(&mut self, state: SerialLineState) -> Result<(), Invalid> {
        state.check()?;
        let [baud_divisor_low, baud_divisor_high] = state.divisor.to_le_bytes();
        let power_on = SerialState::default();
        let ready = if state.received.is_empty() { 0 } else { DATA_READY };
        let registers = SerialState {
            baud_divisor_low,
            baud_divisor_high,
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: power_on.line_status | ready,
            modem_control: state.modem_control,
            modem_status: power_on.modem_status,
            scratch: state.scratch,
            in_buffer: state.received,
        };
        let interrupt = self.uart.interrupt_evt().clone();
        interrupt.mute(true);
        let console = self.uart.writer().clone();
        let uart = Serial::from_state(&registers, interrupt.clone(), NoEvents, console);
        interrupt.mute(false);
        self.uart = uart.map_err(|error| Invalid::new("received", error.to_string()))?;
        self.waiting = VecDeque::from(state.waiting);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Console, SerialInterrupt};
    use super::*;
    use crate::saved::testing::{bring_over, damage};
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn line() -> (SerialLine, Arc<AtomicUsize>) {
        let interrupts = Arc::new(AtomicUsize::new(0));
        let sent = Arc::clone(&interrupts);
        let interrupt = SerialInterrupt::new(move || {
            sent.fetch_add(1, Ordering::SeqCst);
        });
        (SerialLine::new(Console::new(Box::new(std::io::sink())), interrupt), interrupts)
    }

    /// One access: register and value, whether it is written, or so much input.
    fn access() -> impl Strategy<Value = (u8, u8, u8)> {
        (0_u8..10, prop_oneof![Just(0x10_u8), Just(0x0f), any::<u8>()], 0_u8..3)
    }

    fn run(line: &mut SerialLine, (register, value, kind): (u8, u8, u8)) -> usize {
        match kind {
            0 => usize::from(line.read(register)),
            1 => {
                line.write(register, value);
                0
            }
            _ => line.input(&vec![value; usize::from(value) * 3]),
        }
    }

    proptest! {
        #[test]
        fn restored_line_goes_on_as_the_saved_one(
            before in prop::collection::vec(access(), 0..80),
            after in prop::collection::vec(access(), 0..80),
        ) {
            let (mut one, first) = line();
            let (mut two, second) = line();
            for step in before {
                run(&mut one, step);
            }
            bring_over(&one, &mut two);
            prop_assert_eq!(second.load(Ordering::SeqCst), 0, "an interrupt at restoring");
            first.store(0, Ordering::SeqCst);
            for step in after {
                prop_assert_eq!(run(&mut one, step), run(&mut two, step));
            }
            prop_assert_eq!(one.save(), two.save());
            prop_assert_eq!(first.load(Ordering::SeqCst), second.load(Ordering::SeqCst));
        }
    }

    #[test]
    fn buffers_that_are_too_long_and_impossible_registers_are_refused() {
        let (one, _) = line();
        let (mut two, _) = line();
        let good = one.save();
        for bad in [
            SerialLineState { received: vec![0; RECEIVER_BYTES + 1], ..good.clone() },
            SerialLineState { waiting: vec![0; INPUT_LIMIT + 1], ..good.clone() },
            SerialLineState { interrupt_enable: 0x10, ..good.clone() },
            SerialLineState { interrupt_identification: 0, ..good.clone() },
        ] {
            two.restore(bad).unwrap_err();
            assert_eq!(two.save(), good, "nothing has changed");
        }
    }

    #[test]
    fn full_line_fits_its_bound_and_damaged_bytes_do_no_harm() {
        let (mut one, _) = line();
        assert_eq!(one.input(&[7; INPUT_LIMIT]), INPUT_LIMIT);
        assert_eq!(one.input(&[8; RECEIVER_BYTES]), RECEIVER_BYTES);
        let (mut two, _) = line();
        assert_eq!(bring_over(&one, &mut two).waiting.len(), INPUT_LIMIT);
        let (mut small, _) = line();
        small.input(b"ls");
        damage(&small.save(), 0x21, |state| {
            let (mut fresh, _) = line();
            fresh.restore(state).unwrap();
            assert_eq!((fresh.read(9), fresh.input(b"x")), (0, 1));
        });
    }
}
