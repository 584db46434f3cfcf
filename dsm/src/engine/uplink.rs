//! The VMM, from the engine's point of view.

use crate::error::EngineError;
use dsm_protocol::Gfn;
use std::ops::Range;
use transport::Class;
use wire::{SliceId, VcpuId};

/// What the engine tells the VMM. Called on the engine's thread: return at once.
pub trait Uplink: Send {
    /// A frame that is not about coherence came.
    fn frame(&mut self, from: SliceId, class: Class, bytes: &[u8]);
    /// A frame for this vCPU leaves now ([`Handle::send_to_vcpu`](crate::Handle::send_to_vcpu)): to which slice, and what. None:
    /// it was seen to, since the vCPU is here, say. A VMM that sends nothing to vCPUs is never asked.
    fn route(&mut self, _vcpu: VcpuId, _frame: Vec<u8>) -> Option<(SliceId, Vec<u8>)> {
        None
    }
    /// The engine begins to look at what its peers sent, and to speak to them.
    fn looks(&mut self) {}
    /// This slice was there after this time of `CLOCK_BOOTTIME`, in nanoseconds, which is later than was known.
    fn heard(&mut self, _peer: SliceId, _at: u64) {}
    /// The engine has just looked at what its peers sent, spoken to them where it was time to, and goes round
    /// again. None is lost that it has not told of. False: it is to stop.
    fn looked(&mut self) -> bool {
        true
    }
    /// A slice is lost: the VM must stop, unless it was a bystander.
    fn lost(&mut self, peer: SliceId, cause: String);
    /// The engine cannot go on: the VM must stop.
    fn fatal(&mut self, error: EngineError);
    /// Frames have another home, and this slice asks that one from now on.
    fn home_moved(&mut self, _frames: Range<u64>) {}
    /// Some page is hot and unknown: look at the roots of the local vCPUs.
    fn sample_roots(&mut self);
    /// A vCPU waits for this page: let it say where it is, by [`Handle::sampled`](crate::Handle::sampled). `thread` is its
    /// thread, or one of the kernel's that waits in its name. A VMM that cannot ask does nothing.
    fn sample_fault(&mut self, _gfn: Gfn, _thread: u32) {}
}
