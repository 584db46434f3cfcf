//! Plans: which part of a VM goes where, when a slice leaves, joins, or is no longer needed. Nothing here acts, waits,
//! reads a clock or sends.
//!
//! ```text
//!   Placement, Capacity --drain, consolidate, spread, add--> Plan (steps) or Refusal (each part, and why)
//!   Placement (epoch n) --step--> Placement (epoch n + 1) --step--> ... --step--> as planned
//!
//!   Placement, Capacity, Windows (counted faults), Terms --advise--> Proposals, ranked; somebody decides
//! ```
//! A plan is made for one placement and is void once another one is in force. All steps are known to fit before the first
//! is taken: no step gives a slice more than it offers. The executor may cut a step of memory into smaller ones.
//!
//! **The order of steps.** Devices are first, for their move may fail in the world outside, and then nothing else has
//! moved. A vCPU moves in one step with the queues that follow it. Memory comes last, since vCPUs at their new place say
//! which of it is hot. A slice leaves as soon as it is empty.
//!
//! **Work is bounded.** [`consolidate`] looks at each set of slices once, [`advise`] at each set of slices with vCPUs, for
//! at most [`SLICES_MAX`] slices. Everything else is linear in the parts of the VM, times the slices.

mod advisor;
mod capacity;
mod consolidate;
mod drain;
mod refusal;
mod sharing;
mod spread;
#[cfg(test)]
mod tests;

pub use advisor::{Expense, Gain, Group, PROPOSALS_MAX, Proposal, Terms, advise};
pub use capacity::{Capacity, Offer};
pub use consolidate::consolidate;
pub use drain::{drain, drain_to, vcpu};
pub use refusal::{Obstacle, Refusal};
pub use sharing::{FaultCount, Window};
pub use spread::{add, spread};

use crate::{Change, Placement, PlacementError};

/// Most slices of a VM for [`consolidate`] and [`advise`], which look at sets of slices: 65,535 sets.
pub const SLICES_MAX: usize = 16;

/// What moves at one time: [`Placement::next`] makes the placement of the next epoch of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// Never empty.
    pub changes: Vec<Change>,
}

/// How much moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cost {
    /// Real parts of devices that another host takes over.
    pub devices: u64,
    /// Guest memory that gets another home, in bytes.
    pub bytes: u64,
    /// vCPUs that move.
    pub vcpus: u64,
    /// Queues that move.
    pub queues: u64,
}

/// Steps from one placement to another, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Plan {
    /// At least one.
    pub steps: Vec<Step>,
}

impl Plan {
    fn push(&mut self, changes: Vec<Change>) {
        if !changes.is_empty() {
            self.steps.push(Step { changes });
        }
    }

    /// How much moves in all steps together.
    #[must_use]
    pub fn cost(&self) -> Cost {
        let mut cost = Cost::default();
        for change in self.steps.iter().flat_map(|step| &step.changes) {
            match change {
                Change::Join(_) | Change::Leave(_) | Change::Coordinator(_) => {}
                Change::Vcpu { .. } => cost.vcpus += 1,
                Change::Memory { frames, .. } => {
                    cost.bytes += capacity::bytes_of(frames.end - frames.start);
                }
                Change::Queue { .. } => cost.queues += 1,
                Change::Device { .. } => cost.devices += 1,
            }
        }
        cost
    }

    /// The placement after all steps, whose epoch is as many further.
    ///
    /// # Errors
    /// The plan was made for another placement, or there are not that many epochs left.
    pub fn result(&self, placement: &Placement) -> Result<Placement, PlacementError> {
        let first = placement.clone();
        self.steps.iter().try_fold(first, |placement, step| placement.next(&step.changes))
    }
}
