//! Hosts prove that nothing of a life of a VM runs there, or ever will: when it stops, and when its start is undone.
//!
//! ```text
//!   ask each host ─> it has fenced ─────────────────────────────────────────────────┐
//!        └ it is lost ─> another slice was fenced, and so long ago that all others ─┴─> nothing of this life runs
//!                        have stopped by themselves
//! ```
//! **Slices of one VM watch each other.** Whoever hears nothing of another one for a lease stops, and submits nothing to a disk or a
//! network before it has looked ([decision 58](../../../../docs/decisions/0058-a-lost-vm-goes-on-by-itself.md)). Those of a VM that has not
//! begun need each other to begin: a bootstrap runs no guest before all companions are there, and a companion runs nothing without it. So the
//! proof for one slice is, a while later, a proof for all. A VM of one slice has nobody who watches it: its host is waited for, or its
//! operator's word.

use super::machine::Orchestrator;
use super::planted::PlantedBug;
use super::progress::Work;
use super::stop::FENCE;
use super::work::at;
use state::{Assignment, Name, Operation, Verb};

impl Orchestrator {
    /// A host has fenced: if its slice was one whose silence all others hear, they stop soon.
    pub(crate) fn note_fenced(&mut self, operation: &Operation, host: &Name) {
        let is_heard = |it: &Assignment| {
            // A slice may have come and not yet be a part of the VM, unless no move was cut off. The first one always is.
            let is_certain = it.former.iter().all(|former| former.ended);
            let is_first = it.slices.first().is_some_and(|part| part.host == *host);
            is_first || (is_certain && it.slices.iter().any(|part| part.host == *host))
        };
        let heard = self.objects.assignments.get(&operation.vm).is_some_and(is_heard);
        let now = self.now.ms;
        if heard
            && let Some(work) = self.works.get_mut(&operation.vm)
            && is_fencing(operation, work)
        {
            work.fenced_at.get_or_insert(now);
        }
    }

    /// Whether slices on hosts that do not answer have surely stopped.
    pub(crate) fn has_stopped_by_itself(&self, work: &Work, assignment: &Assignment) -> bool {
        let rest =
            if self.planted.has(PlantedBug::LeaseIgnored) { 0 } else { self.settings.silence_ms };
        let is_long_ago = |at: u64| self.now.ms.saturating_sub(at) >= rest;
        // Of a move that was cut off both were parts of the VM.
        let left = assignment.former.iter().filter(|it| !it.ended).count();
        assignment.slices.len() + left > 1 && work.fenced_at.is_some_and(is_long_ago)
    }
}

/// Whether what a host has done now is to fence.
fn is_fencing(operation: &Operation, work: &Work) -> bool {
    match operation.verb {
        Verb::Stop | Verb::Restart | Verb::Delete => at(operation) == Some(FENCE),
        Verb::Start => operation.undoing.is_some() && !work.is_fenced,
        Verb::Move | Verb::Checkpoint => false,
    }
}
