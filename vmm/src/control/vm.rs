//! What the control socket of the slice that coordinates does to the whole VM.

use super::message::{
    AddRequest, AdviceAnswer, Answer, CheckpointAnswer, CheckpointRequest, DoneAnswer, Progress,
    Request, VcpusAnswer,
};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use wire::{SliceId, VcpuId};

/// Pauses a whole VM and has it go on. Each call says how long it took, or why it was not done.
pub trait PausesVm: fmt::Debug + Send + Sync {
    /// Brings all slices to rest at one moment. They stay so.
    ///
    /// # Errors
    /// They did not come to rest and run on, or are at rest already, or the VM is over.
    fn pause(&self) -> Result<Duration, String>;

    /// Has all slices go on.
    ///
    /// # Errors
    /// The VM is not paused, or over, or a slice does not answer.
    fn resume(&self) -> Result<Duration, String>;
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
    ) -> Result<Duration, String>;

    /// Has the companion that listens there join as one slice more, and take vCPUs unless it is to be empty. Otherwise as
    /// [`Self::relocate`].
    ///
    /// # Errors
    /// It has not joined, and the VM runs as before; or it has, and a vCPU could not go there.
    fn add(
        &self,
        address: SocketAddr,
        empty: bool,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Duration, String>;

    /// Where groups of vCPUs would be better placed, a line for each proposal, from what is counted for so many seconds.
    ///
    /// # Errors
    /// Why nothing can be said.
    fn advise(&self, seconds: u64, tell: &mut dyn FnMut(Progress)) -> Result<Vec<String>, String>;
}

/// Has a guest get and give back vCPUs. Each call says which it has then, or why that is not what was wished.
pub trait PlugsVcpus: fmt::Debug + Send + Sync {
    /// Which it has.
    ///
    /// # Errors
    /// None can come or go, or the VM is over.
    fn vcpus(&self) -> Result<VcpusAnswer, String>;

    /// Asks the guest for so many, and waits for its answers. `tell` hears of each vCPU before it is asked about.
    ///
    /// # Errors
    /// None can come or go, or not so many, or something else goes on: nothing was done. Or the guest refuses, or does not
    /// answer: what it was asked before is done.
    fn set_vcpus(&self, count: u32, tell: &mut dyn FnMut(Progress)) -> Result<VcpusAnswer, String>;
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
    ) -> Result<CheckpointAnswer, String>;
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
}

impl VmHandles {
    /// Does what is asked of the whole VM; `tell` hears how far it has come.
    pub(super) fn answer(&self, request: &Request, tell: &mut dyn FnMut(Progress)) -> Answer {
        if let Request::Advise(request) = request {
            let advice = self.relocates.advise(request.seconds, tell);
            return advice.map_or_else(Answer::Refused, |proposals| {
                Answer::Advice(AdviceAnswer { proposals })
            });
        }
        if let Request::Vcpus(request) = request {
            let plugs = &self.plugs;
            let vcpus = request.count.map_or_else(|| plugs.vcpus(), |n| plugs.set_vcpus(n, tell));
            return vcpus.map_or_else(Answer::Refused, Answer::Vcpus);
        }
        if let Request::Checkpoint(request) = request {
            let written = self.checkpoints.checkpoint(request, tell);
            return written.map_or_else(Answer::Refused, Answer::Checkpoint);
        }
        let mut relocate = |what| self.relocates.relocate(&what, tell);
        let result = match request {
            Request::Pause(_) => self.pauses.pause(),
            Request::Resume(_) => self.pauses.resume(),
            Request::MoveVcpu(request) => {
                let (vcpu, to) = (VcpuId(request.vcpu), SliceId(request.slice));
                relocate(Relocation::Vcpu { vcpu, to })
            }
            Request::Drain(request) => {
                let (slice, stay) = (SliceId(request.slice), request.stay);
                relocate(Relocation::Drain { slice, stay })
            }
            Request::Consolidate(request) => {
                relocate(Relocation::Consolidate { stay: request.stay })
            }
            Request::Spread(_) => relocate(Relocation::Spread),
            Request::Add(AddRequest { address, empty }) => {
                self.relocates.add(*address, *empty, tell)
            }
            Request::Advise(_)
            | Request::Vcpus(_)
            | Request::Checkpoint(_)
            | Request::Trace(_)
            | Request::Report(_)
            | Request::ForgetDevicePages(_)
            | Request::Tune(_)
            | Request::Placement(_) => Err("each slice is asked for itself".into()),
        };
        match result {
            Ok(took) => Answer::Done(DoneAnswer { milliseconds: took.as_secs_f64() * 1e3 }),
            Err(why) => Answer::Refused(why),
        }
    }
}
