//! What exchanges of messages prove about a clock.

use super::RATE_PPM;

/// Times of one exchange, in ticks of the guest's counter: the first and last are the coordinator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) received: u64,
}

/// By how many ticks a companion's guest clock is ahead of the coordinator's: from `low` to `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(super) low: i64,
    pub(super) high: i64,
}

impl Interval {
    /// What an exchange proves; `None` if the coordinator's clock went back in it.
    pub(crate) fn of(exchange: Exchange) -> Option<Self> {
        let Exchange { sent, answered, received } = exchange;
        let low = answered.wrapping_sub(received).cast_signed();
        let high = answered.wrapping_sub(sent).cast_signed();
        (low <= high).then_some(Self { low, high })
    }

    /// What all exchanges of a round prove together when the last of them has ended. Clocks drift meanwhile: what an
    /// earlier one proves is wider by [`RATE_PPM`] of the time since. If a clock ran away they contradict each other:
    /// then the narrowest counts.
    pub(crate) fn narrow(exchanges: impl IntoIterator<Item = Exchange> + Clone) -> Option<Self> {
        let end = exchanges.clone().into_iter().map(|one| one.received).max()?;
        let aged = |one: Exchange| {
            let since = end - one.received;
            Self::of(one).map(|found| found.widened(since / (1_000_000 / RATE_PPM)))
        };
        let all: Vec<Self> = exchanges.into_iter().filter_map(aged).collect();
        let low = all.iter().map(|one| one.low).max()?;
        let high = all.iter().map(|one| one.high).min()?;
        if low <= high {
            return Some(Self { low, high });
        }
        all.into_iter().min_by_key(|one| one.high - one.low)
    }

    /// The same, give or take some ticks more.
    fn widened(self, by: u64) -> Self {
        let by = i64::try_from(by).unwrap_or(i64::MAX);
        Self { low: self.low.saturating_sub(by), high: self.high.saturating_add(by) }
    }

    /// The best guess.
    pub(crate) fn middle(self) -> i64 {
        self.low + (self.high - self.low) / 2
    }

    /// The truth is not further from the guess than this.
    pub(crate) fn bound(self) -> u64 {
        self.width().div_ceil(2)
    }

    /// Ticks from the least to the most it can be: the time that the exchange took.
    pub(super) fn width(self) -> u64 {
        self.low.abs_diff(self.high)
    }

    /// How far the clocks are apart at least.
    pub(super) fn least(self) -> u64 {
        match (self.low, self.high) {
            (low, _) if low > 0 => low.unsigned_abs(),
            (_, high) if high < 0 => high.unsigned_abs(),
            _ => 0,
        }
    }

    /// How far the clocks can be apart at most.
    pub(super) fn most(self) -> u64 {
        self.low.unsigned_abs().max(self.high.unsigned_abs())
    }

    /// What both prove together; `None` if they contradict each other.
    pub(super) fn and(self, other: Self) -> Option<Self> {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        (low <= high).then_some(Self { low, high })
    }

    /// The same once the coordinator has stepped forward.
    pub(super) fn since(self, step: i64) -> Self {
        Self { low: self.low.saturating_sub(step), high: self.high.saturating_sub(step) }
    }

    /// The skew to correct: nothing while the clocks may be right.
    pub(super) fn skew(self) -> i64 {
        let eighth = (self.high - self.low) / 8;
        match (self.low, self.high) {
            (low, _) if low > 0 => low + eighth,
            (_, high) if high < 0 => high - eighth,
            _ => 0,
        }
    }
}
