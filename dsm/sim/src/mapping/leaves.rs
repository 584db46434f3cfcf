//! When slices leave.

use crate::simulator::random::Random;

/// The most events between two slices that leave.
pub(super) const EVENTS_BETWEEN: u64 = 3_000;

/// When a slice leaves, and which.
#[derive(Debug)]
pub(super) struct Leaves {
    pub(super) random: Random,
    pub(super) next: u64,
    /// It is to leave: nothing goes there any more.
    pub(super) leaver: Option<usize>,
}

impl Leaves {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed.rotate_left(48));
        let next = random.below(EVENTS_BETWEEN);
        Self { random, next, leaver: None }
    }

    /// True when none is about to leave.
    pub(super) fn is_over(&self) -> bool {
        self.leaver.is_none()
    }
}
