//! Sets of measured times.

use serde::Serialize;

/// Times in nanoseconds, ascending.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

/// What is told of a set of times, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Summary {
    /// How many.
    pub count: usize,
    /// Least.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// The median of figures in any order; 0 of none.
#[must_use]
pub fn median(figures: Vec<f64>) -> f64 {
    Samples::new(figures).percentile(50)
}

/// The ratio of each to its neighbour in time, which had the same machine.
#[must_use]
pub fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

impl Samples {
    /// From nanoseconds in any order.
    #[must_use]
    pub fn new(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    /// From cycles of a counter with so many cycles a nanosecond.
    #[must_use]
    pub fn from_cycles(cycles: &[u32], per_ns: f64) -> Self {
        Self::new(cycles.iter().map(|cycles| f64::from(*cycles) / per_ns).collect())
    }

    /// Adds another set.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(&other.0);
        self.0.sort_by(f64::total_cmp);
    }

    /// All of them, ascending.
    #[must_use]
    pub fn sorted(&self) -> &[f64] {
        &self.0
    }

    /// The time that so many per cent do not exceed; 0 of nothing.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get(last * percent.min(100) / 100).copied().unwrap_or(0.0)
    }

    /// The mean, where what is above `most` counts as that; 0 of nothing.
    #[must_use]
    pub fn mean_up_to(&self, most: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let count = self.0.len().max(1) as f64;
        self.0.iter().map(|time| time.min(most)).sum::<f64>() / count
    }

    /// What is told of them.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            count: self.0.len(),
            min: self.percentile(0),
            p50: self.percentile(50),
            p90: self.percentile(90),
            p99: self.percentile(99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_hundred_and_one() {
        let samples = Samples::new((0..=100).rev().map(f64::from).collect());
        let summary = samples.summary();
        assert_eq!((summary.count, summary.min, summary.p50, summary.p99), (101, 0.0, 50.0, 99.0));
        assert_eq!(Samples::default().percentile(50), 0.0);
        assert_eq!(samples.mean_up_to(1000.0), 50.0);
        assert_eq!(Samples::new(vec![1.0, 5.0, 90.0]).mean_up_to(6.0), 4.0);
        assert_eq!(Samples::default().mean_up_to(6.0), 0.0);
    }

    #[test]
    fn cycles_become_nanoseconds() {
        assert_eq!(Samples::from_cycles(&[52, 26], 2.6).sorted(), [10.0, 20.0]);
    }
}
