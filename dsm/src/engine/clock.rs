//! The engine's time.

#[cfg(feature = "simulate")]
use std::sync::Arc;
#[cfg(feature = "simulate")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A clock that never steps back.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The host's, from then on.
    Host(Instant),
    /// As the simulator says, in nanoseconds.
    #[cfg(feature = "simulate")]
    Simulated(Arc<AtomicU64>),
}

impl Clock {
    /// Nanoseconds.
    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            Self::Host(start) => u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
            #[cfg(feature = "simulate")]
            Self::Simulated(now) => now.load(Ordering::Relaxed),
        }
    }
}
