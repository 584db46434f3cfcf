//! What is left of the 8254 timer: channel 2 behind port 0x61, as a stop watch.
//!
//! Linux can measure the TSC by letting channel 2 count down and polling its output in port 0x61
//! (bit 5) while it reads the PM timer before and after. Without a real delay that measurement
//! would be far off, so the output here rises when the programmed count has passed on the guest
//! clock. Counters themselves read zero, which ends Linux' quick calibration at once, and channel
//! 0 never interrupts: with a TSC-deadline timer Linux does not use it.

use crate::seams::GuestClock;

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

#[cfg(test)]
mod tests {
    use super::*;
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
}
