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
    /// A page that can be read here is likely to be written soon: ask for it. It is kept when it comes, as for a vCPU.
    UpgradeAhead {
        /// The page.
        gfn: Gfn,
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
    /// The placement gives pages another home. The home they have carries it out, and [`Effect::HomeMoved`] tells when
    /// this slice asks the next one. Only one slice gives this input, and not before the last move is over here.
    ///
    /// [`Effect::HomeMoved`]: crate::Effect::HomeMoved
    MoveHome {
        /// The first page.
        gfn: Gfn,
        /// How many, all of one chunk and with one home.
        pages: u16,
        /// Their next home.
        to: SliceId,
        /// The epoch of that placement.
        placement: Epoch,
    },
    /// Bring the pages here that another slice has, where this slice is their home.
    Pull {
        /// The first page.
        gfn: Gfn,
        /// How many.
        pages: u16,
        /// Who has them.
        from: SliceId,
    },
    /// Time passed: carry out what was deferred.
    Tick,
}
