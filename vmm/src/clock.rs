//! Keeps the guest's time stamp counters of all slices together for as long as the VM runs.
//!
//! Crystals differ by some parts per million and change with their temperature, so offsets that are right at
//! the start are wrong by tens of milliseconds after an hour. This module decides by how much each slice steps
//! forward. It is pure: ticks come in, steps go out.
//!
//! ```text
//!   bootstrap: exchanges with a companion --narrow--> Interval --+
//!              exchanges with another one --narrow--> Interval --+--> Discipline --> a step for each slice
//! ```
//!
//! **What an exchange proves.** The bootstrap reads its guest clock at `sent`, the companion its own at
//! `answered`, the bootstrap again at `received`. When the companion read its clock, the bootstrap's showed
//! something from `sent` to `received`. So the companion is ahead by `answered - received` at least and by
//! `answered - sent` at most. All exchanges of a round must be right at once: their intervals are intersected.
//!
//! **How often.** The next round comes when crystals may have drifted by half of what a message takes. A round ends
//! with the first exchange that is fast and finds nothing wrong ([`Pace`]).
//!
//! **No vCPU sees time go back.** Nothing is ever subtracted: slices that are behind step forward to the one
//! that is ahead. All vCPUs of a slice are out of the guest while its offset changes (`machine::gate`). And a
//! message between two slices that takes as long as the exchanges of the round arrives later than it was sent, by the
//! clocks of both, as long as zero lies in the interval. While it does, nothing is done: that clocks are apart is not
//! proven, and noise would drive all of them forward, because a step of one slice is followed by the others. Once it
//! does not, the slice that is behind steps to one eighth of the interval's width past the near edge.

use std::time::Duration;

/// Times of one exchange, in ticks of the guest's counter: the first and last are the bootstrap's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) received: u64,
}

/// By how many ticks a companion's guest clock is ahead of the bootstrap's: from `low` to `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    low: i64,
    high: i64,
}

impl Interval {
    /// What an exchange proves; `None` if the bootstrap's clock went back in it.
    pub(crate) fn of(exchange: Exchange) -> Option<Self> {
        let Exchange { sent, answered, received } = exchange;
        let low = answered.wrapping_sub(received).cast_signed();
        let high = answered.wrapping_sub(sent).cast_signed();
        (low <= high).then_some(Self { low, high })
    }

    /// What all exchanges of a round prove together. If a clock ran away meanwhile they contradict each other:
    /// then the narrowest counts.
    pub(crate) fn narrow(exchanges: impl IntoIterator<Item = Exchange>) -> Option<Self> {
        let all: Vec<Self> = exchanges.into_iter().filter_map(Self::of).collect();
        let low = all.iter().map(|one| one.low).max()?;
        let high = all.iter().map(|one| one.high).min()?;
        if low <= high {
            return Some(Self { low, high });
        }
        all.into_iter().min_by_key(|one| one.high - one.low)
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
    fn width(self) -> u64 {
        self.low.abs_diff(self.high)
    }

    /// How far the clocks are apart at least.
    fn least(self) -> u64 {
        match (self.low, self.high) {
            (low, _) if low > 0 => low.unsigned_abs(),
            (_, high) if high < 0 => high.unsigned_abs(),
            _ => 0,
        }
    }

    /// The same once the bootstrap has stepped forward.
    fn since(self, step: i64) -> Self {
        Self { low: self.low.saturating_sub(step), high: self.high.saturating_sub(step) }
    }

    /// The skew to correct: nothing while the clocks may be right.
    fn skew(self) -> i64 {
        let eighth = (self.high - self.low) / 8;
        match (self.low, self.high) {
            (low, _) if low > 0 => low + eighth,
            (_, high) if high < 0 => high - eighth,
            _ => 0,
        }
    }
}

/// Counters of two hosts drift apart by no more than this, in parts per million: more is refused before the start.
pub(crate) const DRIFT_PPM: u64 = 100;
/// Bounds of the time between two rounds. The upper one is there for counters that are worse than crystals.
const SHORTEST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(1);

/// How often one companion is asked. An exchange costs both hosts microseconds, emulated hosts milliseconds. So
/// there are only as many as it takes to prove that the clocks are close enough.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Ticks of the fastest exchange, not long ago.
    fastest: Option<u64>,
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

/// Why a clock cannot be kept with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It is too far away.
    Apart,
    /// It had to be corrected by too much in too short a time.
    Rate,
}

/// A clock that cannot be kept with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunAway {
    /// Which companion, counted from 0.
    pub(crate) companion: usize,
    pub(crate) interval: Interval,
    pub(crate) why: Why,
}

/// Steps of more than this, in parts per million of the time that passes, are not for crystals: the guest's time would
/// be driven by a counter that is broken, or by a slice that lies. Ten times of what the worst crystals need, so that
/// noise never gets there.
pub(crate) const RATE_PPM: u64 = 1000;

/// Decides about steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Discipline {
    /// Clocks that are further apart than this for certain are not corrected, in ticks.
    limit: u64,
    /// Ticks of a millisecond.
    khz: u32,
    /// Ticks that may be stepped now: [`RATE_PPM`] of the time that has passed, twice the limit at most.
    credit: u64,
}

impl Discipline {
    /// For counters of `khz`.
    pub(crate) fn new(limit: Duration, khz: u32) -> Self {
        let limit = ticks(limit, khz);
        Self { limit, khz, credit: limit.saturating_mul(2) }
    }

    /// Whether all clocks are within bounds.
    ///
    /// # Errors
    /// The first companion whose clock is not.
    pub(crate) fn check(&self, found: &[Option<Interval>]) -> Result<(), RunAway> {
        let far = |interval: &Interval| interval.least() > self.limit;
        let far = |(companion, found): (usize, &Option<Interval>)| {
            found.filter(far).map(|interval| RunAway { companion, interval, why: Why::Apart })
        };
        found.iter().enumerate().find_map(far).map_or(Ok(()), Err)
    }

    /// Steps forward, in ticks, of the bootstrap and of each companion, given what a round has found and the time since
    /// the one before. A companion of which nothing is known takes none.
    ///
    /// # Errors
    /// The first companion whose clock is out of bounds, or the one whose clock asks for too many steps.
    pub(crate) fn steps(
        &mut self,
        found: &[Option<Interval>],
        passed: Duration,
    ) -> Result<(u64, Vec<u64>), RunAway> {
        self.check(found)?;
        let skew =
            |(at, found): (usize, &Option<Interval>)| found.map(|found| (found.skew(), at, found));
        let skews = || found.iter().enumerate().filter_map(skew);
        let ahead = skews().max_by_key(|(skew, ..)| *skew);
        let own = ahead.map_or(0, |(skew, ..)| skew).max(0);
        // Those that are not proven to be behind the bootstrap then stay: they may have been ahead.
        let behind = |interval: Interval| interval.since(own).skew().min(0).unsigned_abs();
        let steps: Vec<u64> = found.iter().map(|found| found.map_or(0, behind)).collect();
        let own = own.unsigned_abs();
        let earned = ticks(passed, self.khz) / 1_000_000 * RATE_PPM;
        self.credit = self.credit.saturating_add(earned).min(self.limit.saturating_mul(2));
        // Steps that follow the bootstrap's are not counted again.
        let most = skews().max_by_key(|(skew, ..)| skew.unsigned_abs());
        if let Some((skew, companion, interval)) = most {
            let spent = self.credit.checked_sub(skew.unsigned_abs());
            self.credit = spent.ok_or(RunAway { companion, interval, why: Why::Rate })?;
        }
        Ok((own, steps))
    }
}

/// So long a time in ticks of a counter of `khz`.
fn ticks(time: Duration, khz: u32) -> u64 {
    u64::try_from(time.as_nanos() * u128::from(khz) / 1_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KHZ: u32 = 1_000_000;
    const ROUND: Duration = Duration::from_millis(200);

    fn discipline() -> Discipline {
        Discipline::new(Duration::from_millis(1), KHZ)
    }

    fn steps(found: &[Option<Interval>]) -> Result<(u64, Vec<u64>), RunAway> {
        discipline().steps(found, ROUND)
    }

    fn interval(low: i64, high: i64) -> Option<Interval> {
        Some(Interval { low, high })
    }

    #[test]
    fn exchange_proves_an_interval_and_several_narrow_it() {
        let exchanges = [
            Exchange { sent: 1000, answered: 1500, received: 1100 },
            Exchange { sent: 2000, answered: 2460, received: 2200 },
        ];
        assert_eq!(Interval::of(exchanges[0]), interval(400, 500));
        assert_eq!(Interval::narrow(exchanges), interval(400, 460));
        let contradicting = Exchange { sent: 3000, answered: 4000, received: 3010 };
        assert_eq!(Interval::narrow([exchanges[0], contradicting]), interval(990, 1000));
        assert_eq!(Interval::narrow([]), None);
        assert_eq!(Interval::of(Exchange { sent: 9, answered: 0, received: 5 }), None);
        let wraps = Exchange { sent: u64::MAX, answered: 3, received: 9 };
        assert_eq!(Interval::of(wraps), interval(-6, 4));
    }

    #[test]
    fn slices_behind_step_to_the_one_ahead() {
        let found =
            [interval(90, 110), interval(-60, -40), None, interval(-10, 10), interval(0, 99)];
        assert_eq!(steps(&found), Ok((92, vec![0, 134, 0, 84, 0])));
        assert_eq!(steps(&[interval(-60, -40)]), Ok((0, vec![42])));
        assert_eq!(steps(&[]), Ok((0, vec![])));
    }

    #[test]
    fn clock_that_may_be_right_is_left_alone() {
        assert_eq!(steps(&[interval(-30, 0)]), Ok((0, vec![0])));
        assert_eq!(steps(&[interval(-30, -2)]), Ok((0, vec![5])));
        assert_eq!(steps(&[interval(2, 30)]), Ok((5, vec![0])));
    }

    #[test]
    fn clock_out_of_bounds_is_named() {
        assert_eq!(discipline().limit, 1_000_000);
        let found = [interval(-5, 5), interval(1_000_001, 3_000_000)];
        let interval_of = Interval { low: 1_000_001, high: 3_000_000 };
        let away = RunAway { companion: 1, interval: interval_of, why: Why::Apart };
        assert_eq!(steps(&found), Err(away));
        // It may be right.
        assert!(steps(&[interval(-9_000_000, 0)]).is_ok());
    }

    #[test]
    fn exchange_that_is_fast_and_finds_nothing_wrong_suffices() {
        let mut pace = Pace::default();
        let of = |low, high| Interval { low, high };
        assert!(!pace.suffices(of(-50, 50)), "nothing is known");
        pace.learn(of(-50, 50));
        assert!(pace.suffices(of(-5, 120)));
        assert!(!pace.suffices(of(-5, 121)), "slow");
        assert!(!pace.suffices(of(1, 90)), "the clocks are apart");
        // A network that has become ten times slower.
        (0..100).for_each(|_| pace.learn(of(-500, 500)));
        assert!(pace.suffices(of(-500, 500)));
        pace.learn(of(-50, 50));
        assert!(!pace.suffices(of(-500, 500)));
    }

    #[test]
    fn rounds_are_as_rare_as_messages_are_slow() {
        let period = |ns: i64| {
            let mut pace = Pace::default();
            pace.learn(Interval { low: 0, high: ns * 3 });
            pace.period(3 * KHZ)
        };
        assert_eq!(Pace::default().period(KHZ), SHORTEST);
        assert_eq!(period(5_000), SHORTEST);
        // A quarter of 200 us is what 100 ppm drift in half a second.
        assert_eq!(period(200_000), Duration::from_millis(500));
        assert_eq!(period(20_000_000), LONGEST);
        assert_eq!(Pace { fastest: Some(u64::MAX) }.period(0), LONGEST);
    }

    /// Clocks of slices as numbers of ticks that they are ahead of true time; each has a rate.
    struct World {
        ahead: Vec<i64>,
        ppm: Vec<i64>,
        now: u64,
    }

    impl World {
        fn read(&self, slice: usize) -> u64 {
            self.now.wrapping_add_signed(self.ahead[slice])
        }

        /// So many ticks of true time pass.
        fn pass(&mut self, ticks: u64) {
            self.now += ticks;
            for (ahead, ppm) in self.ahead.iter_mut().zip(&self.ppm) {
                *ahead += i64::try_from(ticks).unwrap() * ppm / 1_000_000;
            }
        }

        fn exchange(&mut self, slice: usize, there: u64, back: u64) -> Exchange {
            let sent = self.read(0);
            self.pass(there);
            let answered = self.read(slice);
            self.pass(back);
            Exchange { sent, answered, received: self.read(0) }
        }
    }

    /// Hosts whose counters differ by more than 100 ppm are refused at the start.
    #[test]
    fn counter_that_runs_far_too_fast_ends_the_vm() {
        let run = |ppm: i64, rounds: u32| {
            let mut world = World { ahead: vec![0, 0], ppm: vec![0, ppm], now: 1 << 40 };
            let mut discipline = discipline();
            for _ in 0..rounds {
                let exchange = world.exchange(1, 50_000, 50_000);
                let (own, steps) = discipline.steps(&[Interval::narrow([exchange])], ROUND)?;
                world.ahead[0] += i64::try_from(own).unwrap();
                world.ahead[1] += i64::try_from(steps[0]).unwrap();
                world.pass(200_000_000);
            }
            Ok(())
        };
        for ppm in [-4000, 4000, 1500] {
            let away: Result<(), RunAway> = run(ppm, 100);
            assert!(matches!(away, Err(RunAway { companion: 0, why: Why::Rate, .. })), "{away:?}");
        }
        for ppm in [-500, 500] {
            assert_eq!(run(ppm, 3000), Ok(()));
        }
    }

    proptest! {
        /// Three crystals and a network with delays of 20 to 300 us: nothing steps back, the
        /// clocks stay as close as the exchanges of a round prove, and noise does not drive them forward.
        #[test]
        fn clocks_stay_within_what_exchanges_prove(
            ppm in [-60i64..60, -60..60, -60..60],
            delays in prop::collection::vec((20_000u64..300_000, 20_000u64..300_000), 300 * 8),
        ) {
            let mut world = World { ahead: vec![0, 0, 0], ppm: ppm.to_vec(), now: 1 << 40 };
            let mut delays = delays.into_iter();
            let (mut paces, mut discipline) = ([Pace::default(); 2], discipline());
            let mut passed = ROUND;
            for _ in 0..100 {
                let mut found = Vec::new();
                for (slice, pace) in (1..).zip(&mut paces) {
                    let mut round = Vec::new();
                    for (there, back) in delays.by_ref().take(8) {
                        round.push(world.exchange(slice, there, back));
                        if Interval::narrow(round.clone()).is_some_and(|interval| pace.suffices(interval)) {
                            break;
                        }
                    }
                    let interval = Interval::narrow(round);
                    interval.into_iter().for_each(|interval| pace.learn(interval));
                    found.push(interval);
                }
                let before = world.ahead.clone();
                let (own, steps) = discipline.steps(&found, passed).unwrap();
                for (slice, step) in (0..).zip([own].into_iter().chain(steps)) {
                    world.ahead[slice] += i64::try_from(step).unwrap();
                }
                prop_assert!(world.ahead.iter().zip(&before).all(|(now, before)| now >= before));
                let period = paces.iter().map(|pace| pace.period(KHZ)).min().unwrap();
                world.pass(u64::try_from(period.as_nanos()).unwrap());
                passed = period;
                for (slice, found) in (1..).zip(&found) {
                    let apart = world.ahead[slice].abs_diff(world.ahead[0]);
                    // Zero is in the interval, or was put there; and 120 ppm since the exchange.
                    let proven = found.unwrap().bound() * 2 + 26_000;
                    prop_assert!(apart <= proven, "{apart} ticks apart, {proven} are proven");
                }
            }
            let fastest = *ppm.iter().max().unwrap();
            let driven = world.ahead[0] - i64::try_from(world.now - (1 << 40)).unwrap() * fastest / 1_000_000;
            // A correction goes an eighth of the interval too far, now and then: less than a crystal is wrong.
            prop_assert!(driven < 800_000, "driven forward by {driven} ticks");
        }
    }
}
