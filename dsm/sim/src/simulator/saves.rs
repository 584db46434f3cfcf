//! When a simulated cluster is saved and restored.

use super::random::Random;

/// The release that flushes a node which comes to rest.
pub(super) const REST: u64 = u64::MAX - 1;
/// The most events between two saves.
const EVENTS_BETWEEN: u64 = 1_000;

/// When to save next.
#[derive(Debug)]
pub(crate) struct Saves {
    random: Random,
    next: u64,
}

impl Saves {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed.rotate_left(32));
        let next = random.below(EVENTS_BETWEEN);
        Self { random, next }
    }

    /// Whether it is time after so many events; the next time is another.
    pub(crate) fn is_time(&mut self, events: u64) -> bool {
        let is_time = events > self.next;
        if is_time {
            self.next = events + self.random.below(EVENTS_BETWEEN);
        }
        is_time
    }
}
