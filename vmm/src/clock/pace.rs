//! How often a companion's clock is asked for.

use super::interval::Interval;
use std::time::Duration;

/// Counters of two hosts drift apart by no more than this, in parts per million: more is refused before the start.
pub(crate) const DRIFT_PPM: u64 = 100;
/// Bounds of the time between two rounds. The upper one is there for counters that are worse than crystals.
pub(super) const SHORTEST: Duration = Duration::from_millis(200);
pub(super) const LONGEST: Duration = Duration::from_secs(1);

/// How often one companion is asked. An exchange costs both hosts microseconds, emulated hosts milliseconds. So
/// there are only as many as it takes to prove that the clocks are close enough.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Ticks of the fastest exchange, not long ago.
    pub(super) fastest: Option<u64>,
}

impl Pace {
    /// Whether a round needs no further exchange: zero is in the interval, which is hardly wider than the fastest
    /// exchange.
    pub(crate) fn suffices(self, interval: Interval) -> bool {
        let fast = |fastest: u64| interval.width() <= fastest + fastest / 4;
        interval.least() == 0 && self.fastest.is_some_and(fast)
    }

    /// Takes in what a round has found. A network that becomes slower is learnt in some dozens of rounds.
    pub(crate) fn learn(&mut self, interval: Interval) {
        let aged = self.fastest.map_or(u64::MAX, |fastest| fastest + fastest / 32 + 1);
        self.fastest = Some(interval.width().min(aged));
    }

    /// Time to the next round, with counters of `khz`. Crystals drift apart meanwhile by at most a quarter of the
    /// fastest exchange, which is half of what a message takes.
    pub(crate) fn period(self, khz: u32) -> Duration {
        let ticks = u128::from(self.fastest.unwrap_or(0)) * 1_000_000 / u128::from(4 * DRIFT_PPM);
        let nanoseconds = ticks * 1_000_000 / u128::from(khz.max(1));
        let period = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        period.clamp(SHORTEST, LONGEST)
    }
}
