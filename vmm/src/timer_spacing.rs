//! Timer spacing: a minimum time between the end of one timer interrupt and the next.
//!
//! Over shared memory a tick can cost more than a tick period: it writes three or four pages that
//! every vCPU writes, and each may have to come from another host. A vCPU that does nothing but
//! ticks never gets on. Delivering the timer late is legal (an overcommitted host does it all the
//! time), so each vCPU keeps a minimum time from the EOI of its last timer interrupt to the next.
//!
//! This file is pure logic in ticks of the time stamp counter; the back ends feed it.
//!
//! ```text
//!   timer due --(earliest() reached)--> delivered --> EOI --> ... handler ... --> finished
//!                                          |           |                             |
//!                                          |           +-- earliest = EOI + spacing  |
//!                                          +------------- cost of the tick ----------+
//! ```

use std::str::FromStr;
use std::time::Duration;

/// How timer interrupts of one vCPU are spaced. All times are host time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerSpacing {
    /// The guest's deadlines are kept as they are.
    Off,
    /// Always the same minimum time.
    Fixed(Duration),
    /// Grows while handling a tick costs more than its share of it, shrinks again when ticks are
    /// cheap.
    Adaptive {
        /// Never shorter than this, and the value at the start.
        min: Duration,
        /// Never longer than this.
        max: Duration,
        /// A tick may cost one part in so many of the spacing, 1 to 1000.
        parts: u64,
    },
}

/// Why a text is no timer spacing.
#[derive(Debug, thiserror::Error)]
pub enum TimerSpacingError {
    /// Not `off`, a number of milliseconds, or `adaptive[:MIN-MAX[/PARTS]]`.
    #[error(
        "timer spacing {text:?} is not off, MILLISECONDS, adaptive, adaptive:MIN-MAX or adaptive:MIN-MAX/PARTS"
    )]
    Malformed {
        /// What was given.
        text: String,
    },
    /// More than ten seconds, a minimum above the maximum, or no or too many parts.
    #[error(
        "timer spacing {text:?} is out of range: at most 10000 ms, minimum up to maximum, 1 to 1000 parts"
    )]
    OutOfRange {
        /// What was given.
        text: String,
    },
}

/// Longest spacing that is accepted; a guest that gets no tick for longer reports stalls.
const LONGEST_MS: u64 = 10_000;
/// Most parts: a tick that costs a millisecond asks for a second between ticks then.
const MOST_PARTS: u64 = 1000;
/// A tick may cost one part in so many of the spacing, unless given (decision 75).
const PARTS: u64 = 32;

impl FromStr for TimerSpacing {
    type Err = TimerSpacingError;

    /// Reads `off`, `MILLISECONDS`, `adaptive` (2 to 200 ms), `adaptive:MIN-MAX` or `adaptive:MIN-MAX/PARTS`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || TimerSpacingError::Malformed { text: text.to_owned() };
        let number = |part: &str| part.parse::<u64>().map_err(|_| malformed());
        let (min, max, parts, fixed) = match (text, text.strip_prefix("adaptive:")) {
            ("off", _) => return Ok(Self::Off),
            ("adaptive", _) => (2, 200, PARTS, false),
            (_, None) => (number(text)?, number(text)?, PARTS, true),
            (_, Some(bounds)) => {
                let (range, parts) = match bounds.split_once('/') {
                    Some((range, parts)) => (range, number(parts)?),
                    None => (bounds, PARTS),
                };
                let (min, max) = range.split_once('-').ok_or_else(malformed)?;
                (number(min)?, number(max)?, parts, false)
            }
        };
        if max > LONGEST_MS || min > max || !(1..=MOST_PARTS).contains(&parts) {
            return Err(TimerSpacingError::OutOfRange { text: text.to_owned() });
        }
        let (min, max) = (Duration::from_millis(min), Duration::from_millis(max));
        Ok(match (fixed, max.is_zero()) {
            (_, true) => Self::Off,
            (true, _) => Self::Fixed(max),
            (false, _) => Self::Adaptive { min, max, parts },
        })
    }
}

/// So many ticks in a row must fit before the spacing shrinks to twice what the dearest of them needs.
const TICKS: u32 = 8;

/// The spacing of one vCPU. All times are ticks of one counter.
#[derive(Clone, Debug)]
pub struct SpacingState {
    min: u64,
    max: u64,
    parts: u64,
    current: u64,
    last_eoi: Option<u64>,
    delivered: Option<u64>,
    /// Ticks in a row that cost no more than their share, and the least spacing of which that holds for the dearest of them.
    fits: u32,
    enough: u64,
}

impl SpacingState {
    /// Starts with the shortest spacing of the policy, in ticks of a counter that runs at `khz`.
    #[must_use]
    pub fn new(policy: TimerSpacing, khz: u32) -> Self {
        let ticks = |time: Duration| {
            u64::try_from(time.as_nanos() * u128::from(khz) / 1_000_000).unwrap_or(u64::MAX)
        };
        let (min, max, parts) = match policy {
            TimerSpacing::Off => (0, 0, PARTS),
            TimerSpacing::Fixed(time) => (ticks(time), ticks(time), PARTS),
            TimerSpacing::Adaptive { min, max, parts } => (ticks(min), ticks(max), parts),
        };
        Self { min, max, parts, current: min, last_eoi: None, delivered: None, fits: 0, enough: 0 }
    }

    /// True when deadlines are never moved.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.max == 0
    }

    /// Earliest time at which the next timer interrupt may be delivered.
    #[must_use]
    pub fn earliest(&self) -> u64 {
        self.last_eoi.map_or(0, |eoi| eoi.saturating_add(self.current))
    }

    /// The spacing now, in ticks.
    #[must_use]
    pub fn current(&self) -> u64 {
        self.current
    }

    /// A timer interrupt was handed to the vCPU.
    pub fn timer_delivered(&mut self, now: u64) {
        self.delivered = Some(now);
    }

    /// The vCPU ended the timer interrupt at its APIC.
    pub fn timer_eoi(&mut self, now: u64) {
        self.last_eoi = Some(now);
    }

    /// The handler is done: the guest armed the timer again, or went idle. Only the first call
    /// after a delivery counts.
    pub fn timer_finished(&mut self, now: u64) {
        let Some(delivered) = self.delivered.take() else { return };
        if self.min == self.max {
            return;
        }
        let fitting = now.saturating_sub(delivered).saturating_mul(self.parts);
        if fitting > self.current {
            (self.fits, self.enough) = (0, 0);
            self.current = self.current.saturating_mul(2).clamp(1, self.max).max(self.min);
            return;
        }
        self.fits += 1;
        self.enough = self.enough.max(fitting);
        if self.fits >= TICKS {
            self.current = self.enough.saturating_mul(2).clamp(self.min, self.current);
            (self.fits, self.enough) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KHZ: u32 = 1_000_000; // one tick is one nanosecond
    const MS: u64 = 1_000_000;

    fn adaptive() -> SpacingState {
        let policy = TimerSpacing::Adaptive {
            min: Duration::from_millis(2),
            max: Duration::from_millis(64),
            parts: 4,
        };
        SpacingState::new(policy, KHZ)
    }

    fn tick(state: &mut SpacingState, start: u64, cost: u64) {
        state.timer_delivered(start);
        state.timer_eoi(start + 1);
        state.timer_finished(start + cost);
    }

    #[test]
    fn off_never_moves_a_deadline() {
        let mut state = SpacingState::new(TimerSpacing::Off, KHZ);
        tick(&mut state, 5 * MS, MS);
        assert!(state.is_off());
        assert!(state.earliest() <= 5 * MS + 1);
    }

    #[test]
    fn fixed_spacing_counts_from_the_eoi() {
        let mut state = SpacingState::new(TimerSpacing::Fixed(Duration::from_millis(50)), KHZ);
        assert_eq!(state.earliest(), 0);
        tick(&mut state, 100 * MS, 40 * MS);
        assert_eq!(state.earliest(), 150 * MS + 1);
    }

    #[test]
    fn dear_ticks_double_the_spacing_up_to_the_maximum() {
        let mut state = adaptive();
        for n in 0..20 {
            tick(&mut state, n * 1000 * MS, 40 * MS);
        }
        assert_eq!(state.current(), 64 * MS);
    }

    #[test]
    fn cheap_ticks_bring_the_spacing_back_to_the_minimum() {
        let mut state = adaptive();
        for n in 0..20 {
            tick(&mut state, n * 1000 * MS, 40 * MS);
        }
        for n in 20..28 {
            assert_eq!(state.current(), 64 * MS);
            tick(&mut state, n * 1000 * MS, 1000);
        }
        assert_eq!(state.current(), 2 * MS);
    }

    #[test]
    fn spacing_shrinks_to_what_the_dearest_of_the_last_ticks_needs() {
        let mut state = adaptive();
        for n in 0..20 {
            tick(&mut state, n * 1000 * MS, 40 * MS);
        }
        for n in 20..28 {
            tick(&mut state, n * 1000 * MS, if n == 25 { 3 * MS } else { MS });
        }
        // Four times 3 ms, doubled.
        assert_eq!(state.current(), 24 * MS);
    }

    #[test]
    fn dear_ticks_among_cheap_ones_keep_the_spacing() {
        let mut state = SpacingState::new("adaptive:2-200/32".parse().unwrap(), KHZ);
        for n in 0..100 {
            tick(&mut state, n * 1000 * MS, if n % 2 == 0 { 3 * MS / 2 } else { MS / 50 });
            assert!(n < 10 || state.current() >= 48 * MS, "{n}: {}", state.current());
        }
    }

    #[test]
    fn cost_of_a_quarter_keeps_the_spacing() {
        let mut state = adaptive();
        for n in 0..50 {
            tick(&mut state, n * 1000 * MS, MS / 2);
        }
        assert_eq!(state.current(), 2 * MS);
    }

    #[test]
    fn what_a_tick_may_cost_is_as_given() {
        let policy: TimerSpacing = "adaptive:2-64/20".parse().unwrap();
        let mut state = SpacingState::new(policy, KHZ);
        for n in 0..20 {
            tick(&mut state, n * 1000 * MS, MS);
        }
        // 2, 4, 8, 16, 32: a millisecond is less than a twentieth of that.
        assert_eq!(state.current(), 32 * MS);
    }

    #[test]
    fn texts_of_the_command_line_are_read() {
        let adaptive = |min, max, parts| {
            let (min, max) = (Duration::from_millis(min), Duration::from_millis(max));
            TimerSpacing::Adaptive { min, max, parts }
        };
        assert_eq!("off".parse::<TimerSpacing>().unwrap(), TimerSpacing::Off);
        assert_eq!("0".parse::<TimerSpacing>().unwrap(), TimerSpacing::Off);
        assert_eq!(
            "50".parse::<TimerSpacing>().unwrap(),
            TimerSpacing::Fixed(Duration::from_millis(50))
        );
        for (text, read) in [
            ("adaptive", adaptive(2, 200, PARTS)),
            ("adaptive:5-80", adaptive(5, 80, PARTS)),
            ("adaptive:5-80/7", adaptive(5, 80, 7)),
        ] {
            assert_eq!(text.parse::<TimerSpacing>().unwrap(), read, "{text}");
        }
        for bad in [
            "",
            "-1",
            "fast",
            "adaptive:9",
            "adaptive:9-1",
            "20000",
            "adaptive:1-9/",
            "adaptive:1-9/0",
            "adaptive:1-9/1001",
            "adaptive/4",
            "9/4",
        ] {
            assert!(bad.parse::<TimerSpacing>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn spacing_stays_between_minimum_and_maximum(costs in proptest::collection::vec(any::<u64>(), 0..200)) {
            let mut state = adaptive();
            for (n, cost) in costs.iter().enumerate() {
                let start = u64::try_from(n).unwrap() * 1000 * MS;
                state.timer_delivered(start);
                state.timer_eoi(start);
                state.timer_finished(start.saturating_add(*cost));
                prop_assert!((2 * MS..=64 * MS).contains(&state.current()));
                prop_assert!(state.earliest() >= start + state.current().min(2 * MS));
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            let _ = text.parse::<TimerSpacing>();
        }
    }
}
