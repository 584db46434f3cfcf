//! The timer of a local APIC (Intel SDM vol. 3, 12.5.4): one-shot, periodic and TSC-deadline.
//!
//! Counts are nanoseconds divided by the divide register, as those of KVM's APIC, whose bus has 1 GHz: a guest that has
//! measured its timer finds it as fast with either kind of APIC. Time is the guest's time stamp counter. Pure.

use crate::tsc::{nanoseconds_of, ticks_of};
use migrate::Invalid;
use serde::{Deserialize, Serialize};

/// Bits of the divide register.
pub(super) const DIVIDE_BITS: u32 = 0b1011;

/// Modes of the timer, bits 18:17 of its local vector table entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    OneShot,
    Periodic,
    Deadline,
}

impl Mode {
    fn from_bits(bits: u32) -> Self {
        match bits {
            0 => Self::OneShot,
            1 => Self::Periodic,
            _ => Self::Deadline,
        }
    }
}

/// The saved form of a timer. Its mode is in its entry of the local vector table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimerState {
    /// Divide register.
    pub divide: u32,
    /// Initial count.
    pub initial: u32,
    /// Start of the count that runs, in guest ticks.
    pub started: Option<u64>,
    /// Deadline in guest ticks; 0 is disarmed.
    pub deadline: u64,
}

impl TimerState {
    /// Whether a timer can be in this state, in the mode of these two bits of its vector table entry.
    ///
    /// # Errors
    /// The first field that cannot.
    pub fn check(&self, bits: u32) -> Result<(), Invalid> {
        let unless = |holds, why| Invalid::unless(holds, "apic", why);
        let counts = Mode::from_bits(bits) != Mode::Deadline;
        unless(self.divide & !DIVIDE_BITS == 0, "reserved bits of the timer's divider")?;
        unless(self.deadline == 0 || !counts, "a deadline of a timer that counts")?;
        unless(self.started.is_none() || counts, "a count of a timer with a deadline")?;
        unless(self.started.is_none() || self.initial != 0, "a count of nothing")
    }
}

/// The timer of one local APIC.
#[derive(Clone, Debug)]
pub struct LapicTimer {
    /// Frequency of the time stamp counter in kHz.
    khz: u32,
    mode: Mode,
    divide: u32,
    initial: u32,
    /// Start of the count that runs (one-shot and periodic).
    started: Option<u64>,
    /// Deadline; 0 is disarmed.
    deadline: u64,
}

impl LapicTimer {
    /// A timer as after reset, by a time stamp counter of this frequency in kHz.
    #[must_use]
    pub fn new(khz: u32) -> Self {
        Self::restored(khz, 0, TimerState::default())
    }

    /// Frequency of the time stamp counter in kHz.
    #[must_use]
    pub fn khz(&self) -> u32 {
        self.khz
    }

    /// Sets the mode from the two bits of the local vector table. Going to or from deadline mode
    /// disarms the timer.
    pub fn set_mode(&mut self, bits: u32) {
        let mode = Mode::from_bits(bits);
        if (mode == Mode::Deadline) != (self.mode == Mode::Deadline) {
            self.deadline = 0;
            self.started = None;
        }
        self.mode = mode;
    }

    /// The state now.
    #[must_use]
    pub fn save(&self) -> TimerState {
        let Self { khz: _, mode: _, divide, initial, started, deadline } = *self;
        TimerState { divide, initial, started, deadline }
    }

    /// A timer in a state that was checked, in the mode of these two bits.
    #[must_use]
    pub fn restored(khz: u32, bits: u32, state: TimerState) -> Self {
        let TimerState { divide, initial, started, deadline } = state;
        Self { khz, mode: Mode::from_bits(bits), divide, initial, started, deadline }
    }

    /// Whether it counts, in its mode, and has no deadline.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.mode != Mode::Deadline
    }

    /// Has the count run so that this much of it is left at `now`.
    pub fn set_left(&mut self, left: u32, now: u64) {
        let due = now.wrapping_add(self.ticks(left));
        self.started = (self.initial != 0).then(|| due.wrapping_sub(self.period()));
    }

    /// Writes `IA32_TSC_DEADLINE`; ignored in the other modes.
    pub fn set_deadline(&mut self, deadline: u64) {
        if self.mode == Mode::Deadline {
            self.deadline = deadline;
        }
    }

    /// Reads `IA32_TSC_DEADLINE`: 0 when disarmed.
    #[must_use]
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Writes the initial count, which starts the timer (0 stops it); ignored in deadline mode.
    pub fn set_initial_count(&mut self, count: u32, now: u64) {
        if self.mode == Mode::Deadline {
            return;
        }
        self.initial = count;
        self.started = (count != 0).then_some(now);
    }

    /// The initial count.
    #[must_use]
    pub fn initial_count(&self) -> u32 {
        self.initial
    }

    /// Writes the divide register; a running count starts over.
    pub fn set_divide(&mut self, value: u32, now: u64) {
        self.divide = value & DIVIDE_BITS;
        self.started = self.started.map(|_| now);
    }

    /// The divide register.
    #[must_use]
    pub fn divide(&self) -> u32 {
        self.divide
    }

    /// Nanoseconds of a count, as a power of two.
    fn shift(&self) -> u32 {
        // 0b000 divides by 2, 0b001 by 4, ... 0b110 by 128, 0b111 by 1.
        ((self.divide & 3 | self.divide >> 1 & 4) + 1) & 7
    }

    /// Ticks of the time stamp counter that so many counts take.
    fn ticks(&self, counts: u32) -> u64 {
        ticks_of(u64::from(counts) << self.shift(), self.khz)
    }

    fn period(&self) -> u64 {
        self.ticks(self.initial)
    }

    /// What is left of the count.
    #[must_use]
    pub fn current_count(&self, now: u64) -> u32 {
        let Some(due) = self.due().filter(|_| self.counts()) else { return 0 };
        let period = self.period();
        let left = match now.checked_sub(due) {
            // A clock that was set back does not make it longer.
            None | Some(0) => due.saturating_sub(now).min(period),
            Some(late) if self.mode == Mode::Periodic => period - late % period.max(1),
            Some(_) => 0,
        };
        let left = nanoseconds_of(left, self.khz) >> self.shift();
        u32::try_from(left).unwrap_or(u32::MAX).min(self.initial)
    }

    /// When the timer is due, in guest ticks; `None` when it is not armed.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        match self.mode {
            Mode::Deadline => (self.deadline != 0).then_some(self.deadline),
            // The count may have begun before the counter of this host did.
            _ => self.started.map(|started| started.wrapping_add(self.period())),
        }
    }

    /// Takes the expiry if the timer is due at `now`; a periodic timer goes on, and skips the
    /// periods that have passed.
    pub fn expire(&mut self, now: u64) -> bool {
        let Some(due) = self.due().filter(|due| *due <= now) else { return false };
        self.deadline = 0;
        let period = self.period().max(1);
        self.started = (self.mode == Mode::Periodic).then(|| now - (now - due) % period);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One tick of the counter takes a nanosecond.
    const KHZ: u32 = 1_000_000;

    fn deadline_timer() -> LapicTimer {
        let mut timer = LapicTimer::new(KHZ);
        timer.set_mode(2);
        timer
    }

    #[test]
    fn deadline_fires_once_and_disarms() {
        let mut timer = deadline_timer();
        timer.set_deadline(1000);
        assert!(!timer.expire(999));
        assert!(timer.expire(1000));
        assert_eq!(timer.deadline(), 0);
        assert!(!timer.expire(5000));
    }

    #[test]
    fn deadline_is_ignored_outside_its_mode() {
        let mut timer = LapicTimer::new(KHZ);
        timer.set_deadline(1000);
        assert_eq!(timer.due(), None);
    }

    #[test]
    fn leaving_deadline_mode_disarms() {
        let mut timer = deadline_timer();
        timer.set_deadline(1000);
        timer.set_mode(0);
        assert_eq!(timer.due(), None);
    }

    #[test]
    fn one_shot_counts_down_with_the_divider() {
        let mut timer = LapicTimer::new(KHZ);
        timer.set_divide(0b0011, 0); // by 16
        timer.set_initial_count(100, 1000);
        assert_eq!(timer.current_count(1000), 100);
        assert_eq!(timer.current_count(1000 + 160), 90);
        assert_eq!(timer.due(), Some(2600));
        assert!(timer.expire(2600));
        assert_eq!(timer.due(), None);
        assert_eq!(timer.current_count(3000), 0);
    }

    #[test]
    fn divider_of_one_is_the_odd_code() {
        let mut timer = LapicTimer::new(KHZ);
        timer.set_divide(0b1011, 0);
        timer.set_initial_count(7, 0);
        assert_eq!(timer.due(), Some(7));
    }

    #[test]
    fn periodic_timer_skips_missed_periods() {
        let mut timer = LapicTimer::new(KHZ);
        timer.set_mode(1);
        timer.set_divide(0b1011, 0);
        timer.set_initial_count(100, 0);
        assert!(timer.expire(350));
        assert_eq!(timer.due(), Some(400));
        assert!(!timer.expire(399));
    }

    #[test]
    fn counts_are_of_a_gigahertz_whatever_the_counter() {
        let mut timer = LapicTimer::new(2_500_000);
        timer.set_divide(0b0011, 0); // by 16
        timer.set_initial_count(1000, 0);
        assert_eq!(timer.due(), Some(40_000));
        assert_eq!(timer.current_count(20_000), 500);
    }

    #[test]
    fn count_that_began_before_the_counter_did_goes_on() {
        let mut timer = LapicTimer::new(KHZ);
        timer.set_divide(0b1011, 0);
        timer.set_initial_count(1000, 5);
        timer.set_left(300, 10);
        assert_eq!(
            (timer.due(), timer.current_count(10), timer.current_count(60)),
            (Some(310), 300, 250)
        );
        assert!(!timer.expire(309));
        assert!(timer.expire(310));
    }

    proptest! {
        /// What is left is what is left, whatever the counter.
        #[test]
        fn rest_of_a_count_can_be_set(
            khz in 1_000_000_u32..6_000_000, divide: u32, (initial, left) in (1_u32.., any::<u32>()),
            periodic: bool, now: u64,
        ) {
            let left = 1 + left % initial;
            let mut timer = LapicTimer::new(khz);
            timer.set_mode(u32::from(periodic));
            timer.set_divide(divide, 0);
            timer.set_initial_count(initial, 0);
            let now = now >> 8;
            timer.set_left(left, now);
            prop_assert_eq!(timer.current_count(now), left);
            prop_assert!(timer.due().is_some_and(|due| due > now));
        }

        #[test]
        fn timer_never_fires_before_it_is_due(
            mode in 0_u32..4, divide in any::<u32>(), count in any::<u32>(),
            start in 0_u64..1 << 62, later in 0_u64..1 << 62
        ) {
            let mut timer = LapicTimer::new(KHZ);
            timer.set_mode(mode);
            timer.set_divide(divide, start);
            timer.set_initial_count(count, start);
            timer.set_deadline(start + 1);
            let due = timer.due();
            prop_assert_eq!(timer.expire(later), due.is_some_and(|due| due <= later));
            prop_assert!(timer.due().is_none_or(|due| due > later));
        }
    }
}
