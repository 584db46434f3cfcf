//! What the control socket of the slice that coordinates does to the whole VM.

use super::message::{
    AddRequest, AdviceAnswer, Answer, CheckpointAnswer, CheckpointRequest, DoneAnswer, PlanAnswer,
    PlanRequest, Progress, Request, VcpusAnswer,
};
use super::refusal::{Activity, Reason, Refusal};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use wire::{SliceId, VcpuId};

/// Pauses a whole VM and has it go on. Each call says how long it took, or why it was not done.
pub trait PausesVm: fmt::Debug + Send + Sync {
    /// Brings all slices to rest at one moment. They stay so.
    ///
    /// # Errors
    /// They did not come to rest and run on, or are at rest already, or the VM is over.
    fn pause(&self) -> Result<Duration, Refusal>;

    /// Has all slices go on.
    ///
    /// # Errors
    /// The VM is not paused, or over, or a slice does not answer.
    fn resume(&self) -> Result<Duration, Refusal>;
}

/// Which parts of a running VM go where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relocation {
    /// A vCPU and its queues go to a slice.
    Vcpu {
        /// The vCPU.
        vcpu: VcpuId,
        /// The slice.
        to: SliceId,
    },
    /// Everything of a slice goes to others.
    Drain {
        /// The slice.
        slice: SliceId,
        /// It stays, empty, and can be given parts again. Else it leaves, and its process ends.
        stay: bool,
        /// All of it goes to this slice, whatever that offers: whoever says so has seen to it that there is room.
        to: Option<SliceId>,
    },
    /// Everything goes to as few slices as have room.
    Consolidate {
        /// As for a drain.
        stay: bool,
    },
    /// vCPUs go to slices that have fewer.
    Spread,
}

impl Relocation {
    /// Whether slices that are empty then stay.
    #[must_use]
    pub fn stays(&self) -> bool {
        match self {
            Self::Drain { stay, .. } | Self::Consolidate { stay } => *stay,
            Self::Vcpu { .. } | Self::Spread => true,
        }
    }
}

/// Has parts of a running VM go to other slices.
pub trait Relocates: fmt::Debug + Send + Sync {
    /// Has them go, and waits for it. `tell` hears of each part before it goes. Says how long it took, or why it was not
    /// done.
    ///
    /// # Errors
    /// There is no such part or no room, or something else goes on: nothing was done. Or a part could not go: those before
    /// it have gone, and it is where it was.
    fn relocate(
        &self,
        what: &Relocation,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Duration, Refusal>;

    /// Has a companion join as one slice more, and take vCPUs unless it is to be empty. Otherwise as [`Self::relocate`].
    ///
    /// # Errors
    /// It has not joined, and the VM runs as before; or it has, and a vCPU could not go there.
    fn add(
        &self,
        request: &AddRequest,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Duration, Refusal>;

    /// What [`Self::relocate`] would do now, a line for each step.
    ///
    /// # Errors
    /// It would do nothing, and say why.
    fn plan(&self, what: &Relocation) -> Result<Vec<String>, Refusal>;

    /// Where groups of vCPUs would be better placed, a line for each proposal, from what is counted for so many seconds.
    ///
    /// # Errors
    /// Why nothing can be said.
    fn advise(&self, seconds: u64, tell: &mut dyn FnMut(Progress)) -> Result<Vec<String>, Refusal>;
}

/// Has a guest get and give back vCPUs. Each call says which it has then, or why that is not what was wished.
pub trait PlugsVcpus: fmt::Debug + Send + Sync {
    /// Which it has.
    ///
    /// # Errors
    /// None can come or go, or the VM is over.
    fn vcpus(&self) -> Result<VcpusAnswer, Refusal>;

    /// Asks the guest for so many, and waits for its answers. `tell` hears of each vCPU before it is asked about.
    ///
    /// # Errors
    /// None can come or go, or not so many, or something else goes on: nothing was done. Or the guest refuses, or does not
    /// answer: what it was asked before is done.
    fn set_vcpus(&self, count: u32, tell: &mut dyn FnMut(Progress))
    -> Result<VcpusAnswer, Refusal>;
}

/// Has checkpoints of a VM written.
pub trait WritesCheckpoints: fmt::Debug + Send + Sync {
    /// Has one written, and waits for it. `tell` hears how far it has come. The guest stands still meanwhile, and goes on
    /// then, or the VM ends.
    ///
    /// # Errors
    /// There is none, and the VM runs as before.
    fn checkpoint(
        &self,
        request: &CheckpointRequest,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<CheckpointAnswer, Refusal>;
}

/// Knows what is done to a VM, and ends it.
pub trait OverseesVm: fmt::Debug + Send + Sync {
    /// What is done to it now. It never waits.
    fn activity(&self) -> Option<Activity>;

    /// Presses the guest's power button once.
    ///
    /// # Errors
    /// The guest does not listen to it, or is at rest, or the VM is over.
    fn power_button(&self) -> Result<(), Refusal>;

    /// Asks for the end: with the guest, which has its time for it, or at once by `force`. It does not wait for it.
    ///
    /// # Errors
    /// The VM is over.
    fn stop(&self, force: bool) -> Result<(), Refusal>;
}

/// What can be done to a VM.
#[derive(Clone, Debug)]
pub struct VmHandles {
    /// Pauses it.
    pub pauses: Arc<dyn PausesVm>,
    /// Moves its parts.
    pub relocates: Arc<dyn Relocates>,
    /// Gives it vCPUs.
    pub plugs: Arc<dyn PlugsVcpus>,
    /// Writes it down.
    pub checkpoints: Arc<dyn WritesCheckpoints>,
    /// Knows what is done to it, and ends it.
    pub oversees: Arc<dyn OverseesVm>,
}

impl From<PlanRequest> for Relocation {
    fn from(request: PlanRequest) -> Self {
        match request {
            PlanRequest::MoveVcpu(request) => {
                Self::Vcpu { vcpu: VcpuId(request.vcpu), to: SliceId(request.slice) }
            }
            PlanRequest::Drain(request) => {
                let to = request.to.map(SliceId);
                Self::Drain { slice: SliceId(request.slice), stay: request.stay, to }
            }
            PlanRequest::Consolidate(request) => Self::Consolidate { stay: request.stay },
            PlanRequest::Spread(_) => Self::Spread,
        }
    }
}

impl VmHandles {
    /// Does what is asked of the whole VM; `tell` hears how far it has come.
    pub(super) fn answer(&self, request: &Request, tell: &mut dyn FnMut(Progress)) -> Answer {
        let refused = Answer::Refused;
        let relocate = |what: PlanRequest, tell: &mut dyn FnMut(Progress)| {
            done(self.relocates.relocate(&what.into(), tell))
        };
        match request {
            Request::Pause(_) => done(self.pauses.pause()),
            Request::Resume(_) => done(self.pauses.resume()),
            Request::MoveVcpu(request) => relocate(PlanRequest::MoveVcpu(*request), tell),
            Request::Drain(request) => relocate(PlanRequest::Drain(*request), tell),
            Request::Consolidate(request) => relocate(PlanRequest::Consolidate(*request), tell),
            Request::Spread(request) => relocate(PlanRequest::Spread(*request), tell),
            Request::Plan(request) => {
                let steps = self.relocates.plan(&(*request).into());
                steps.map_or_else(refused, |steps| Answer::Plan(PlanAnswer { steps }))
            }
            Request::Add(request) => done(self.relocates.add(request, tell)),
            Request::Advise(request) => {
                let advice = self.relocates.advise(request.seconds, tell);
                advice.map_or_else(refused, |proposals| Answer::Advice(AdviceAnswer { proposals }))
            }
            Request::Vcpus(request) => {
                let plugs = &self.plugs;
                let set = |count| plugs.set_vcpus(count, tell);
                request.count.map_or_else(|| plugs.vcpus(), set).map_or_else(refused, Answer::Vcpus)
            }
            Request::Checkpoint(request) => {
                let written = self.checkpoints.checkpoint(request, tell);
                written.map_or_else(refused, Answer::Checkpoint)
            }
            Request::PowerButton(_) => done(self.oversees.power_button().map(|()| Duration::ZERO)),
            Request::Stop(request) => {
                done(self.oversees.stop(request.force).map(|()| Duration::ZERO))
            }
            Request::Trace(_)
            | Request::Report(_)
            | Request::ForgetDevicePages(_)
            | Request::Tune(_)
            | Request::Placement(_) => {
                refused(Refusal::new(Reason::Malformed, "each slice is asked for itself"))
            }
        }
    }
}

fn done(result: Result<Duration, Refusal>) -> Answer {
    match result {
        Ok(took) => Answer::Done(DoneAnswer { milliseconds: took.as_secs_f64() * 1e3 }),
        Err(refusal) => Answer::Refused(refusal),
    }
}
