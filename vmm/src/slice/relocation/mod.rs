//! Parts of a running VM go to other slices. [`migrate::plan`] says which; this has them go, one after another.
//!
//! ```text
//!   control socket --Relocation--> plan --jobs--> Job: Vcpu   --> handover
//!                                                      Queues --> order of changes
//!                                                      Home   --> memory engine, then order of changes
//!                                                      Pull   --> home of the pages
//!                                                      Device, Coordinate, Join, Leave --> cut
//!   control socket --add----> newcomer is called (`joining`) --its offer--> plan, as above
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
use super::joining::{Invited, Inviter, JoinFailure};
use super::operations::{Busy, Ongoing, Operation};
use super::pulling::PullError;
use super::refusing::Explains;
use crate::control::{AddRequest, Progress, Reason, Refusal as Refused, Relocates, Relocation};
use executor::Executor;
use job::{Job, JobError, jobs};
use migrate::Placement;
use migrate::plan::{self, Capacity, Plan, Refusal};
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::{SliceId, VcpuId};

/// Why parts are not where they were asked to be.
#[derive(Debug, Error)]
pub(super) enum RelocationError {
    /// Nothing was begun: something else goes on.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// Nothing was begun: there is no plan.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Nothing was begun: the guest would miss what it was promised.
    #[error("{slice} cannot run {vcpu}: its host lacks {lacks}")]
    Lacks {
        /// The slice that it was to go to.
        slice: SliceId,
        /// The vCPU.
        vcpu: VcpuId,
        /// Features of its processors.
        lacks: String,
    },
    /// Nothing was begun: the VM would go on with nobody to miss that slice, whose end has it begin anew.
    #[error(
        "{0} cannot leave, for its VM is supervised there (--on-lost); drain it with --stay, and it has nothing of the VM but its place"
    )]
    Supervised(SliceId),
    /// Nothing was begun: what it has is lost with it, and nobody hears that it should leave.
    #[error(
        "{0} is lost: it cannot leave, nor can its devices move; the VM has to be started again, soon"
    )]
    Lost(SliceId),
    /// Nothing was begun: no code can do it.
    #[error(transparent)]
    Impossible(#[from] JobError),
    /// Some things may have been done.
    #[error(transparent)]
    Vcpu(#[from] MoveError),
    /// Some things may have been done.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// No slice has joined, and nothing was done.
    #[error(transparent)]
    Join(#[from] JoinFailure),
    /// The slice is a member of the VM.
    #[error(
        "{0} is of the VM, but its clock was not measured twice within {1:?}, so no vCPU goes there: look at that host and its \
         network, and try again"
    )]
    Clock(SliceId, Duration),
    /// Everything but that was done.
    #[error(transparent)]
    Cut(#[from] CutError),
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
    #[error("{done} of {total} steps are done, and the next one ({job}) failed")]
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

impl Explains for RelocationError {
    fn reason(&self) -> Reason {
        match self {
            Self::Busy(busy) => busy.reason(),
            Self::Refused(refusal) => refusal.reason(),
            Self::Lacks { .. } | Self::Lost(_) => Reason::HostUnfit,
            Self::Supervised(_) => Reason::Unsupported,
            Self::Vcpu(error) => error.reason(),
            Self::Pull(error) => error.reason(),
            Self::Join(failure) => failure.reason(),
            Self::Cut(error) => error.reason(),
            Self::Over => Reason::Over,
            Self::Partly { done, total, .. } => {
                let count = |steps| u64::try_from(steps).unwrap_or(u64::MAX);
                Reason::Partly { done: count(*done), total: count(*total) }
            }
            Self::Impossible(_) | Self::Stays(_) | Self::Homes(_) | Self::Clock(..) => {
                Reason::Failed
            }
        }
    }
}

/// Has parts of a VM go to other slices. It does not keep the VM alive.
#[derive(Debug)]
pub(super) struct Relocations {
    moves: MoveHandle,
    cuts: CutHandle,
    channels: Weak<Channels>,
    capacity: Arc<Mutex<Capacity>>,
    /// None on a slice that cannot have others join.
    inviter: Option<Arc<Inviter>>,
}

impl Relocations {
    /// Of a VM whose slices offer this.
    pub(super) fn new(
        moves: MoveHandle,
        cuts: CutHandle,
        channels: &Arc<Channels>,
        (capacity, inviter): (Arc<Mutex<Capacity>>, Option<Arc<Inviter>>),
    ) -> Self {
        Self { moves, cuts, channels: Arc::downgrade(channels), capacity, inviter }
    }

    fn capacity(&self) -> Capacity {
        self.capacity.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        if let Relocation::Vcpu { vcpu, to } = what {
            can_run(&self.capacity(), *vcpu, *to)?;
        }
        let jobs = self.jobs(what, &placement)?;
        self.do_all(jobs, &self.executor(&channels, ongoing, None), tell)?;
        Ok(began.elapsed())
    }

    /// What would be done, and would be refused.
    fn look_ahead(&self, what: &Relocation) -> Result<Vec<String>, RelocationError> {
        let channels = self.channels.upgrade().ok_or(RelocationError::Over)?;
        channels.operations.idle()?;
        let placement = Placement::clone(&channels.placement.load());
        if let Relocation::Vcpu { vcpu, to } = what {
            can_run(&self.capacity(), *vcpu, *to)?;
        }
        let jobs = self.jobs(what, &placement)?;
        Ok(jobs.iter().map(ToString::to_string).collect())
    }

    /// A companion joins, and takes vCPUs unless it is to be empty.
    fn join(
        &self,
        AddRequest { address, empty, number }: &AddRequest,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Duration, RelocationError> {
        let channels = &*self.channels.upgrade().ok_or(RelocationError::Over)?;
        let began = Instant::now();
        let ongoing = Arc::new(channels.operations.begin(Operation::Move)?);
        let placement = &Placement::clone(&channels.placement.load());
        let mut membership = channels.joining.membership();
        let membership = membership.as_mut().ok_or(JoinFailure::NoSecret)?;
        let inviter = self.inviter.as_ref().ok_or_else(|| JoinFailure::elsewhere(channels))?;
        tell(Progress { done: 0, total: 0, next: format!("a companion at {address}") });
        let invited = inviter.invite(membership, &channels.there(), (*number, *address))?;
        let (slice, mut capacity) = (invited.slice, self.capacity());
        let offer = invited.offer.clone();
        capacity.offers.insert(slice, offer.clone());
        let plan = match plan::add(placement, &capacity, slice) {
            Ok(plan) => plan,
            Err(refusal) => {
                invited.abort(&super::one_line(&refusal));
                return Err(refusal.into());
            }
        };
        let mut jobs = jobs(&plan, placement, (true, None))?;
        jobs.retain(|job| !empty || matches!(job, Job::Join(_)));
        let executor = self.executor(channels, ongoing, Some(invited));
        let done = self.do_all(jobs, &executor, tell);
        if channels.placement.load().is_member(slice) {
            let mut capacity = self.capacity.lock().unwrap_or_else(PoisonError::into_inner);
            capacity.offers.insert(slice, offer);
        }
        done.map(|()| began.elapsed())
    }

    fn executor<'a>(
        &'a self,
        channels: &'a Channels,
        ongoing: Arc<Ongoing>,
        newcomer: Option<Invited<'a>>,
    ) -> Executor<'a> {
        let (moves, cuts) = (&self.moves, &self.cuts);
        Executor { moves, cuts, channels, ongoing, newcomer: RefCell::new(newcomer) }
    }

    fn do_all(
        &self,
        jobs: Vec<Job>,
        executor: &Executor<'_>,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<(), RelocationError> {
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
        Ok(())
    }

    /// Has a slice leave that is empty.
    pub(super) fn let_leave(&self, slice: SliceId) -> Result<(), RelocationError> {
        can_leave(&self.capacity(), slice)?;
        let channels = self.channels.upgrade().ok_or(RelocationError::Over)?;
        let ongoing = Arc::new(channels.operations.begin(Operation::Move)?);
        self.executor(&channels, ongoing, None).leave(slice)
    }

    fn jobs(&self, what: &Relocation, placement: &Placement) -> Result<Vec<Job>, RelocationError> {
        let channels = self.channels.upgrade().ok_or(RelocationError::Over)?;
        let lost = channels.cut.lost_slices();
        refuse_lost(what, &lost, placement)?;
        let capacity = without(self.capacity(), &lost);
        let emptied = match what {
            Relocation::Drain { slice, stay: false, .. } => {
                can_leave(&capacity, *slice)?;
                None
            }
            Relocation::Drain { slice, .. } => capacity.stays.filter(|stays| stays == slice),
            _ => None,
        };
        Ok(jobs(&plan(&capacity, what, placement)?, placement, (what.stays(), emptied))?)
    }
}

fn plan(capacity: &Capacity, what: &Relocation, placement: &Placement) -> Result<Plan, Refusal> {
    match what {
        Relocation::Vcpu { vcpu, to } => Ok(plan::vcpu(placement, capacity, *vcpu, *to)),
        Relocation::Drain { slice, to: Some(to), .. } => {
            plan::drain_to(placement, capacity, *slice, *to)
        }
        Relocation::Drain { slice, to: None, .. } => plan::drain(placement, capacity, *slice),
        Relocation::Consolidate { .. } => plan::consolidate(placement, capacity),
        Relocation::Spread => plan::spread(placement, capacity),
    }
}

/// Nothing goes to these, which had devices only.
fn without(mut capacity: Capacity, lost: &[SliceId]) -> Capacity {
    capacity.offers.retain(|slice, _| !lost.contains(slice));
    capacity
}

/// What would have a lost slice give something up: the guest would stand still for it, and nothing come of that.
fn refuse_lost(
    what: &Relocation,
    lost: &[SliceId],
    placement: &Placement,
) -> Result<(), RelocationError> {
    let asked = |slice: &&SliceId| match what {
        Relocation::Drain { slice: drained, .. } => drained == *slice,
        Relocation::Consolidate { .. } => placement.is_member(**slice),
        Relocation::Vcpu { .. } | Relocation::Spread => false,
    };
    lost.iter().find(asked).map_or(Ok(()), |slice| Err(RelocationError::Lost(*slice)))
}

/// Whether the processors of a slice's host have what a vCPU needs. People may give it more vCPUs than it has cores.
fn can_run(capacity: &Capacity, vcpu: VcpuId, slice: SliceId) -> Result<(), RelocationError> {
    match capacity.offers.get(&slice).map_or(&[][..], |offer| &offer.lacks) {
        [] => Ok(()),
        lacks => Err(RelocationError::Lacks { slice, vcpu, lacks: lacks.join(", ") }),
    }
}

/// Whether a slice may leave the VM.
fn can_leave(capacity: &Capacity, slice: SliceId) -> Result<(), RelocationError> {
    if capacity.stays == Some(slice) { Err(RelocationError::Supervised(slice)) } else { Ok(()) }
}

impl Relocates for Relocations {
    fn relocate(
        &self,
        what: &Relocation,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Duration, Refused> {
        self.run(what, tell).map_err(|error| error.refusal())
    }

    fn add(
        &self,
        request: &AddRequest,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Duration, Refused> {
        self.join(request, tell).map_err(|error| error.refusal())
    }

    fn plan(&self, what: &Relocation) -> Result<Vec<String>, Refused> {
        self.look_ahead(what).map_err(|error| error.refusal())
    }

    fn advise(&self, seconds: u64, tell: &mut dyn FnMut(Progress)) -> Result<Vec<String>, Refused> {
        let channels = self.channels.upgrade().ok_or_else(|| RelocationError::Over.refusal())?;
        advice(&channels, &self.capacity(), seconds, tell).map_err(|error| error.refusal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use migrate::plan::Offer;
    use wire::Epoch;

    #[test]
    fn no_vcpu_goes_by_hand_to_a_host_that_lacks_what_the_guest_uses() {
        let mut capacity = Capacity::default();
        let lacks = vec!["avx512f".to_owned(), "amx".to_owned()];
        capacity.offers.insert(SliceId(1), Offer::default());
        capacity.offers.insert(SliceId(2), Offer { lacks, ..Offer::default() });
        let vcpu = VcpuId(3);
        for slice in [0, 1].map(SliceId) {
            can_run(&capacity, vcpu, slice).unwrap();
        }
        let why = can_run(&capacity, vcpu, SliceId(2)).unwrap_err().to_string();
        assert_eq!(why, "slice2 cannot run vcpu3: its host lacks avx512f, amx");
    }

    #[test]
    fn nothing_is_asked_of_a_lost_slice_nor_goes_there() {
        let members = [0, 1, 2].map(SliceId).to_vec();
        let placement =
            Placement::new(Epoch(1), members, vec![SliceId(0)], Vec::new(), Vec::new()).unwrap();
        let lost = [SliceId(2), SliceId(7)];
        let drain = |slice| Relocation::Drain { slice: SliceId(slice), to: None, stay: false };
        let consolidate = Relocation::Consolidate { stay: false };
        for (what, refused) in
            [(drain(1), false), (drain(2), true), (consolidate, true), (Relocation::Spread, false)]
        {
            let result = refuse_lost(&what, &lost, &placement);
            assert_eq!(result.is_err(), refused, "{what:?}: {result:?}");
        }
        // It was lost, and has left.
        let consolidate = Relocation::Consolidate { stay: false };
        refuse_lost(&consolidate, &lost[1..], &placement).unwrap();
        let offers = [0, 1, 2].map(|slice| (SliceId(slice), Offer::default())).into();
        let capacity = without(Capacity { offers, ..Capacity::default() }, &lost);
        assert_eq!(capacity.offers.into_keys().collect::<Vec<_>>(), [0, 1].map(SliceId));
    }
}
