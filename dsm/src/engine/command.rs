//! Commands of the VMM to the engine, and the queues that they wait in.

use super::homes::{HomeMove, Pull};
use super::join::JoinError;
use super::leave::LeaveError;
use super::rest::RestError;
use super::snapshot_error::SnapshotError;
use super::waker::Waker;
use crate::observe::{Report, Site, TraceReport, Tracing};
use crate::snapshot::SnapshotReader;
use crossbeam_channel::Sender;
use dsm_protocol::HoldPolicy;
use dsm_protocol::saved::{Channel, Here, NodeState};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;
use thiserror::Error;
use transport::{Class, PeerLink};
use wire::{Gfn, SliceId, VcpuId};

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// To this slice.
    Slice(SliceId),
    /// To the slice that has this vCPU when the frame leaves.
    SliceOf(VcpuId),
}

/// A frame that leaves once every table write of this slice is visible everywhere.
#[derive(Debug)]
pub(crate) struct Release {
    pub(super) to: Receiver,
    pub(super) class: Class,
    pub(super) frame: Vec<u8>,
}

/// What the VMM wants of the engine.
#[derive(Debug)]
pub(crate) enum Command {
    /// Send a frame once every table write of this slice is visible everywhere.
    Send(Release),
    /// Copy between guest memory and a buffer, page by page, through the protocol.
    Copy { address: u64, bytes: Vec<u8>, write: bool, reply: Sender<Result<Vec<u8>, CopyError>> },
    /// A local vCPU was seen with this root.
    Root { vcpu: VcpuId, gfn: Gfn },
    /// KVM refused a vCPU a store.
    Refused { reply: Sender<()> },
    /// A thread of the VMM was refused a store to this page.
    Wanted { gfn: Gfn, reply: Sender<()> },
    /// Tell the counters.
    Report { reply: Sender<Report> },
    /// Forget which pages devices used.
    ForgetDevicePages { only: Option<u16> },
    /// Change what may be changed while the engine runs.
    Tune { tuning: Tuning },
    /// Tell the trace.
    Trace { reply: Sender<TraceReport> },
    /// Switch the trace.
    SetTrace { tracing: Tracing },
    /// A vCPU was seen waiting for a page.
    Sampled { gfn: Gfn, site: Site },
    /// Come to rest.
    Rest { limit: Duration, reply: Sender<Result<(), RestError>> },
    /// Count messages.
    Count { reply: Sender<Result<Vec<Channel>, RestError>> },
    /// Save the node.
    Save { reply: Sender<Result<NodeState, RestError>> },
    /// Rest no longer.
    GoOn,
    /// Have homes of frames move.
    MoveHome(HomeMove),
    /// Bring pages to this slice, their home.
    PullHome(Pull),
    /// Say whether a slice may leave.
    MayPartWith { slice: SliceId, reply: Sender<Result<(), LeaveError>> },
    /// A slice leaves.
    PartWith { slice: SliceId, reply: Sender<Result<(), LeaveError>> },
    /// Take one peer more into the transport.
    AddPeer { link: PeerLink, reply: Sender<Result<(), JoinError>> },
    /// Take one that has not joined out of it.
    RemovePeer { slice: SliceId, reply: Sender<()> },
    /// Say whether a slice may join.
    MayJoinWith { slice: SliceId, reply: Sender<Result<NodeState, JoinError>> },
    /// A slice joins.
    JoinWith { slice: SliceId, reply: Sender<Result<NodeState, JoinError>> },
    /// Protect all memory, while the guest runs.
    Protect { reply: Sender<Result<(), SnapshotError>> },
    /// Freeze what this slice has, at rest.
    Freeze { here: Here, reply: Sender<Result<SnapshotReader, SnapshotError>> },
    /// Protect nothing any more.
    Unprotect,
    /// Log what is waited for.
    LogState,
    /// End.
    Stop,
}

/// What may be changed while an engine runs; what is not given stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Parameters of the hold window.
    pub hold: Option<HoldPolicy>,
    /// Whether correlated pages are asked for together.
    pub correlation_prefetch: Option<bool>,
}

/// Why a copy to or from guest memory failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CopyError {
    /// Part of the range has no memory.
    #[error("guest memory has no page at {0:#x}")]
    NoMemory(u64),
    /// The engine has stopped, or did not answer in time.
    #[error("the memory engine does not answer")]
    NoAnswer,
}

/// The engine's end of the channel. A channel keeps queued commands, and their reply channels, while any sender
/// lives, so callers would wait until their own limit. The engine drops queued commands when it ends. Later ones are
/// dropped by their sender ([`Handle::post`](super::handle::Handle::post)).
#[derive(Debug)]
pub(crate) struct Commands {
    pub(super) receiver: crossbeam_channel::Receiver<Command>,
    pub(super) waker: Arc<Waker>,
}

impl Commands {
    /// The oldest.
    pub(crate) fn pop(&self) -> Option<Command> {
        self.receiver.try_recv().ok()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.receiver.len()
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.waker.end();
        self.receiver.try_iter().for_each(drop);
    }
}

/// Commands of the engine's own thread, which calls the VMM and may be called back: it would wait for itself
/// if it waited for room among the others. It looks here each time around, so that only as many wait as the
/// frames of one look cause.
#[derive(Debug, Default)]
pub(crate) struct OwnCommands {
    thread: OnceLock<ThreadId>,
    waiting: Mutex<VecDeque<Command>>,
}

impl OwnCommands {
    /// This thread is the engine's.
    pub(crate) fn claim(&self) {
        let _ = self.thread.set(thread::current().id());
    }

    pub(super) fn is_here(&self) -> bool {
        self.thread.get().is_some_and(|engine| *engine == thread::current().id())
    }

    pub(super) fn push(&self, command: Command) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
    }

    /// The oldest.
    pub(crate) fn pop(&self) -> Option<Command> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}
