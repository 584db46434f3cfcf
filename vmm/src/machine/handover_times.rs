//! Where the time of hand-overs goes, step by step.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often something was done, and how long it took in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// How often.
    pub count: u64,
    /// Nanoseconds.
    pub ns: u64,
}

/// The steps of the hand-overs of a slice, in their order. The first ones are its own where it was the source, the later
/// ones where it was the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverTimes {
    /// From the order to stop until the vCPU is out of the guest.
    pub leave: Spent,
    /// Its last exit is finished.
    pub settle: Spent,
    /// Its state is read.
    pub save: Spent,
    /// What is pending is set aside.
    pub hold: Spent,
    /// The thread that has asked for the state has it.
    pub collect: Spent,
    /// The state becomes bytes.
    pub encode: Spent,
    /// From then on until the source hears of the flip: two messages and the target's work.
    pub away: Spent,
    /// The bytes become a state.
    pub decode: Spent,
    /// Its ghost ends, before the vCPU is stopped.
    pub end_ghost: Spent,
    /// The state is set.
    pub restore: Spent,
    /// From the end of that until the target hears of the flip: two messages, or none.
    pub flip: Spent,
    /// Until the vCPU's thread is about to enter the guest.
    pub run: Spent,
}

/// Counts one step.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Timer {
    pub(crate) fn add(&self, time: Duration) {
        self.count.fetch_add(1, Relaxed);
        self.ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Counts what has passed since `start`; now.
    pub(crate) fn since(&self, start: Instant) -> Instant {
        let now = Instant::now();
        self.add(now.saturating_duration_since(start));
        now
    }

    fn spent(&self) -> Spent {
        Spent { count: self.count.load(Relaxed), ns: self.ns.load(Relaxed) }
    }
}

/// See [`HandoverTimes`].
#[derive(Debug, Default)]
pub(crate) struct Timers {
    pub(crate) leave: Timer,
    pub(crate) settle: Timer,
    pub(crate) save: Timer,
    pub(crate) hold: Timer,
    pub(crate) collect: Timer,
    pub(crate) encode: Timer,
    pub(crate) away: Timer,
    pub(crate) decode: Timer,
    pub(crate) end_ghost: Timer,
    pub(crate) restore: Timer,
    pub(crate) flip: Timer,
    pub(crate) run: Timer,
}

impl Timers {
    pub(crate) fn times(&self) -> HandoverTimes {
        HandoverTimes {
            leave: self.leave.spent(),
            settle: self.settle.spent(),
            save: self.save.spent(),
            hold: self.hold.spent(),
            collect: self.collect.spent(),
            encode: self.encode.spent(),
            away: self.away.spent(),
            decode: self.decode.spent(),
            end_ghost: self.end_ghost.spent(),
            restore: self.restore.spent(),
            flip: self.flip.spent(),
            run: self.run.spent(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_add_up() {
        let timers = Timers::default();
        timers.run.add(Duration::from_micros(3));
        timers.run.add(Duration::from_micros(4));
        let run = Spent { count: 2, ns: 7000 };
        assert_eq!(timers.times(), HandoverTimes { run, ..HandoverTimes::default() });
    }
}
