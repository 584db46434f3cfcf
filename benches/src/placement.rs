//! Which core a thread of the benchmark runs on, and when.
#![expect(unsafe_code, reason = "the scheduling policy of a thread")]
// UNSAFETY: one system call with a structure on the stack.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Where a thread runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Wherever the scheduler wants.
    #[default]
    Anywhere,
    /// On one core.
    Core(usize),
}

impl Place {
    /// The core, if it is one.
    #[must_use]
    pub fn core(self) -> Option<usize> {
        match self {
            Self::Anywhere => None,
            Self::Core(core) => Some(core),
        }
    }
}

/// Moves the calling thread. A machine without that core leaves it where it is.
pub fn settle(place: Place) {
    if let Place::Core(core) = place {
        let mut set = CpuSet::new();
        set.set(core);
        // The figures say where threads ran only by what was asked for; see the conditions.
        let _ = sched_setaffinity(None, &set);
    }
}

/// Settles the calling thread as the memory engine settles its own: before all ordinary threads. The
/// floors must not wait for what the engine does not wait for.
pub fn settle_as_engine(place: Place) {
    let param = libc::sched_param { sched_priority: 10 };
    // SAFETY: 0 is this thread; the structure is valid. Refused, both run as ordinary threads.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) };
    settle(place);
}

/// Cores of this machine.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
