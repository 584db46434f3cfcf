//! Room for one that waits: what others move for it.

use super::{Effect, Scheduler};
use crate::policy::Policy;

/// VMs of the queue for which room is made at a time.
const CLEARED_MAX: usize = 4;
/// It is tried again for one that waits still, after so many milliseconds.
const AGAIN: u64 = 120_000;

impl<P: Policy> Scheduler<P> {
    /// Those that have waited longest, if nothing moves for them yet.
    pub(super) fn clear(&mut self, effects: &mut Vec<Effect>) {
        if !self.policy.makes_room() {
            return;
        }
        let Self { clearing, queue, now, .. } = self;
        clearing.retain(|vm, since| queue.contains(*vm) && since.saturating_add(AGAIN) > *now);
        for at in 0..CLEARED_MAX {
            let Some(it) = self.queue.get(at) else { return };
            if self.clearing.contains_key(&it.vm) {
                continue;
            }
            let waited = self.now.saturating_sub(it.since);
            let moves = self.policy.make_room(&self.cluster, &it.spec, waited);
            if !moves.is_empty() {
                self.clearing.insert(it.vm, self.now);
                self.begin(&moves, false, effects);
            }
        }
    }
}
