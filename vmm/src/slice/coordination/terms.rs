//! How long a VM may run, and what it has lost so far: what ends it, and what its report says.

use super::state::{CoordinatorState, LostState, milliseconds, shortened};
use crate::slice::report::LostSlice;
use crate::slice::stop::LONGEST;
use std::time::{Duration, Instant};

/// Of the coordinator; it goes with the coordination.
#[derive(Clone, Debug)]
pub(in crate::slice) struct Terms {
    /// When the guest was started.
    pub(in crate::slice) started: Instant,
    /// When the VM ends, if its user has set a limit.
    pub(in crate::slice) limit: Option<Instant>,
    /// The guest's time to shut down once it is asked to.
    pub(in crate::slice) stop_limit: Duration,
    /// Slices that are gone and without which the VM went on.
    pub(in crate::slice) lost: Vec<LostSlice>,
}

impl Terms {
    /// Of a guest that is started now.
    pub(in crate::slice) fn new(limit: Option<Duration>, stop_limit: Duration) -> Self {
        let started = Instant::now();
        let limit = limit.map(|limit| started + limit.min(LONGEST));
        Self { started, limit, stop_limit, lost: Vec::new() }
    }

    pub(super) fn left_ms(&self) -> Option<u64> {
        let left = |limit: Instant| limit.saturating_duration_since(Instant::now());
        self.limit.map(|limit| milliseconds(left(limit)))
    }

    /// Those of the coordinator before are in force here. Slices that this one has seen lost count too: the last of them may have been
    /// lost since the one before told what it knows.
    pub(super) fn become_those(&mut self, mut next: Self) {
        let new = |lost: &LostSlice| next.lost.iter().all(|known| known.slice != lost.slice);
        let new: Vec<_> = std::mem::take(&mut self.lost).into_iter().filter(new).collect();
        next.lost.extend(new);
        *self = next;
    }

    pub(super) fn lost_states(&self) -> Vec<LostState> {
        let state =
            |lost: &LostSlice| LostState { slice: lost.slice, cause: shortened(&lost.cause) };
        self.lost.iter().map(state).collect()
    }

    /// Those of the coordinator before. The time that they were on their way does not count.
    pub(super) fn of(state: &CoordinatorState) -> Self {
        let now = Instant::now();
        let elapsed = Duration::from_millis(state.elapsed_ms);
        let lost = |lost: &LostState| LostSlice { slice: lost.slice, cause: lost.cause.clone() };
        Self {
            // A clock that began later than the guest cannot say when that was.
            started: now.checked_sub(elapsed).unwrap_or(now),
            limit: state.left_ms.map(|left| now + Duration::from_millis(left)),
            stop_limit: Duration::from_millis(state.stop_limit_ms),
            lost: state.lost.iter().map(lost).collect(),
        }
    }
}
