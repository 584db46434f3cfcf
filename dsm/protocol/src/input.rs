//! What a step of the protocol is given.

use std::ops::Range;
use wire::{Access, Epoch, Gfn, Message, SliceId, VcpuId};

/// Something that happened to this slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A vCPU, or a guard of the VMM, touched a page without the access it needs.
    Fault {
        /// The page.
        gfn: Gfn,
        /// The access it needs: `Read` or `Write`.
        want: Access,
    },
    /// Pages are likely to be touched soon: ask for those that can be had without harm.
    Prefetch {
        /// The first page.
        gfn: Gfn,
        /// How many.
        pages: u16,
        /// The access it will need.
        want: Access,
    },
    /// A message came.
    Message {
        /// The sender.
        from: SliceId,
        /// Its epoch.
        epoch: Epoch,
        /// The message. Its body, if any, is in the store's hands.
        message: Message,
    },
    /// The shell wants to send things through which another slice could learn of this slice's
    /// writes: interrupts, device calls. Each is answered by [`Effect::Released`](crate::Effect::Released),
    /// in order, after one flush for all.
    Release {
        /// The shell's numbers for them.
        tokens: Range<u64>,
    },
    /// Keep the page while the VMM uses it. Answered by [`Effect::Pinned`](crate::Effect::Pinned).
    Pin {
        /// The page.
        gfn: Gfn,
        /// The access needed.
        want: Access,
        /// The shell's number for it.
        token: u64,
    },
    /// The VMM is done with a pinned page.
    Unpin {
        /// The page.
        gfn: Gfn,
    },
    /// A local vCPU was seen with this page-table root.
    Root {
        /// The vCPU.
        vcpu: VcpuId,
        /// Frame of CR3.
        gfn: Gfn,
    },
    /// Time passed: carry out what was deferred.
    Tick,
}
