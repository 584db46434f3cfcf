//! When and where the engine's thread runs.
//!
//! It sleeps when nothing is to be done. Sleeping and waking costs tens of microseconds where an idle
//! core is halted, about as much as a whole transfer between hosts. So while an answer is expected
//! it looks for it for about as long as a fault takes, and sleeps only then. Where faults take longer than
//! [`WORTH_SPINNING`], as on emulated hosts, it never does; nor where this process has one core, which whoever
//! answers needs too.
#![expect(unsafe_code, reason = "the scheduling policy of a thread")]
// UNSAFETY: one system call with a structure on the stack.

use std::num::NonZero;
use std::sync::Once;
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

/// Among threads that run before others; 0 is none of these.
fn priority() -> libc::c_int {
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is this thread; the structure is valid, and is left as it is if there is no answer.
    unsafe { libc::sched_getparam(0, &raw mut param) };
    param.sched_priority
}

/// Low among them: kernel threads that serve interrupts have 50.
const PRIORITY: libc::c_int = 10;

fn prefer(policy: libc::c_int) {
    static TOLD: Once = Once::new();
    // Whoever has started this process has said so.
    if priority() >= PRIORITY {
        return;
    }
    let param = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: 0 is this thread; the structure is valid. Refusal leaves the ordinary scheduler.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const param) };
    if result != 0 {
        TOLD.call_once(|| {
            tracing::info!("real-time priority is not permitted for the threads that vCPUs wait for; going on without");
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Where it is permitted; else it stays an ordinary one.
    #[test]
    fn thread_that_runs_before_others_keeps_its_priority() {
        let look = || {
            assert_eq!(priority(), 0);
            prefer_this_thread_only();
            let first = priority();
            assert!([0, PRIORITY].contains(&first), "{first}");
            let param = libc::sched_param { sched_priority: PRIORITY + 1 };
            // SAFETY: 0 is this thread; the structure is valid.
            let higher = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) };
            prefer_this_thread();
            assert_eq!(priority(), if higher == 0 { PRIORITY + 1 } else { first });
        };
        std::thread::spawn(look).join().unwrap();
    }

    #[test]
    fn spin_follows_the_mean_within_its_bound() {
        let us = Duration::from_micros;
        let limits = [0, 20, 200, 900, 1100].map(|mean| spin_limit(us(mean), 2));
        assert_eq!(limits, [us(0), us(25), us(250), us(500), us(0)]);
        assert_eq!(spin_limit(us(200), 1), us(0), "who answers needs the core");
    }
}
