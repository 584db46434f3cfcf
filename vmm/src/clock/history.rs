//! What earlier rounds prove about a clock now.
//!
//! ```text
//!   ahead                                      . upper bound: from the low end of an earlier round
//!     |                                  .  '  ^        through the high end of a later one
//!     |      T              T      .  '        |
//!     |      |        .  '  +  '              now
//!     |      +  .  '        |
//!     |   .  |              L           (the lower bound is drawn through the other two ends)
//!     +------+--------------+------------------+---> time
//! ```
//! The line that the clocks really drift along passes above the low end of the earlier round and below the high end of
//! the later one, so later it is below the line through both ends. These bounds are those of Moon, Skelly and Towsley,
//! "Estimation and removal of clock skew from network delay measurements" (INFOCOM 1999), for each pair of rounds.
//! Slow answers make a round wide; the drift is known all the same.

use super::interval::Interval;
use super::ticks;
use std::collections::VecDeque;
use std::time::Duration;

/// Rounds that are remembered, each for [`AGE`] at most.
const ROUNDS_MAX: usize = 64;
const AGE: Duration = Duration::from_secs(60);
/// The rate of two crystals changes by no more than this within that time, in parts per million. Measured crystals
/// change by 0.1 ppm within minutes (Veitch et al., "Robust synchronization of absolute and difference clocks over
/// networks", 2009); a host whose temperature jumps gets some ppm.
const WANDER_PPM: i128 = 5;

/// By how much the clocks would have been apart without any step, at some time.
#[derive(Clone, Copy, Debug)]
struct Round {
    at: i64,
    ahead: Interval,
}

/// What rounds have found about one companion.
#[derive(Clone, Debug)]
pub(crate) struct History {
    rounds: VecDeque<Round>,
    /// [`AGE`] in ticks.
    age: i64,
}

impl History {
    /// For counters of `khz`.
    pub(crate) fn new(khz: u32) -> Self {
        let age = i64::try_from(ticks(AGE, khz)).unwrap_or(i64::MAX);
        Self { rounds: VecDeque::new(), age }
    }

    /// Narrows what a round has found at a time, in ticks since any beginning, by what earlier rounds prove, and
    /// remembers it. `stepped` is by how many ticks the companion has stepped more than the coordinator until then.
    ///
    /// Earlier rounds that contradict this one are forgotten, the oldest first: the rate has changed.
    pub(crate) fn narrow(&mut self, at: i64, found: Interval, stepped: i64) -> Interval {
        let ahead = found.since(stepped);
        self.rounds.retain(|round| at - round.at <= self.age);
        let narrowed = loop {
            match self.bounds(at).and_then(|bounds| ahead.and(bounds)) {
                Some(narrowed) => break narrowed,
                // A single round bounds nothing now, and would together with this one: by a line through a jump.
                None if self.rounds.len() <= 3 => self.rounds.clear(),
                None => drop(self.rounds.drain(..self.rounds.len() / 2)),
            }
        };
        self.rounds.push_back(Round { at, ahead });
        if self.rounds.len() > ROUNDS_MAX {
            self.rounds.pop_front();
        }
        narrowed.since(stepped.saturating_neg())
    }

    /// Where the clocks can be by what all pairs of earlier rounds prove; `None` if they contradict each other.
    fn bounds(&self, at: i64) -> Option<Interval> {
        let everywhere = Interval { low: i64::MIN, high: i64::MAX };
        let pairs = || {
            let later =
                |(count, later)| self.rounds.iter().take(count).map(move |one| (one, later));
            self.rounds.iter().enumerate().flat_map(later)
        };
        pairs().filter(|(earlier, later)| earlier.at < later.at && later.at <= at).try_fold(
            everywhere,
            |bounds, (earlier, later)| {
                let on = |from: i64, through: i64, wander| {
                    line(earlier.at, from, later.at, through, at, wander)
                };
                let low = on(earlier.ahead.high, later.ahead.low, -WANDER_PPM);
                let high = on(earlier.ahead.low, later.ahead.high, WANDER_PPM);
                bounds.and(Interval { low, high })
            },
        )
    }
}

/// Where the line through two points is at a later time, if its slope may have changed by `wander` ppm since.
fn line(from: i64, low: i64, through: i64, high: i64, at: i64, wander: i128) -> i64 {
    let [from, low, through, high, at] = [from, low, through, high, at].map(i128::from);
    let since = at - through;
    let risen = (high - low) * since / (through - from).max(1);
    let ahead = high + risen + wander * since / 1_000_000;
    i64::try_from(ahead).unwrap_or(if ahead < 0 { i64::MIN } else { i64::MAX })
}
