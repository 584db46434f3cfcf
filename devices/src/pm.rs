//! Power management: the fixed ACPI registers, reset and the panic port.
//!
//! PM1 and the PM timer are the non-hardware-reduced registers of ACPI 6.5, 4.8.3. The only event is
//! the power button; the enable bits of others just read back, which Linux checks when it enables the
//! global lock.
//!
//! ```text
//!              press                     guest writes 1
//!   no status ------> PWRBTN_STS is set ---------------> no status
//!                       |  while PWRBTN_EN is set: one edge of the SCI at each press, or at the enabling
//! ```

use crate::traits::GuestClock;
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// PM1 event block: status (2 bytes), enable (2 bytes).
pub(crate) const PM1_EVENT_PORT: u16 = 0x600;
/// PM1 control block (2 bytes).
pub(crate) const PM1_CONTROL_PORT: u16 = 0x604;
/// PM timer (4 bytes).
pub(crate) const PM_TIMER_PORT: u16 = 0x608;
/// ACPI reset register, the reset control register of PC chipsets.
pub(crate) const RESET_PORT: u16 = 0xcf9;
/// Value of the reset register that resets: system reset plus reset now.
pub(crate) const RESET_VALUE: u8 = 0x06;
/// QEMU's pvpanic port.
pub(crate) const PVPANIC_PORT: u16 = 0x505;
/// Event bit of that port: the guest has panicked.
pub(crate) const PVPANIC_PANICKED: u8 = 1;
/// Sleep type of S5, as the DSDT says.
pub(crate) const SLEEP_TYPE_S5: u8 = 5;

/// Ticks of the PM timer in a second (ACPI 6.5, 4.8.2.1).
const PM_TIMER_HZ: u128 = 3_579_545;

/// Bit of the power button in the high bytes of status and enable register: bit 8 of each (ACPI 6.5,
/// tables 4.11 and 4.12).
const POWER_BUTTON: u8 = 1;

/// The PM1 registers.
#[derive(Debug, Default)]
pub(crate) struct Pm1 {
    status: [u8; 2],
    enable: [u8; 2],
}

/// What a write of a PM1 register asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pm1Write {
    /// Nothing.
    Stored,
    /// An event that had happened is enabled now: the SCI.
    Event,
    /// Sleep state S5.
    PowerOff,
}

impl Pm1 {
    /// Presses the power button. True: the guest has enabled its event, and the SCI is due.
    pub(crate) fn press_power_button(&mut self) -> bool {
        self.status[1] |= POWER_BUTTON;
        self.pending()
    }

    /// An event has happened and is enabled.
    fn pending(&self) -> bool {
        self.status[1] & self.enable[1] & POWER_BUTTON != 0
    }

    /// Reads the byte at this offset from [`PM1_EVENT_PORT`].
    pub(crate) fn read(&self, offset: u16) -> u8 {
        match offset {
            0 => self.status[0],
            1 => self.status[1],
            2 => self.enable[0],
            3 => self.enable[1],
            // SCI_EN: the machine is in ACPI mode from the start.
            4 => 1,
            _ => 0,
        }
    }

    /// Writes that byte.
    pub(crate) fn write(&mut self, offset: u16, value: u8) -> Pm1Write {
        let before = self.pending();
        match offset {
            // Writing one clears.
            0 => self.status[0] &= !value,
            1 => self.status[1] &= !value,
            2 => self.enable[0] = value,
            3 => self.enable[1] = value,
            // Bits 10-12 are SLP_TYP, bit 13 is SLP_EN.
            5 if value & 0x20 != 0 && (value >> 2) & 7 == SLEEP_TYPE_S5 => {
                return Pm1Write::PowerOff;
            }
            _ => {}
        }
        if !before && self.pending() { Pm1Write::Event } else { Pm1Write::Stored }
    }
}

/// The PM1 registers. The PM timer follows from the guest's clock and is not part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pm1State {
    /// Status register: the power button in bit 8, the only event there is.
    pub status: u16,
    /// Enable register.
    pub enable: u16,
}

impl SavedState for Pm1State {
    const NAME: &'static str = "pm1";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = 32;

    fn check(&self) -> Result<(), Invalid> {
        let events = u16::from_le_bytes([0, POWER_BUTTON]);
        Invalid::unless(self.status & !events == 0, "status", "events that do not exist")
    }
}

impl Saved for Pm1 {
    type State = Pm1State;

    fn save(&self) -> Pm1State {
        let [status, enable] = [self.status, self.enable].map(u16::from_le_bytes);
        Pm1State { status, enable }
    }

    fn restore(&mut self, state: Pm1State) -> Result<(), Invalid> {
        state.check()?;
        let [status, enable] = [state.status, state.enable].map(u16::to_le_bytes);
        *self = Self { status, enable };
        Ok(())
    }
}

/// The PM timer now: derived from the guest clock alone, so that it never jumps against the TSC
/// and follows a scaled guest clock.
pub(crate) fn pm_timer(clock: &dyn GuestClock) -> [u8; 4] {
    scale(clock, PM_TIMER_HZ).to_le_bytes()
}

/// Ticks of a counter of this frequency, modulo 2^32.
fn scale(clock: &dyn GuestClock, hertz: u128) -> u32 {
    let frequency = u128::from(clock.frequency_hz().max(1));
    let ticks = u128::from(clock.ticks()) * hertz / frequency;
    u32::try_from(ticks & u128::from(u32::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::testing::{bring_over, damage};
    use proptest::prelude::*;

    struct Fixed(u64, u64);
    impl GuestClock for Fixed {
        fn ticks(&self) -> u64 {
            self.0
        }
        fn frequency_hz(&self) -> u64 {
            self.1
        }
    }

    #[test]
    fn pm_timer_one_second_is_its_frequency() {
        let ticks = u32::from_le_bytes(pm_timer(&Fixed(2_600_000_000, 2_600_000_000)));
        assert_eq!(ticks, 3_579_545);
    }

    #[test]
    fn pm_timer_large_counts_do_not_overflow() {
        let before = u32::from_le_bytes(pm_timer(&Fixed(u64::MAX - 1_000_000, 1_000_000)));
        let after = u32::from_le_bytes(pm_timer(&Fixed(u64::MAX, 1_000_000)));
        assert!((3_579_545..=3_579_546).contains(&after.wrapping_sub(before)));
        assert_eq!(pm_timer(&Fixed(0, 0)), [0; 4]);
    }

    #[test]
    fn pm1_sleep_other_than_s5_is_ignored() {
        let mut pm1 = Pm1::default();
        assert_eq!(pm1.write(5, 0x20 | (3 << 2)), Pm1Write::Stored);
        assert_eq!(pm1.write(5, SLEEP_TYPE_S5 << 2), Pm1Write::Stored);
        assert_eq!(pm1.write(5, 0x20 | (SLEEP_TYPE_S5 << 2)), Pm1Write::PowerOff);
    }

    #[test]
    fn pm1_registers_read_as_in_acpi_mode() {
        let mut pm1 = Pm1::default();
        pm1.write(2, 0x20);
        pm1.write(0, 0xff);
        assert_eq!([0, 2, 4, 5].map(|offset| pm1.read(offset)), [0, 0x20, 1, 0]);
    }

    #[test]
    fn pm1_button_is_an_event_once_it_is_enabled_and_until_it_is_cleared() {
        let mut pm1 = Pm1::default();
        assert!(!pm1.press_power_button());
        assert_eq!(pm1.read(1), 1);
        assert_eq!(pm1.write(3, 1), Pm1Write::Event);
        assert_eq!(pm1.write(3, 1), Pm1Write::Stored);
        assert!(pm1.press_power_button());
        // Other bits clear nothing.
        assert_eq!(pm1.write(1, 0xfe), Pm1Write::Stored);
        assert_eq!(pm1.read(1), 1);
        assert_eq!(pm1.write(1, 1), Pm1Write::Stored);
        assert_eq!(pm1.read(1), 0);
        assert_eq!(pm1.write(3, 0), Pm1Write::Stored);
        assert!(!pm1.press_power_button());
    }

    #[test]
    fn pm1_events_that_do_not_exist_are_refused() {
        let mut pm1 = Pm1::default();
        let good = pm1.save();
        pm1.restore(Pm1State { status: 1, enable: 0 }).unwrap_err();
        assert_eq!(pm1.save(), good);
        damage(&good, 0x11, |state| Pm1::default().restore(state).unwrap());
    }

    proptest! {
        #[test]
        fn pm1_restored_goes_on_as_the_saved_one(
            before in prop::collection::vec((0_u16..8, any::<u8>()), 0..20),
            after in prop::collection::vec((0_u16..8, any::<u8>()), 0..20),
        ) {
            let (mut one, mut two) = (Pm1::default(), Pm1::default());
            // Past the last register: the button.
            let step = |pm1: &mut Pm1, (offset, value): (u16, u8)| match offset {
                6.. => (Pm1Write::Stored, u8::from(pm1.press_power_button())),
                _ => (pm1.write(offset, value), pm1.read(offset)),
            };
            for write in before {
                step(&mut one, write);
            }
            bring_over(&one, &mut two);
            for write in after {
                prop_assert_eq!(step(&mut one, write), step(&mut two, write));
            }
        }
    }
}
