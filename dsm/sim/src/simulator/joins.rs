//! When slices join.

use super::random::Random;

/// The most events between two slices that join.
pub(super) const EVENTS_BETWEEN: u64 = 1_000;

/// When a slice joins, and which.
#[derive(Debug)]
pub(crate) struct Joins {
    pub(crate) random: Random,
    pub(crate) next: u64,
}

impl Joins {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed.rotate_left(24));
        let next = random.below(EVENTS_BETWEEN);
        Self { random, next }
    }

    /// The slices that are there at the start, ascending: some, but not all.
    pub(super) fn first_members(&mut self, slices: u16) -> Vec<u16> {
        let mut some = |most: u16| u16::try_from(self.random.below(u64::from(most))).expect("few");
        let (first, count) = (some(slices), 1 + some(slices - 1));
        let mut there: Vec<u16> = (0..count).map(|at| (first + at) % slices).collect();
        there.sort_unstable();
        there
    }

    pub(crate) fn pick(&mut self, of: &[u16]) -> u16 {
        let count = u64::try_from(of.len()).expect("few");
        of[usize::try_from(self.random.below(count)).expect("few")]
    }
}
