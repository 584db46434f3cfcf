//! What is left of the 8254 timer: channel 2 behind port 0x61, as a stop watch.
//!
//! Linux can measure the TSC by letting channel 2 count down and polling its output in port 0x61
//! (bit 5) while it reads the PM timer before and after. Without a real delay that measurement
//! would be far off, so the output here rises when the programmed count has passed on the guest
//! clock. Counters themselves read zero, which ends Linux' quick calibration at once, and channel
//! 0 never interrupts: with a TSC-deadline timer Linux does not use it.

use crate::traits::GuestClock;
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// Counts of the 8254 in a second.
const PIT_HZ: u128 = 1_193_182;
const GATE: u8 = 1;
const SPEAKER: u8 = 2;
const OUTPUT: u8 = 0x20;

/// Channel 2 and its gate.
#[derive(Debug, Default)]
pub(crate) struct Pit {
    /// Low byte of a count of which the high byte is still to come.
    half: Option<u8>,
    count: u16,
    /// Guest clock when the count was loaded or the gate opened.
    start: u64,
    control: u8,
}

impl Pit {
    /// Writes port 0x40 + `offset`.
    pub(crate) fn write(&mut self, offset: u16, value: u8, clock: &dyn GuestClock) {
        match (offset, self.half.take()) {
            (2, None) => self.half = Some(value),
            (2, Some(low)) => {
                self.count = u16::from_le_bytes([low, value]);
                self.start = clock.ticks();
            }
            _ => {}
        }
    }

    /// Writes port 0x61.
    pub(crate) fn write_control(&mut self, value: u8, clock: &dyn GuestClock) {
        let value = value & (GATE | SPEAKER);
        if value & GATE > self.control & GATE {
            self.start = clock.ticks();
        }
        self.control = value;
    }

    /// Reads port 0x61.
    pub(crate) fn read_control(&self, clock: &dyn GuestClock) -> u8 {
        // A count of zero means 65536.
        let count = if self.count == 0 { 0x1_0000 } else { u128::from(self.count) };
        let elapsed = u128::from(clock.ticks().saturating_sub(self.start)) * PIT_HZ;
        let done = elapsed >= count * u128::from(clock.frequency_hz());
        self.control | if done { OUTPUT } else { 0 }
    }
}

/// Channel 2 and its gate. Its output follows from these and the guest's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PitState {
    /// Low byte of a count of which the high byte has not been written.
    pub low_byte: Option<u8>,
    /// The count; zero means 65536.
    pub count: u16,
    /// Guest clock, in its ticks, when the count was loaded or the gate opened.
    pub start: u64,
    /// Gate (bit 0) and speaker (bit 1) of port 0x61.
    pub control: u8,
}

impl SavedState for PitState {
    const NAME: &'static str = "pit";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = 64;

    fn check(&self) -> Result<(), Invalid> {
        let known = self.control & !(GATE | SPEAKER) == 0;
        Invalid::unless(known, "control", "bits that port 0x61 does not keep")
    }
}

impl Saved for Pit {
    type State = PitState;

    fn save(&self) -> PitState {
        let Self { half, count, start, control } = *self;
        PitState { low_byte: half, count, start, control }
    }

    fn restore(&mut self, state: PitState) -> Result<(), Invalid> {
        state.check()?;
        let PitState { low_byte, count, start, control } = state;
        *self = Self { half: low_byte, count, start, control };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::testing::{bring_over, damage};
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Default)]
    struct Manual(AtomicU64);
    impl GuestClock for Manual {
        fn ticks(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
        fn frequency_hz(&self) -> u64 {
            1_000_000
        }
    }

    #[test]
    fn output_rises_when_the_count_has_passed() {
        let clock = Manual::default();
        let mut pit = Pit::default();
        pit.write_control(GATE, &clock);
        pit.write(3, 0xb0, &clock);
        // 11 931 counts are 10 ms.
        pit.write(2, 0x9b, &clock);
        pit.write(2, 0x2e, &clock);
        clock.0.store(9_990, Ordering::Relaxed);
        assert_eq!(pit.read_control(&clock), GATE);
        clock.0.store(10_000, Ordering::Relaxed);
        assert_eq!(pit.read_control(&clock), GATE | OUTPUT);
    }

    #[test]
    fn opening_the_gate_restarts_the_count() {
        let clock = Manual::default();
        let mut pit = Pit::default();
        clock.0.store(1_000_000, Ordering::Relaxed);
        assert_eq!(pit.read_control(&clock), OUTPUT);
        pit.write_control(GATE, &clock);
        assert_eq!(pit.read_control(&clock), GATE);
    }

    #[test]
    fn control_bits_that_do_not_exist_are_refused() {
        let mut pit = Pit::default();
        let good = pit.save();
        pit.restore(PitState { control: OUTPUT, ..good.clone() }).unwrap_err();
        assert_eq!(pit.save(), good);
        damage(&good, 0x41, |state| Pit::default().restore(state).unwrap());
    }

    proptest! {
        #[test]
        fn restored_timer_goes_on_as_the_saved_one(
            writes in prop::collection::vec((0_u16..5, any::<u8>(), 0_u64..100_000), 0..20),
            later in prop::collection::vec((0_u16..5, any::<u8>(), 0_u64..100_000), 0..20),
        ) {
            let clock = Manual::default();
            let (mut one, mut two) = (Pit::default(), Pit::default());
            let step = |pit: &mut Pit, (port, value, _): (u16, u8, u64)| {
                if port == 4 {
                    pit.write_control(value, &clock);
                } else {
                    pit.write(port, value, &clock);
                }
                pit.read_control(&clock)
            };
            for write in writes {
                clock.0.fetch_add(write.2, Ordering::Relaxed);
                step(&mut one, write);
            }
            bring_over(&one, &mut two);
            for write in later {
                clock.0.fetch_add(write.2, Ordering::Relaxed);
                prop_assert_eq!(step(&mut one, write), step(&mut two, write));
            }
        }
    }
}
