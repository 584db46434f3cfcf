//! How long the threads of a vCPU have run here, and waited for a processor.
//!
//! ```text
//!   attach: the thread's own times are the base ──read: what has come to them since── detach: that is added for good
//! ```
//! Linux counts both for each thread (`/proc/PID/task/TID/schedstat`, Documentation/scheduler/sched-stats.rst; nanoseconds). The time in the guest is
//! among the first. A vCPU that sleeps, or waits for a page, is in neither.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// For what a vCPU did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTimes {
    /// On a processor.
    pub run: Duration,
    /// Ready to run, while others had the processors.
    pub delayed: Duration,
}

impl RunTimes {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { run: self.run + other.run, delayed: self.delayed + other.delayed }
    }

    fn since(self, base: Self) -> Self {
        Self {
            run: self.run.saturating_sub(base.run),
            delayed: self.delayed.saturating_sub(base.delayed),
        }
    }

    /// Whether Linux counts: the first thread of this process has run. Of one that has just begun nothing is counted yet.
    pub(crate) fn are_counted() -> bool {
        Self::of_thread(rustix::process::getpid()).is_some_and(|times| !times.run.is_zero())
    }

    /// Of a thread of this process; none once it has ended, or where Linux does not count.
    fn of_thread(thread: rustix::thread::Pid) -> Option<Self> {
        let text =
            fs::read_to_string(format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero()))
                .ok()?;
        let mut numbers = text.split_whitespace().map_while(|number| number.parse().ok());
        let mut next = || numbers.next().map(Duration::from_nanos);
        Some(Self { run: next()?, delayed: next()? })
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// Of threads that have ended.
    before: RunTimes,
    /// The one that runs, and its times at its start.
    thread: Option<(rustix::thread::Pid, RunTimes)>,
}

impl Inner {
    fn now(&self) -> RunTimes {
        let of = |&(thread, base): &(_, _)| Some(RunTimes::of_thread(thread)?.since(base));
        self.before.plus(self.thread.as_ref().and_then(of).unwrap_or_default())
    }
}

/// Of one vCPU.
#[derive(Debug, Default)]
pub(crate) struct Clock(Mutex<Inner>);

impl Clock {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread runs the vCPU from now on.
    pub(crate) fn attach(&self) {
        let thread = rustix::thread::gettid();
        let base = RunTimes::of_thread(thread).unwrap_or_default();
        self.lock().thread = Some((thread, base));
    }

    /// No thread runs it any more.
    pub(crate) fn detach(&self) {
        let mut inner = self.lock();
        inner.before = inner.now();
        inner.thread = None;
    }

    /// What its threads have done so far.
    pub(crate) fn read(&self) -> RunTimes {
        self.lock().now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;
    use std::time::Instant;

    fn busy(length: Duration) {
        let end = Instant::now() + length;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn times_of_all_threads_of_a_vcpu_are_added_up() {
        let clock = Arc::new(Clock::default());
        let mut last = clock.read();
        assert_eq!(last, RunTimes::default());
        assert!(RunTimes::are_counted());
        for _ in 0..2 {
            let own = Arc::clone(&clock);
            let work = move || {
                own.attach();
                let before = own.read();
                busy(Duration::from_millis(50));
                let after = own.read();
                // What has not run has waited: the two are most of the time that has passed.
                assert!(after.run > before.run || after.delayed > before.delayed, "{after:?}");
                own.detach();
            };
            thread::spawn(work).join().unwrap();
            let now = clock.read();
            assert!(now.run > last.run, "{now:?}");
            assert_eq!(now, clock.read(), "nobody runs");
            last = now;
        }
    }
}
