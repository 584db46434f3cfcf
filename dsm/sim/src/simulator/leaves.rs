//! When slices leave.

use super::random::Random;

/// The most events between two slices that leave.
pub(super) const EVENTS_BETWEEN: u64 = 1_000;

/// When a slice leaves, and which.
#[derive(Debug)]
pub(crate) struct Leaves {
    pub(super) random: Random,
    pub(super) next: u64,
    /// It is being emptied.
    pub(super) leaver: Option<u16>,
}

impl Leaves {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed.rotate_left(48));
        let next = random.below(EVENTS_BETWEEN);
        Self { random, next, leaver: None }
    }
}
