//! How the rest of the VMM talks to the engine.

use crate::report::Report;
use crate::trace::{Site, TraceReport, Tracing};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use transport::Class;
use vmm_sys_util::eventfd::EventFd;
use wire::{Gfn, SliceId, VcpuId};

/// Commands that may wait for the engine. A sender beyond that blocks until the engine has room.
const COMMANDS_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) enum Command {
    /// Send a frame once every table write of this slice is visible everywhere.
    Send {
        to: SliceId,
        class: Class,
        frame: Vec<u8>,
    },
    /// Copy between guest memory and a buffer, page by page, through the protocol.
    Copy {
        address: u64,
        bytes: Vec<u8>,
        write: bool,
        reply: Sender<Result<Vec<u8>, CopyError>>,
    },
    /// A local vCPU was seen with this root.
    Root {
        vcpu: VcpuId,
        gfn: Gfn,
    },
    /// Tell the counters.
    Refused {
        reply: Sender<()>,
    },
    /// A thread of the VMM was refused a store to this page.
    Wanted {
        gfn: Gfn,
        reply: Sender<()>,
    },
    Report {
        reply: Sender<Report>,
    },
    /// Tell the trace.
    Trace {
        reply: Sender<TraceReport>,
    },
    /// Switch the trace.
    SetTrace {
        tracing: Tracing,
    },
    /// A vCPU was seen waiting for a page.
    Sampled {
        gfn: Gfn,
        site: Site,
    },
    /// Log what is waited for.
    LogState,
    /// End.
    Stop,
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

/// A way to reach the engine from any thread.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: Sender<Command>,
    bell: Arc<EventFd>,
}

impl Handle {
    pub(crate) fn pair() -> Result<(Self, Receiver<Command>, Arc<EventFd>), std::io::Error> {
        let bell = Arc::new(EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?);
        let (commands, receiver) = bounded(COMMANDS_MAX);
        Ok((Self { commands, bell: Arc::clone(&bell) }, receiver, bell))
    }

    fn post(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        // A full counter already wakes the engine.
        let _ = self.bell.write(1);
        sent
    }

    /// Sends a frame to another slice after this slice's page-table writes are visible there. False
    /// when the engine has stopped.
    #[must_use]
    pub fn send(&self, to: SliceId, class: Class, frame: Vec<u8>) -> bool {
        self.post(Command::Send { to, class, frame })
    }

    /// Tells the engine the page-table root of a local vCPU (frame of CR3).
    pub fn set_root(&self, vcpu: VcpuId, gfn: Gfn) {
        self.post(Command::Root { vcpu, gfn });
    }

    /// Writes guest memory coherently.
    ///
    /// # Errors
    /// A range without memory, or an engine that does not answer within `limit`.
    pub fn write(&self, address: u64, bytes: Vec<u8>, limit: Duration) -> Result<(), CopyError> {
        self.copy(address, bytes, true, limit).map(drop)
    }

    /// Reads guest memory coherently.
    ///
    /// # Errors
    /// A range without memory, or an engine that does not answer within `limit`.
    pub fn read(&self, address: u64, len: usize, limit: Duration) -> Result<Vec<u8>, CopyError> {
        self.copy(address, vec![0; len], false, limit)
    }

    fn copy(
        &self,
        address: u64,
        bytes: Vec<u8>,
        write: bool,
        limit: Duration,
    ) -> Result<Vec<u8>, CopyError> {
        let (reply, answer) = bounded(1);
        self.post(Command::Copy { address, bytes, write, reply });
        answer.recv_timeout(limit).unwrap_or(Err(CopyError::NoAnswer))
    }

    /// KVM refused a vCPU access to guest memory (`EFAULT`). True when the engine has seen to it
    /// within `limit` and the vCPU may try again.
    #[must_use]
    pub fn refused(&self, limit: Duration) -> bool {
        let (reply, answer) = bounded(1);
        self.post(Command::Refused { reply });
        answer.recv_timeout(limit).is_ok()
    }

    /// A thread of the VMM stores to guest memory, and the mapping refuses it: the engine is asking a
    /// vCPU about that page. True when the page is on its way within `limit` and the thread may try
    /// again.
    #[must_use]
    pub fn wanted(&self, gfn: Gfn, limit: Duration) -> bool {
        let (reply, answer) = bounded(1);
        self.post(Command::Wanted { gfn, reply });
        answer.recv_timeout(limit).is_ok()
    }

    /// The counters, if the engine answers within `limit`.
    #[must_use]
    pub fn report(&self, limit: Duration) -> Option<Report> {
        let (reply, answer) = bounded(1);
        self.post(Command::Report { reply });
        answer.recv_timeout(limit).ok()
    }

    /// What is known of each page, if the engine answers within `limit`. Takes the engine about a
    /// millisecond: not for every fault.
    #[must_use]
    pub fn trace(&self, limit: Duration) -> Option<TraceReport> {
        let (reply, answer) = bounded(1);
        self.post(Command::Trace { reply });
        answer.recv_timeout(limit).ok()
    }

    /// Switches the trace of messages and the sampling of vCPUs; faults are always counted.
    pub fn set_trace(&self, tracing: Tracing) {
        self.post(Command::SetTrace { tracing });
    }

    /// Answers [`crate::Uplink::sample_fault`]: this is where the guest waits for the page. Never waits
    /// for the engine; when that has too much to do the sample is dropped.
    pub fn sampled(&self, gfn: Gfn, site: Site) {
        if self.commands.try_send(Command::Sampled { gfn, site }).is_ok() {
            let _ = self.bell.write(1);
        }
    }

    /// Asks the engine to log what it waits for.
    pub fn log_state(&self) {
        self.post(Command::LogState);
    }

    /// Asks the engine to end.
    pub fn stop(&self) {
        self.post(Command::Stop);
    }
}
