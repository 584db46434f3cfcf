//! Why the engine cannot start or go on.

use crate::kernel::UffdError;
use crate::memory::{LoadError, ShareError};
use dsm_protocol::{Gfn, ProtocolError};
use migrate::Invalid;
use std::io::Error;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use transport::SendError;
use wire::{DecodeError, SliceId};

/// Why the engine cannot start or go on.
#[derive(Debug, Error)]
pub enum EngineError {
    /// userfaultfd failed.
    #[error("use userfaultfd for guest memory")]
    Uffd(#[from] UffdError),
    /// The home table names frames without memory.
    #[error("the home table and guest memory do not fit each other")]
    Layout,
    /// The saved node is not of this engine, contradicts itself, or memory is not what was saved.
    #[error("go on from a saved node of the memory engine")]
    Restore(#[from] Invalid),
    /// A chunk could not be shared.
    #[error("share a chunk of memory")]
    Share(#[from] ShareError),
    /// Memory does not come from where it is kept.
    #[error("load guest memory")]
    Load(#[source] Arc<LoadError>),
    /// A page could not be mapped.
    #[error("map {gfn}: the kernel refused it repeatedly")]
    CannotMap {
        /// The page.
        gfn: Gfn,
    },
    /// A page could not be taken from the guest.
    #[error("take {gfn} from the guest")]
    Zap {
        /// The page.
        gfn: Gfn,
        /// The cause.
        #[source]
        source: Error,
    },
    /// Pages that came could not be kept.
    #[error("write pages that came into the memory file")]
    Fill(#[source] Error),
    /// The access of the guest mapping could not be changed.
    #[error("change what KVM may do with {gfn}")]
    Access {
        /// The page.
        gfn: Gfn,
        /// The cause.
        #[source]
        source: Error,
    },
    /// A system call of the loop failed.
    #[error("wait for faults, frames and commands")]
    Wait(#[source] Error),
    /// A thread or descriptor could not be made.
    #[error("start the memory engine")]
    Start(#[source] Error),
    /// A peer sent bytes that are no message.
    #[error("{from} sent a frame that is no coherence message")]
    Garbage {
        /// The peer.
        from: SliceId,
        /// What was wrong.
        #[source]
        source: DecodeError,
    },
    /// A peer sent a message among the runs that must keep its order to others.
    #[error("{from} sent a message in the stream of runs that belongs to that of coherence")]
    OutOfOrder {
        /// The peer.
        from: SliceId,
    },
    /// A step of the protocol is lost: the VM would hang.
    #[error("{what} for {waited:.1?}, {whereabouts}")]
    Overdue {
        /// What is waited for.
        what: String,
        /// For how long.
        waited: Duration,
        /// Home and holder of the page.
        whereabouts: String,
    },
    /// A peer says that it wrote a page into memory that was not exposed to it.
    #[error("{from} says that it wrote a page into this slice's memory, which it cannot reach")]
    NotExposed {
        /// The peer.
        from: SliceId,
    },
    /// A peer broke the protocol.
    #[error("the coherence protocol was broken")]
    Protocol(#[from] ProtocolError),
    /// A peer takes no frames any more.
    #[error("{to} takes no frames: {reason}")]
    Stuck {
        /// The peer.
        to: SliceId,
        /// Why.
        reason: SendError,
    },
}
