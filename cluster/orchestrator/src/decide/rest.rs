//! How long a VM rests before it starts again.
//!
//! ```text
//!   its start has failed                         again_ms; from the third time on twice as long each time, up to 64 times; where it
//!                                                goes on from what was written, from the second time on
//!   its guest has ended, and had run for long    not at all
//!   its guest has ended sooner                   at first not at all; then again_ms, and twice as long each time, up to rest_max_ms
//! ```
//! Without that a guest that ends as soon as it runs would be started again every few seconds for ever, with two operations each time.
//! It is in memory only: with another leader a VM has one quick start more.

use super::machine::Orchestrator;
use super::progress::Runs;
use state::{Name, Vm};

/// So often the rest before a start doubles.
const RESTS_MAX: u32 = 6;
/// More would be no number any more.
const DOUBLED_MAX: u32 = 30;

impl Orchestrator {
    /// It runs.
    pub(crate) fn note_run(&mut self, vm: &Name) {
        let since = self.now.ms;
        self.failed.remove(vm);
        let runs = self.runs.entry(vm.clone()).or_insert(Runs { since, soon: 0 });
        runs.since = since;
    }

    /// It runs no more, and is to run again. Whoever leads only now takes it to have begun with its term.
    pub(crate) fn note_end_of_run(&mut self, vm: &Name) {
        let (now, since) = (self.now.ms, self.since);
        let steady = self.settings.steady_ms;
        let runs = self.runs.entry(vm.clone()).or_insert(Runs { since, soon: 0 });
        let is_soon = now.saturating_sub(runs.since) < steady;
        runs.soon = if is_soon { runs.soon.saturating_add(1) } else { 0 };
    }

    /// After its start has failed: the longer the more often.
    pub(crate) fn rest_after_a_failure(&mut self, vm: &Vm) {
        let starts = self.failed.entry(vm.name.clone()).or_default();
        starts.count = starts.count.saturating_add(1);
        // The second one may be elsewhere.
        let count = starts.count.saturating_sub(1).max(failed(vm)).max(1);
        self.rest_for(&vm.name, self.rest_of(count));
    }

    /// After it has run: the longer the more often it has ended soon, or was lost with nothing written since it went on.
    pub(crate) fn rest_after_a_run(&mut self, vm: &mut Vm) {
        let again = self.settings.again_ms;
        let lost = self.rest_of(failed(vm));
        let soon = self.runs.get(&vm.name).map_or(0, |runs| runs.soon);
        let ended = match soon {
            0 | 1 => 0,
            soon => again.saturating_mul(1 << (soon - 2).min(DOUBLED_MAX)),
        };
        let ended = ended.min(self.settings.rest_max_ms);
        if ended > 0 {
            let seconds = ended.max(lost).div_ceil(1000);
            let why = &vm.observed.why;
            vm.observed.why = format!(
                "{why}; it has ended soon after it began {soon} times, and rests for {seconds} s"
            );
        }
        if ended.max(lost) > 0 {
            self.rest_for(&vm.name, ended.max(lost));
        }
    }

    /// After so many tries in vain to go on from what was written.
    fn rest_of(&self, failed: u32) -> u64 {
        failed.checked_sub(1).map_or(0, |more| self.settings.again_ms << more.min(RESTS_MAX))
    }

    fn rest_for(&mut self, vm: &Name, ms: u64) {
        self.resting.insert(vm.clone(), self.now.ms.saturating_add(ms));
    }

    /// What is wanted of it has changed, or it is no more: it starts at once when it is to.
    pub(crate) fn forget_runs(&mut self, vm: &Name) {
        self.resting.remove(vm);
        self.runs.remove(vm);
        self.failed.remove(vm);
    }
}

/// How often it was tried in vain to go on.
fn failed(vm: &Vm) -> u32 {
    vm.observed.goes_on.as_ref().map_or(0, |it| it.failed)
}
