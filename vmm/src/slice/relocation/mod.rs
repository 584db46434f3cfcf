//! Parts of a running VM go to other slices. [`migrate::plan`] says which; this has them go, one after another.
//!
//! ```text
//!   control socket --Relocation--> plan --jobs--> Job: Vcpu   --> handover
//!                                                      Queues --> order of changes
//!                                                      Home   --> memory engine, then order of changes
//!                                                      Pull   --> home of the pages
//!                                                      Coordinate, Leave --> cut
//! ```
//! All of it is one operation: nobody pauses the VM meanwhile. A job that fails ends it; what was done before stays done,
//! and the VM runs. Of the coordinator, on the thread of who has asked. A coordinator that is drained itself hands over last
//! and asks the next one to have it leave.

mod capacity;
mod executor;
mod job;

pub(super) use capacity::capacity;

use super::advice::advice;
use super::channels::Channels;
use super::cut_link::{CutError, CutHandle};
use super::handover::{MoveError, MoveHandle};
use super::operations::{Busy, Operation};
use super::pulling::PullError;
use crate::control::{Progress, Relocates, Relocation};
use executor::Executor;
use job::{Job, JobError, jobs};
use migrate::Placement;
use migrate::plan::{self, Capacity, Plan, Refusal};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::SliceId;

/// Why parts are not where they were asked to be.
#[derive(Debug, Error)]
pub(super) enum RelocationError {
    /// Nothing was begun: something else goes on.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// Nothing was begun: there is no plan.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Nothing was begun: no code can do it.
    #[error(transparent)]
    Impossible(#[from] JobError),
    /// Some things may have been done.
    #[error(transparent)]
    Vcpu(#[from] MoveError),
    /// Some things may have been done.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// Everything but that was done.
    #[error(transparent)]
    Leave(#[from] CutError),
    /// Everything but that was done: another slice coordinates.
    #[error(
        "everything has gone and another slice coordinates, but this one stays: {0}; drain it there"
    )]
    Stays(String),
    /// The VM ends.
    #[error("homes of memory have not moved: {0}")]
    Homes(String),
    /// There is no guest to move.
    #[error("the VM is over, or has not begun")]
    Over,
    /// What of it was done.
    #[error("{done} of {total} parts have gone, and {job} failed: {why}")]
    Partly {
        /// Jobs that were done.
        done: usize,
        /// Jobs in all.
        total: usize,
        /// The one that failed.
        job: Job,
        /// Why it did.
        #[source]
        why: Box<Self>,
    },
}

/// Has parts of a VM go to other slices. It does not keep the VM alive.
#[derive(Debug)]
pub(super) struct Relocations {
    moves: MoveHandle,
    cuts: CutHandle,
    channels: Weak<Channels>,
    capacity: Capacity,
}

impl Relocations {
    /// Of a VM whose slices offer this.
    pub(super) fn new(
        moves: MoveHandle,
        cuts: CutHandle,
        channels: &Arc<Channels>,
        capacity: Capacity,
    ) -> Self {
        Self { moves, cuts, channels: Arc::downgrade(channels), capacity }
    }

    fn run(
        &self,
        what: &Relocation,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Duration, RelocationError> {
        let channels = self.channels.upgrade().ok_or(RelocationError::Over)?;
        let began = Instant::now();
        let ongoing = Arc::new(channels.operations.begin(Operation::Move)?);
        let placement = Placement::clone(&channels.placement.load());
        let jobs = jobs(&self.plan(what, &placement)?, &placement, what.stays())?;
        let (moves, cuts) = (&self.moves, &self.cuts);
        let executor = Executor { moves, cuts, channels: &channels, ongoing };
        let total = jobs.len();
        for (done, job) in jobs.into_iter().enumerate() {
            tell(Progress { done, total, next: job.to_string() });
            if let Err(why) = executor.run(&job) {
                return Err(match total {
                    1 => why,
                    _ => RelocationError::Partly { done, total, job, why: Box::new(why) },
                });
            }
        }
        Ok(began.elapsed())
    }

    /// Has a slice leave that is empty.
    pub(super) fn let_leave(&self, slice: SliceId) -> Result<(), RelocationError> {
        let channels = self.channels.upgrade().ok_or(RelocationError::Over)?;
        let ongoing = Arc::new(channels.operations.begin(Operation::Move)?);
        let (moves, cuts) = (&self.moves, &self.cuts);
        Executor { moves, cuts, channels: &channels, ongoing }.leave(slice)
    }

    fn plan(&self, what: &Relocation, placement: &Placement) -> Result<Plan, Refusal> {
        let capacity = &self.capacity;
        match what {
            Relocation::Vcpu { vcpu, to } => Ok(plan::vcpu(placement, capacity, *vcpu, *to)),
            Relocation::Drain { slice, .. } => plan::drain(placement, capacity, *slice),
            Relocation::Consolidate { .. } => plan::consolidate(placement, capacity),
            Relocation::Spread => plan::spread(placement, capacity),
        }
    }
}

impl Relocates for Relocations {
    fn relocate(
        &self,
        what: &Relocation,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Duration, String> {
        self.run(what, tell).map_err(|error| super::one_line(&error))
    }

    fn advise(&self, seconds: u64, tell: &mut dyn FnMut(Progress)) -> Result<Vec<String>, String> {
        let over = || super::one_line(&RelocationError::Over);
        let channels = self.channels.upgrade().ok_or_else(over)?;
        advice(&channels, &self.capacity, seconds, tell).map_err(|error| super::one_line(&error))
    }
}
