//! How long a VM goes on that has run for some time. Most end within the hour; one that has run for a day runs for days.

/// An hour in milliseconds.
pub const HOUR: u64 = 3_600_000;
const MILLION: u128 = 1_000_000;

/// The share of VMs that still run, by their age: falls from all to few.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Survival {
    /// Ages in milliseconds, ascending from 0, and millionths that are as old or older; never 0, never more than before.
    points: Vec<(u64, u32)>,
    /// How far one looks ahead. Beyond that nobody plans.
    horizon: u64,
}

impl Survival {
    /// Points from (0, 1,000,000) on, straight between, level after the last; none if they are no such curve.
    #[must_use]
    pub fn new(points: Vec<(u64, u32)>, horizon: u64) -> Option<Self> {
        let begins = points.first() == Some(&(0, 1_000_000));
        let falls = |pair: &[(u64, u32)]| pair[0].0 < pair[1].0 && pair[0].1 >= pair[1].1;
        let ends = points.last().is_some_and(|last| last.1 > 0);
        let is_curve = begins && ends && points.windows(2).all(falls) && points.len() <= 64;
        is_curve.then_some(Self { points, horizon })
    }

    /// Azure's VMs of 2019, read off the published plot. Some 8 in 100 outlive the trace of 30 days; a week ahead counts.
    #[must_use]
    pub fn azure() -> Self {
        let hours = [
            (0, 1_000_000),
            (1, 360_000),
            (5, 250_000),
            (10, 180_000),
            (20, 120_000),
            (40, 100_000),
            (100, 80_000),
            (720, 75_000),
        ];
        let points = hours.into_iter().map(|(hour, alive)| (hour * HOUR, alive)).collect();
        Self { points, horizon: 168 * HOUR }
    }

    /// Millionths that get this old.
    #[must_use]
    pub fn alive(&self, age: u64) -> u32 {
        let after = self.points.partition_point(|point| point.0 <= age);
        let before = self.points[after.saturating_sub(1)];
        let Some(next) = self.points.get(after) else { return before.1 };
        let fallen = u128::from(before.1 - next.1) * u128::from(age - before.0)
            / u128::from(next.0 - before.0);
        before.1 - u32::try_from(fallen).unwrap_or(0)
    }

    /// Milliseconds that a VM of this age goes on, as is to be expected, of those within the horizon.
    #[must_use]
    pub fn remaining(&self, age: u64) -> u64 {
        self.within(age, self.horizon)
    }

    /// Millionths of VMs of this age that end within a time.
    #[must_use]
    pub fn ends_within(&self, age: u64, time: u64) -> u32 {
        let (now, then) = (self.alive(age), self.alive(age.saturating_add(time)));
        let goes_on = u128::from(then) * MILLION / u128::from(now).max(1);
        1_000_000 - u32::try_from(goes_on).unwrap_or(0).min(1_000_000)
    }

    /// Milliseconds that a VM of this age goes on, as is to be expected, of those within a time.
    #[must_use]
    pub fn within(&self, age: u64, time: u64) -> u64 {
        let end = age.saturating_add(time);
        let corners = self.points.iter().map(|point| point.0).filter(|at| *at > age && *at < end);
        let (mut last, mut area) = (age, 0u128);
        for at in corners.chain([end]) {
            let height = u128::from(self.alive(last)) + u128::from(self.alive(at));
            area += height * u128::from(at - last) / 2;
            last = at;
        }
        let expected = area / u128::from(self.alive(age)).clamp(1, MILLION);
        u64::try_from(expected).unwrap_or(time).min(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curve_is_straight_between_points() {
        let curve = Survival::azure();

        assert_eq!(curve.alive(0), 1_000_000);
        assert_eq!(curve.alive(HOUR / 2), 680_000);
        assert_eq!(curve.alive(HOUR), 360_000);
        assert_eq!(curve.alive(u64::MAX), 75_000);
    }

    #[test]
    fn what_is_to_be_expected_is_the_area_below() {
        let curve = Survival::new(vec![(0, 1_000_000), (10, 500_000)], 10).unwrap();

        assert_eq!(curve.remaining(0), 7, "7.5, rounded down");
        assert_eq!((curve.within(0, 4), curve.within(5, 5)), (3, 4), "3.6 and 4.2");
        assert_eq!((curve.ends_within(0, 4), curve.ends_within(0, 99)), (200_000, 500_000));
        assert_eq!(curve.remaining(10), 10, "none is seen to end");
    }

    #[test]
    fn older_vms_go_on_for_longer() {
        let curve = Survival::azure();
        let ages = [0, 1, 2, 5, 10, 20, 40, 100].map(|hours| curve.remaining(hours * HOUR));

        assert!(ages.windows(2).all(|pair| pair[0] < pair[1]), "{ages:?}");
        assert!(ages[0] < 24 * HOUR && ages[5] > 72 * HOUR, "{ages:?}");
        assert!(curve.remaining(u64::MAX) <= 168 * HOUR);
    }

    #[test]
    fn what_is_no_curve_is_refused() {
        for points in [vec![], vec![(0, 999_999)], vec![(0, 1_000_000), (1, 0)]] {
            assert_eq!(Survival::new(points, 1), None);
        }
        assert_eq!(Survival::new(vec![(0, 1_000_000), (0, 5)], 1), None);
    }
}
