//! When to follow up what is not acknowledged.
//!
//! ```text
//!   idle --posted--> timed --fired: all of before is acknowledged, and nothing since--> idle
//!                      ^ |
//!                      | +--fired: something is late--> nudge those classes, wait twice as long, at most MOST
//!                      +------- fired: only newer things are under way
//! ```
//!
//! A class has one nudge under way at a time.

use crate::traits::Class;
use std::array;
use std::time::Duration;

/// How long an acknowledgement may take. A busy host is later than that now and then; a nudge in vain
/// costs two packets, and a timer that fires four system calls.
const FIRST: Duration = Duration::from_millis(20);
/// The longest time between nudges.
const MOST: Duration = Duration::from_millis(160);

/// What is under way to one peer. Knows no queue pair.
#[derive(Debug)]
pub(super) struct Nudges {
    posted: [u64; Class::COUNT],
    acknowledged: [u64; Class::COUNT],
    /// What was posted when the timer was set.
    before: [u64; Class::COUNT],
    /// A nudge is under way.
    nudged: [bool; Class::COUNT],
    timed: bool,
    wait: Duration,
}

impl Default for Nudges {
    fn default() -> Self {
        Self {
            posted: [0; Class::COUNT],
            acknowledged: [0; Class::COUNT],
            before: [0; Class::COUNT],
            nudged: [false; Class::COUNT],
            timed: false,
            wait: FIRST,
        }
    }
}

impl Nudges {
    /// A message was posted. Returns the time to set the timer to, if it is not set.
    pub(super) fn posted(&mut self, class: usize) -> Option<Duration> {
        self.posted[class] += 1;
        (!self.timed).then(|| self.set(FIRST))
    }

    pub(super) fn acknowledged(&mut self, class: usize) {
        self.acknowledged[class] += 1;
    }

    /// The nudge of a class arrived.
    pub(super) fn arrived(&mut self, class: usize) {
        self.nudged[class] = false;
    }

    /// The timer fired. Returns the classes to nudge, and the time to set the timer to again.
    pub(super) fn fired(&mut self) -> ([bool; Class::COUNT], Option<Duration>) {
        let late: [bool; Class::COUNT] =
            array::from_fn(|class| self.acknowledged[class] < self.before[class]);
        let nudge = array::from_fn(|class| late[class] && !self.nudged[class]);
        for (nudged, now) in self.nudged.iter_mut().zip(nudge) {
            *nudged |= now;
        }
        self.timed = false;
        let wait = if late.contains(&true) { (self.wait * 2).min(MOST) } else { FIRST };
        let more = self.acknowledged.iter().zip(&self.posted).any(|(done, all)| done < all);
        (nudge, more.then(|| self.set(wait)))
    }

    fn set(&mut self, wait: Duration) -> Duration {
        self.before = self.posted;
        (self.timed, self.wait) = (true, wait);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_acknowledged_in_time_is_not_nudged() {
        let mut nudges = Nudges::default();
        assert_eq!(nudges.posted(1), Some(FIRST));
        assert_eq!(nudges.posted(2), None, "the timer is set");
        nudges.acknowledged(1);
        // Of class 2 nothing had been posted when the timer was set.
        assert_eq!(nudges.fired(), ([false; Class::COUNT], Some(FIRST)));
        nudges.acknowledged(2);
        assert_eq!(nudges.fired(), ([false; Class::COUNT], None));
        assert_eq!(nudges.posted(0), Some(FIRST));
    }

    #[test]
    fn what_is_late_is_nudged_once_at_a_time_and_ever_more_seldom() {
        let mut nudges = Nudges::default();
        nudges.posted(0);
        assert_eq!(nudges.fired(), ([true, false, false, false], Some(FIRST * 2)));
        assert_eq!(nudges.fired(), ([false; Class::COUNT], Some(FIRST * 4)));
        nudges.arrived(0);
        assert_eq!(nudges.fired(), ([true, false, false, false], Some(FIRST * 8)));
        assert_eq!(nudges.fired().1, Some(MOST));
        assert_eq!(nudges.fired().1, Some(MOST));
        nudges.acknowledged(0);
        assert_eq!(nudges.fired(), ([false; Class::COUNT], None));
        assert_eq!(nudges.posted(0), Some(FIRST), "the next begins anew");
    }
}
