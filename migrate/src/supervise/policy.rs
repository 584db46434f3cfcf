//! What the user wants.

/// Beyond what can be reckoned, for the fence to shut and the process to end.
const MARGIN_MS: u64 = 500;

/// What the user has said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// From one checkpoint to the next.
    pub every_ms: u64,
    /// How many are kept, at least one.
    pub keep: usize,
    /// Of so many in a row the first one is full, and each other an increment of the one before. With 1 all are full.
    pub full_every: u32,
    /// A slice that is silent for so long is lost.
    pub lease_ms: u64,
    /// How far clocks of two hosts drift apart in that time.
    pub clock_error_ms: u64,
    /// For hosts to answer after a loss, before the VM goes on without them.
    pub gather_ms: u64,
    /// So many starts again...
    pub restarts_max: usize,
    /// ... in so long without a new checkpoint, and it is given up.
    pub window_ms: u64,
    /// A guest whose kernel has panicked goes on from a checkpoint too.
    pub on_panic: bool,
    /// A VM that goes on from a checkpoint for the first time runs before all its memory was read.
    pub lazy: bool,
}

impl Policy {
    /// From the end of one slice of a VM until all others have surely stopped: they hear nothing of it, and count silence in
    /// quarters of a lease, of which the first may be cut short.
    #[must_use]
    pub fn stopped_after(&self) -> u64 {
        let silence = self.lease_ms.saturating_add(self.lease_ms.div_ceil(4));
        silence.saturating_add(2 * self.clock_error_ms).saturating_add(MARGIN_MS)
    }
}
