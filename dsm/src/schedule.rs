//! When and where the engine's thread runs.
//!
//! It sleeps when nothing is to be done. Sleeping and waking costs tens of microseconds where an idle
//! core is halted, about as much as a whole transfer between hosts. So while an answer is expected
//! it looks for it for about as long as a fault takes, and sleeps only then. Where faults take longer than
//! [`WORTH_SPINNING`], as on emulated hosts, it never does.
#![expect(unsafe_code, reason = "the scheduling policy of a thread")]
// UNSAFETY: one system call with a structure on the stack.

use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Runs this thread before the vCPUs that wait for it, where that is permitted. A handler that
/// waits behind spinning vCPUs makes every fault cost a time slice.
pub fn prefer_this_thread() {
    let param = libc::sched_param { sched_priority: 10 };
    // SAFETY: 0 is this thread; the structure is valid. Refusal leaves the ordinary scheduler.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) };
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
const WORTH_SPINNING: Duration = Duration::from_micros(400);
/// No answer is looked for longer.
const SPIN_MAX: Duration = Duration::from_micros(150);

/// How long to look for an answer before sleeping, given the mean time of a fault so far.
pub(crate) fn spin_limit(mean: Duration) -> Duration {
    if mean > WORTH_SPINNING { Duration::ZERO } else { mean.min(SPIN_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spin_follows_the_mean_within_its_bound() {
        let us = Duration::from_micros;
        let limits = [0, 20, 200, 500].map(|mean| spin_limit(us(mean)));
        assert_eq!(limits, [us(0), us(20), us(150), us(0)]);
    }
}
