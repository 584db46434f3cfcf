//! When and where the engine's thread runs.
//!
//! It sleeps when nothing is to be done. Sleeping and waking costs tens of microseconds where an idle
//! core is halted, about as much as a whole transfer between hosts. So while an answer is expected
//! it looks for it for about as long as a fault takes, and sleeps only then. Where faults take longer than
//! [`WORTH_SPINNING`], as on emulated hosts, it never does; nor where this process has one core, which whoever
//! answers needs too. A page that another slice keeps for a while, as
//! it did last time, is looked for when it should come.
#![expect(unsafe_code, reason = "the scheduling policy of a thread")]
// UNSAFETY: one system call with a structure on the stack.

use std::num::NonZero;
use std::ops::RangeInclusive;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Runs this thread before the vCPUs that wait for it, where that is permitted. A handler that
/// waits behind spinning vCPUs makes every fault cost a time slice.
pub fn prefer_this_thread() {
    prefer(libc::SCHED_FIFO);
}

/// The same, but not for threads and processes that it starts.
pub fn prefer_this_thread_only() {
    prefer(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK);
}

fn prefer(policy: libc::c_int) {
    let param = libc::sched_param { sched_priority: 10 };
    // SAFETY: 0 is this thread; the structure is valid. Refusal leaves the ordinary scheduler.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const param) };
    if result != 0 {
        tracing::info!(
            "real-time priority for the memory engine is not permitted; going on without"
        );
    }
}

/// Moves this thread to a core; where that does not exist it stays where it is.
pub fn settle(core: Option<usize>) {
    let Some(core) = core else { return };
    let mut set = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        set.set(core);
    }
    // The kernel refuses a set without any core that there is.
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!(core, %error, "a thread cannot run on the core it was given");
    }
}

/// Faults that take longer than this are slept through.
const WORTH_SPINNING: Duration = Duration::from_millis(1);
/// No answer is looked for longer.
const SPIN_MAX: Duration = Duration::from_micros(500);
/// How long before and after the expected time a page is looked for.
const MARGIN: Duration = Duration::from_micros(150);

/// How long to look for an answer before sleeping, given the mean time of a fault so far: a little
/// longer than that. Who stops looking just before answers come sleeps, wakes late, and so has a mean
/// that keeps it from ever seeing one in time. `cores` is how many this process may use.
#[must_use]
pub fn spin_limit(mean: Duration, cores: usize) -> Duration {
    if mean > WORTH_SPINNING || cores < 2 { Duration::ZERO } else { (mean * 5 / 4).min(SPIN_MAX) }
}

/// How many cores this process may use.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// How to wait for a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// Look for it so long.
    pub(crate) spin: Duration,
    /// Be awake then.
    pub(crate) wake_ns: Option<u64>,
}

impl Look {
    /// For a page that is expected within some time, if its holder keeps it as long as last time. To look
    /// before then is in vain; to be asleep then costs a wake-up of a halted core.
    pub(crate) fn new(
        limit: Duration,
        now_ns: u64,
        expected_ns: Option<RangeInclusive<u64>>,
    ) -> Self {
        let Some(expected) = expected_ns else {
            return Self { spin: limit, wake_ns: None };
        };
        let (first, last) = expected.into_inner();
        let margin = nanoseconds(MARGIN);
        let start = first.saturating_sub(margin);
        if now_ns < start {
            return Self { spin: Duration::ZERO, wake_ns: Some(start) };
        }
        let end = last.min(first + nanoseconds(SPIN_MAX)) + margin;
        let left = end.saturating_sub(now_ns);
        Self { spin: Duration::from_nanos(left), wake_ns: None }
    }

    /// For both of two pages.
    pub(crate) fn join(self, other: Self) -> Self {
        let wake = [self.wake_ns, other.wake_ns].into_iter().flatten().min();
        Self { spin: self.spin.max(other.spin), wake_ns: wake }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_that_is_held_for_long_is_looked_for_when_it_should_come() {
        let (us, limit) = (Duration::from_micros, Duration::from_micros(100));
        let look = |now| Look::new(limit, now, Some(1_000_000..=1_200_000));
        assert_eq!(look(0), Look { spin: us(0), wake_ns: Some(850_000) });
        assert_eq!(look(900_000), Look { spin: us(450), wake_ns: None });
        assert_eq!(look(2_000_000), Look::default());
        let late = Look::new(limit, 1_000_000, Some(1_000_000..=9_000_000));
        assert_eq!(late.spin, SPIN_MAX + MARGIN);
        assert_eq!(Look::new(limit, 0, None), Look { spin: limit, wake_ns: None });

        let both = look(0).join(Look::new(limit, 0, None));
        assert_eq!(both, Look { spin: limit, wake_ns: Some(850_000) });
    }

    #[test]
    fn spin_follows_the_mean_within_its_bound() {
        let us = Duration::from_micros;
        let limits = [0, 20, 200, 900, 1100].map(|mean| spin_limit(us(mean), 2));
        assert_eq!(limits, [us(0), us(25), us(250), us(500), us(0)]);
        assert_eq!(spin_limit(us(200), 1), us(0), "who answers needs the core");
    }
}
