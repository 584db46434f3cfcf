//! The guest's time stamp counter, read from the VMM, and the clock rate that the guest is told.
//!
//! The counter itself is never scaled: the guest sees the host's counter plus one offset, the same
//! on every vCPU. `ClockRate` only changes the *frequency the guest is told*. A guest that is told
//! ten times the true frequency takes ten real seconds for one of its own; in an emulated lab,
//! where a page fault costs some forty times what it does on metal, that keeps timer ticks in
//! proportion to faults.

#![expect(unsafe_code, reason = "RDTSC is an intrinsic")]
// UNSAFETY: the counter can only be read with the `_rdtsc` intrinsic.

use devices::GuestClock;
use std::arch::x86_64::_rdtsc;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seconds of guest time per second of real time, above 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockRate(f64);

/// A clock rate that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("guest clock rate {text} is not a number from 0.001 to 1")]
pub struct ClockRateError {
    text: String,
}

impl ClockRate {
    /// The guest's time is real time.
    pub const REAL: Self = Self(1.0);

    /// Guest time runs at `rate` of real time.
    ///
    /// # Errors
    /// When the rate is not within 0.001 and 1.
    pub fn new(rate: f64) -> Result<Self, ClockRateError> {
        if (0.001..=1.0).contains(&rate) {
            Ok(Self(rate))
        } else {
            Err(ClockRateError { text: rate.to_string() })
        }
    }

    /// The frequency to tell the guest for a counter that truly runs at `khz`.
    #[must_use]
    pub fn told_khz(self, khz: u32) -> u32 {
        let told = (f64::from(khz) / self.0).round().min(f64::from(u32::MAX));
        // Rounded, positive and no more than u32::MAX by the line above.
        #[expect(clippy::cast_possible_truncation, reason = "bounded by the line above")]
        #[expect(clippy::cast_sign_loss, reason = "positive by construction")]
        {
            told as u32
        }
    }
}

impl FromStr for ClockRate {
    type Err = ClockRateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rate = text.parse().map_err(|_| ClockRateError { text: text.to_owned() })?;
        Self::new(rate)
    }
}

impl fmt::Display for ClockRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The guest's time stamp counter.
#[derive(Debug)]
pub struct GuestTsc {
    offset: AtomicU64,
    true_khz: u32,
    told_khz: u32,
}

/// The host's time stamp counter now.
#[must_use]
pub fn host_ticks() -> u64 {
    // SAFETY: every x86-64 CPU has RDTSC, and the host leaves it open to user space.
    unsafe { _rdtsc() }
}

impl GuestTsc {
    /// A counter with offset 0 on a host whose counter runs at `true_khz`.
    #[must_use]
    pub fn new(true_khz: u32, rate: ClockRate) -> Self {
        Self { offset: AtomicU64::new(0), true_khz, told_khz: rate.told_khz(true_khz) }
    }

    /// Sets what is added to the host's counter (wrapping), as in `KVM_VCPU_TSC_OFFSET`.
    pub fn set_offset(&self, offset: u64) {
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// What is added to the host's counter.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset.load(Ordering::Relaxed)
    }

    /// Frequency of the counter in kHz of real time.
    #[must_use]
    pub fn true_khz(&self) -> u32 {
        self.true_khz
    }

    /// Frequency that the guest is told, in kHz: for `tsc_early_khz=` and CPUID.
    #[must_use]
    pub fn told_khz(&self) -> u32 {
        self.told_khz
    }

    /// The guest's counter now.
    #[must_use]
    pub fn now(&self) -> u64 {
        host_ticks().wrapping_add(self.offset())
    }

    /// Real time until the guest's counter reaches `deadline`; zero when it has.
    #[must_use]
    pub fn until(&self, deadline: u64) -> Duration {
        // The counter wraps after centuries, but a deadline of a guest may be anything: a deadline
        // that is more than half the range ahead is in the past.
        let ahead = deadline.wrapping_sub(self.now());
        if ahead == 0 || ahead > u64::MAX / 2 {
            return Duration::ZERO;
        }
        ticks_to_duration(ahead, self.true_khz)
    }
}

/// Whole nanoseconds that so many ticks of a counter at `khz` take.
#[must_use]
pub fn nanoseconds_of(ticks: u64, khz: u32) -> u64 {
    let nanoseconds = u128::from(ticks) * 1_000_000 / u128::from(khz.max(1));
    u64::try_from(nanoseconds).unwrap_or(u64::MAX)
}

/// Ticks of a counter at `khz` after which so many nanoseconds have passed.
#[must_use]
pub fn ticks_of(nanoseconds: u64, khz: u32) -> u64 {
    let ticks = (u128::from(nanoseconds) * u128::from(khz)).div_ceil(1_000_000);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// Converts ticks of a counter at `khz` to time.
#[must_use]
pub fn ticks_to_duration(ticks: u64, khz: u32) -> Duration {
    Duration::from_nanos(nanoseconds_of(ticks, khz))
}

impl GuestClock for GuestTsc {
    fn ticks(&self) -> u64 {
        self.now()
    }

    fn frequency_hz(&self) -> u64 {
        u64::from(self.told_khz) * 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_of_a_tenth_tells_ten_times_the_frequency() {
        let rate: ClockRate = "0.1".parse().unwrap();
        let clock = GuestTsc::new(2_600_000, rate);
        assert_eq!(clock.told_khz(), 26_000_000);
        assert_eq!(clock.frequency_hz(), 26_000_000_000);
        assert_eq!(clock.true_khz(), 2_600_000);
    }

    #[test]
    fn rates_out_of_range_are_refused() {
        for bad in ["0", "-1", "1.5", "nan", "inf", "x", ""] {
            assert!(bad.parse::<ClockRate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn past_deadline_is_due_at_once() {
        let clock = GuestTsc::new(1_000_000, ClockRate::REAL);
        assert_eq!(clock.until(clock.now().wrapping_sub(1)), Duration::ZERO);
        assert_eq!(clock.until(0), Duration::ZERO);
    }

    #[test]
    fn offset_moves_the_counter() {
        let clock = GuestTsc::new(1_000_000, ClockRate::REAL);
        clock.set_offset(0_u64.wrapping_sub(host_ticks()));
        assert!(clock.now() < u64::MAX / 2);
        assert!(clock.until(clock.now() + 3_600_000_000_000) > Duration::from_secs(3000));
    }

    #[test]
    fn ticks_become_real_time() {
        assert_eq!(ticks_to_duration(2_600_000, 2_600_000), Duration::from_millis(1));
        assert_eq!(ticks_to_duration(u64::MAX, 0), Duration::from_nanos(u64::MAX));
    }
}
