//! In how many rounds the clock of each slice was found, so that others can wait until a newcomer's is right.
//!
//! ```text
//!   joined --a round: measured, told to step--> 1 --it has stepped, and a round says so--> 2: in step
//! ```
//! A slice that has not stepped as it was told answers without being found ([`super::clock_sync`]).

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use wire::SliceId;

/// From this round on a clock is in step.
const IN_STEP: u64 = 2;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct ClockRounds {
    found: Mutex<BTreeMap<SliceId, u64>>,
    more: Condvar,
}

impl ClockRounds {
    /// A round has found the clocks of these.
    pub(super) fn note(&self, slices: impl Iterator<Item = SliceId>) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        slices.for_each(|slice| *found.entry(slice).or_default() += 1);
        self.more.notify_all();
    }

    /// This slice is none of the VM, or not yet.
    pub(super) fn forget(&self, slice: SliceId) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).remove(&slice);
    }

    /// Waits until the clock of this slice is in step; says whether it is.
    pub(super) fn wait(&self, slice: SliceId, limit: Duration) -> bool {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let behind = |found: &mut BTreeMap<SliceId, u64>| {
            found.get(&slice).is_none_or(|rounds| *rounds < IN_STEP)
        };
        let waited = self.more.wait_timeout_while(found, limit, behind);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn clock_is_in_step_once_a_second_round_has_found_it() {
        let rounds = ClockRounds::default();
        let newcomer = SliceId(3);
        rounds.note([SliceId(1), newcomer].into_iter());
        assert!(!rounds.wait(newcomer, Duration::ZERO));
        thread::scope(|threads| {
            let waits = threads.spawn(|| rounds.wait(newcomer, Duration::from_secs(100)));
            rounds.note([SliceId(1)].into_iter());
            rounds.note([newcomer].into_iter());
            assert!(waits.join().unwrap());
        });
        rounds.forget(newcomer);
        assert!(!rounds.wait(newcomer, Duration::ZERO));
        assert!(rounds.wait(SliceId(1), Duration::ZERO));
    }
}
