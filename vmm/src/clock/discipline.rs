//! Which slice steps by how much, and which clock cannot be kept with the others.

use super::interval::Interval;
use super::{RATE_PPM, ticks};
use std::time::Duration;

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

/// As many times the limit may be stepped at first.
const FREE: u64 = 4;
/// For so long a time steps may be made up for at once: a companion may not have answered, or slowly.
const CREDIT: Duration = Duration::from_secs(60);

/// Decides about steps.
#[derive(Clone, Debug)]
pub(crate) struct Discipline {
    /// A clock that has certainly moved by more than this since the round before is not corrected, in ticks.
    pub(super) limit: u64,
    /// Ticks of a millisecond.
    khz: u32,
    /// Ticks that may be stepped now: [`RATE_PPM`] of the time that has passed, of [`CREDIT`] at most.
    credit: u64,
    /// How far each companion's clock can be away without having jumped: what the last round left possible, and what
    /// it may have drifted since.
    doubts: Vec<u64>,
}

impl Discipline {
    /// For counters of `khz`.
    pub(crate) fn new(limit: Duration, khz: u32) -> Self {
        let limit = ticks(limit, khz);
        Self { limit, khz, credit: limit.saturating_mul(FREE), doubts: Vec::new() }
    }

    /// Whether all clocks are within bounds, given the time since the round before. A slow network hides a drift for
    /// some rounds; a clock that comes out of what they left possible has not jumped.
    ///
    /// # Errors
    /// The first companion whose clock is not.
    pub(crate) fn check(
        &mut self,
        found: &[Option<Interval>],
        passed: Duration,
    ) -> Result<(), RunAway> {
        let drifted = self.earned(passed);
        self.doubts.resize(found.len(), 0);
        for (companion, (doubt, found)) in self.doubts.iter_mut().zip(found).enumerate() {
            *doubt = doubt.saturating_add(drifted);
            let Some(interval) = *found else { continue };
            if interval.least() > self.limit.saturating_add(*doubt) {
                return Err(RunAway { companion, interval, why: Why::Apart });
            }
            // Once what is proven has been corrected.
            *doubt = interval.since(interval.skew()).most();
        }
        Ok(())
    }

    /// The companion of this number is new. Its clock was set so long ago, and has drifted since.
    pub(crate) fn expect(&mut self, companion: usize, set: Duration) {
        self.doubts.resize(companion, 0);
        self.doubts.push(self.earned(set));
    }

    /// This companion is none any more; those behind it move up.
    pub(crate) fn forget(&mut self, companion: usize) {
        if companion < self.doubts.len() {
            self.doubts.remove(companion);
        }
    }

    /// Ticks of [`RATE_PPM`] in so long a time.
    fn earned(&self, passed: Duration) -> u64 {
        ticks(passed, self.khz) / 1_000_000 * RATE_PPM
    }

    /// Steps forward, in ticks, of the coordinator and of each companion, given what a round has found and the time since
    /// the one before. A companion of which nothing is known takes none.
    ///
    /// # Errors
    /// The first companion whose clock is out of bounds, or the one whose clock asks for too many steps.
    pub(crate) fn steps(
        &mut self,
        found: &[Option<Interval>],
        passed: Duration,
    ) -> Result<(u64, Vec<u64>), RunAway> {
        self.check(found, passed)?;
        let skew =
            |(at, found): (usize, &Option<Interval>)| found.map(|found| (found.skew(), at, found));
        let skews = || found.iter().enumerate().filter_map(skew);
        let ahead = skews().max_by_key(|(skew, ..)| *skew);
        let own = ahead.map_or(0, |(skew, ..)| skew).max(0);
        // Those that are not proven to be behind the coordinator then stay: they may have been ahead.
        let behind = |interval: Interval| interval.since(own).skew().min(0).unsigned_abs();
        let steps: Vec<u64> = found.iter().map(|found| found.map_or(0, behind)).collect();
        let own = own.unsigned_abs();
        self.credit = self.credit.saturating_add(self.earned(passed)).min(self.earned(CREDIT));
        // Steps that follow the coordinator's are not counted again.
        let most = skews().max_by_key(|(skew, ..)| skew.unsigned_abs());
        if let Some((skew, companion, interval)) = most {
            let spent = self.credit.checked_sub(skew.unsigned_abs());
            self.credit = spent.ok_or(RunAway { companion, interval, why: Why::Rate })?;
        }
        Ok((own, steps))
    }
}
