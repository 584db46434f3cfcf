//! The descriptor that wakes the engine for commands.

use std::io::Error;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use vmm_sys_util::eventfd::EventFd;

/// Wakes the engine for commands, by one system call however many come before it looks.
#[derive(Debug)]
pub(crate) struct Waker {
    event: EventFd,
    /// It has woken the engine, which has not looked since.
    pending: AtomicBool,
    /// The engine has ended.
    over: AtomicBool,
}

impl Waker {
    pub(super) fn new() -> Result<Self, Error> {
        let event = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        Ok(Self { event, pending: AtomicBool::new(false), over: AtomicBool::new(false) })
    }

    /// The engine has ended.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// How often it woke the engine since the last call, if at all.
    #[cfg(test)]
    pub(super) fn take_wakes(&self) -> Option<u64> {
        self.event.read().ok()
    }

    /// It has woken the engine, which has not looked since.
    #[cfg(test)]
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Called after a command was put into the channel.
    pub(super) fn wake(&self) {
        // Who finds it pending knows that the engine is still to look, and then sees the command.
        if !self.pending.swap(true, Ordering::AcqRel) {
            // A full counter already wakes the engine.
            let _ = self.event.write(1);
        }
    }

    /// The engine is about to empty the channel.
    pub(crate) fn clear(&self) {
        let _ = self.event.read();
        self.pending.swap(false, Ordering::AcqRel);
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}
