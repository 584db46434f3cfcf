//! Until when a peer was there for certain: it has sent back what it was sent then.
//!
//! ```text
//!   tick ──(own time, their last)──> peer
//!   peer ──(its time, our last)────> it was there after our last, however long this was on its way
//!                └─ its time is far from the one before ──> is sent back at once, and not with the next tick
//! ```
//! Whoever begins, or goes on after it stood still, so hears after a round trip that the others are there.

use crate::frame::Beat;
use thiserror::Error;

/// A heartbeat that sends back what was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("sends back a stamp that it was not sent")]
pub(super) struct NeverSent;

/// What heartbeats of one peer and those to it have said. Times are of this host's `CLOCK_BOOTTIME`, but for its stamp.
#[derive(Debug)]
pub(super) struct Beats {
    /// Between stamps of the peer's: one that comes after more is sent back at once.
    pause: u64,
    /// The last stamp of the peer's, which is sent back to it.
    theirs: u64,
    /// The last stamp that the peer was sent.
    said: u64,
    /// The last of these that has come back.
    echoed: u64,
    /// What of that the owner knows.
    told: u64,
}

impl Beats {
    /// Nothing was said. Stamps are usually half of `pause` apart, in nanoseconds.
    pub(super) fn new(pause: u64) -> Self {
        Self { pause, theirs: 0, said: 0, echoed: 0, told: 0 }
    }

    /// What the peer is to be sent.
    pub(super) fn next(&mut self, now: u64) -> Beat {
        self.said = now;
        Beat::new(now, self.theirs)
    }

    /// Whether it is to be answered at once.
    pub(super) fn take_in(&mut self, beat: Beat) -> Result<bool, NeverSent> {
        if beat.echo() > self.said {
            return Err(NeverSent);
        }
        let passed = beat.stamp().saturating_sub(self.theirs);
        let answers = passed > 0 && (self.theirs == 0 || passed > self.pause);
        self.theirs = self.theirs.max(beat.stamp());
        self.echoed = self.echoed.max(beat.echo());
        Ok(answers)
    }

    /// When the peer was there at the latest that is known, if that is later than was told before.
    pub(super) fn take_told(&mut self) -> Option<u64> {
        let told = std::mem::replace(&mut self.told, self.echoed);
        (self.echoed > told).then_some(self.echoed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stamp_that_was_never_sent_is_refused() {
        let mut beats = Beats::new(100);
        assert_eq!(beats.take_in(Beat::new(1, 1)), Err(NeverSent));
        assert_eq!(beats.take_in(Beat::new(1, 0)), Ok(true));
        assert_eq!(beats.next(10), Beat::new(10, 1));
        assert_eq!(beats.take_in(Beat::new(2, 11)), Err(NeverSent));
        assert_eq!(beats.take_in(Beat::new(2, 10)), Ok(false));
        assert_eq!((beats.take_told(), beats.take_told()), (Some(10), None));
    }

    #[test]
    fn who_begins_or_goes_on_is_answered_at_once() {
        let mut beats = Beats::new(100);
        let mut answers = |stamp| beats.take_in(Beat::new(stamp, 0)).unwrap();
        assert!(!answers(0), "it has said nothing");
        assert!(answers(1000));
        assert!(!answers(1000) && !answers(1050) && !answers(1150) && !answers(1100));
        assert!(answers(1251) && !answers(1301));
    }

    proptest! {
        /// Two ends, each with a clock of its own. Words are in order, and on their way for as long as they like.
        #[test]
        fn peer_was_there_when_it_is_said_to_have_been(
            steps in prop::collection::vec((0_u8..4, 1_u64..50), 1..200),
            ahead in 0_u64..10_000,
        ) {
            let (mut here, mut there) = (Beats::new(60), Beats::new(60));
            let (mut now, mut last_words) = (1, 0);
            let (mut out, mut back) = (Vec::new(), Vec::new());
            for (what, time) in steps {
                now += time;
                match what {
                    0 => out.push(here.next(now)),
                    1 => {
                        back.push(there.next(now + ahead));
                        last_words = now;
                    }
                    2 if !out.is_empty() => drop(there.take_in(out.remove(0)).unwrap()),
                    3 if !back.is_empty() => drop(here.take_in(back.remove(0)).unwrap()),
                    _ => {}
                }
                prop_assert!(here.echoed <= last_words);
            }
        }
    }
}
