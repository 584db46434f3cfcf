//! The descriptor that wakes the engine for commands.

use std::io::Error;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use vmm_sys_util::eventfd::EventFd;

/// Wakes the engine for commands, by one system call however many come before it looks.
#[derive(Debug)]
pub(crate) struct Bell {
    event: EventFd,
    /// It was rung, and the engine has not looked since.
    rung: AtomicBool,
    /// The engine has ended.
    over: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> Result<Self, Error> {
        let event = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        Ok(Self { event, rung: AtomicBool::new(false), over: AtomicBool::new(false) })
    }

    /// The engine has ended.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// How often it was rung since this was asked last, if at all.
    #[cfg(test)]
    pub(super) fn take_rings(&self) -> Option<u64> {
        self.event.read().ok()
    }

    /// It was rung, and the engine has not looked since.
    #[cfg(test)]
    pub(super) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    /// Called after a command was put into the channel.
    pub(super) fn ring(&self) {
        // Who finds it rung knows that the engine is still to look, and then sees the command.
        if !self.rung.swap(true, Ordering::AcqRel) {
            // A full counter already wakes the engine.
            let _ = self.event.write(1);
        }
    }

    /// The engine is about to empty the channel.
    pub(crate) fn silence(&self) {
        let _ = self.event.read();
        self.rung.swap(false, Ordering::AcqRel);
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}
