//! Which core a thread of the benchmark runs on, and when.

use dsm::schedule;

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
    schedule::settle(place.core());
}

/// Has the calling thread go before workers: who starts one on each core must not wait for the first of them,
/// which would begin a time slice before the second.
pub fn go_before_workers() {
    schedule::prefer_this_thread_only();
}

/// Settles the calling thread as the memory engine settles its own: before all ordinary threads. The
/// floors must not wait for what the engine does not wait for.
pub fn settle_as_engine(place: Place) {
    schedule::prefer_this_thread();
    settle(place);
}
