//! The saved form of the IOAPIC.

use super::{DELIVERY_STATUS, IOAPIC_PINS, IoApic, LEVEL, Pin, REMOTE_IRR};
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// Registers and pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoApicState {
    /// Register select (82093AA, 3.1.1).
    pub select: u8,
    /// Id, 0 to 15 (82093AA, 3.2.1).
    pub id: u8,
    /// The 24 pins in order.
    pub pins: Vec<IoApicPinState>,
}

/// An input pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoApicPinState {
    /// Redirection entry with its remote IRR (82093AA, 3.2.4).
    pub redirection: u64,
    /// The line is high.
    pub asserted: bool,
    /// An edge has come and has not been sent.
    pub pending: bool,
}

impl SavedState for IoApicState {
    const NAME: &'static str = "ioapic";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = 48 * IOAPIC_PINS as usize + 64;

    fn check(&self) -> Result<(), Invalid> {
        Invalid::unless(self.id < 16, "id", "above 15")?;
        Invalid::unless(self.pins.len() == usize::from(IOAPIC_PINS), "pins", "not 24")?;
        let sound = |pin: &IoApicPinState| {
            let entry = pin.redirection;
            entry & DELIVERY_STATUS == 0 && entry & (REMOTE_IRR | LEVEL) != REMOTE_IRR
        };
        let why = "a delivery under way, or a remote IRR of an edge";
        Invalid::unless(self.pins.iter().all(sound), "pins", why)
    }
}

impl Saved for IoApic {
    type State = IoApicState;

    fn save(&self) -> IoApicState {
        let pins = self.pins.iter().map(|pin| IoApicPinState {
            redirection: pin.entry,
            asserted: pin.asserted,
            pending: pin.pending,
        });
        let [.., id] = self.id.to_le_bytes();
        IoApicState { select: self.select, id, pins: pins.collect() }
    }

    /// Sends nothing: what is due was sent when the pin changed.
    fn restore(&mut self, state: IoApicState) -> Result<(), Invalid> {
        state.check()?;
        for (pin, saved) in self.pins.iter_mut().zip(&state.pins) {
            let IoApicPinState { redirection, asserted, pending } = *saved;
            *pin = Pin { entry: redirection, asserted, pending };
        }
        (self.select, self.id) = (state.select, u32::from(state.id) << 24);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SELECT, WINDOW};
    use super::*;
    use crate::saved::testing::{bring_over, damage};
    use crate::traits::InterruptMessage;
    use proptest::prelude::*;

    type Step = (u8, u8, u32);

    /// Selects and writes registers, moves lines, ends interrupts.
    fn step() -> impl Strategy<Value = Step> {
        let values = prop_oneof![0_u32..0x2_0000, any::<u32>()];
        (0_u8..5, 0_u8..64, values)
    }

    fn run(ioapic: &mut IoApic, (kind, number, value): Step) -> (Vec<InterruptMessage>, u32) {
        let pin = number % IOAPIC_PINS;
        let sent = match kind {
            0 => ioapic.write(SELECT, u32::from(number)),
            1 => ioapic.write(WINDOW, value),
            2 => ioapic.set_line(pin, value % 2 == 1).into_iter().collect(),
            3 => ioapic.pulse(pin).into_iter().collect(),
            _ => ioapic.end_of_interrupt(value.to_le_bytes()[0]),
        };
        (sent, ioapic.read(WINDOW))
    }

    proptest! {
        #[test]
        fn restored_ioapic_goes_on_as_the_saved_one(
            before in prop::collection::vec(step(), 0..150),
            after in prop::collection::vec(step(), 0..150),
        ) {
            let (mut one, mut two) = (IoApic::default(), IoApic::default());
            for each in before {
                run(&mut one, each);
            }
            bring_over(&one, &mut two);
            for each in after {
                prop_assert_eq!(run(&mut one, each), run(&mut two, each));
            }
            prop_assert_eq!(one.save(), two.save());
        }
    }

    #[test]
    fn pins_that_are_too_many_or_cannot_be_are_refused() {
        let mut ioapic = IoApic::default();
        let good = ioapic.save();
        let with = |redirection: u64| {
            let mut pins = good.pins.clone();
            pins[3].redirection = redirection;
            IoApicState { pins, ..good.clone() }
        };
        let of = |count: usize| IoApicState { pins: vec![good.pins[0]; count], ..good.clone() };
        let id = IoApicState { id: 16, ..good.clone() };
        for bad in [with(DELIVERY_STATUS), with(REMOTE_IRR), of(0), of(23), of(25), id] {
            ioapic.restore(bad).unwrap_err();
            assert_eq!(ioapic.save(), good, "nothing has changed");
        }
        ioapic.restore(with(REMOTE_IRR | LEVEL)).unwrap();
    }

    #[test]
    fn damaged_bytes_do_no_harm() {
        damage(&IoApic::default().save(), 0x01, |state| {
            let mut fresh = IoApic::default();
            fresh.restore(state).unwrap();
            for pin in 0..IOAPIC_PINS {
                fresh.pulse(pin);
            }
        });
    }
}
