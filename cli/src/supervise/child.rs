//! The process of a slice: started by the main thread, watched by another.
//!
//! ```text
//!   main ── spawn ──> child ──> Halted, Goes on, Ended ──"child"──> main
//!     └── signals, by a descriptor of the process: its number may be somebody else's by then
//! ```

use crate::log::Form;
use crate::signals::BY_SUPERVISOR;
use crate::words::FORM;
use anyhow::{Context, Result};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_open, pidfd_send_signal,
    waitid,
};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Something stops it from outside, or has it go on.
    Halted(bool),
    /// It has ended.
    Ended(Exit),
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    Status(u8),
    Signal(i32),
}

impl Exit {
    /// Exit status of whoever stands for it.
    pub(super) fn status(self) -> u8 {
        match self {
            Self::Status(status) => status,
            Self::Signal(signal) => {
                u8::try_from(signal).map_or(u8::MAX, |number| 128 + (number & 127))
            }
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status {status}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// A process that runs, or has ended.
#[derive(Debug)]
pub(super) struct Child(OwnedFd);

impl Child {
    /// Starts this program with other words. It ends with the thread that calls this, which is the main thread: the kernel
    /// counts that as the end of the supervisor. It is in a process group of its own, so that a terminal's ctrl-c asks only the
    /// supervisor, and it has no input.
    pub(super) fn start(
        words: &[OsString],
        mut tell: impl FnMut(News) + Send + 'static,
    ) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("tessera")
            .args(words)
            .arg("--supervised-by")
            .arg(std::process::id().to_string())
            .env(FORM, Form::chosen().word());
        let child = command.process_group(0).stdin(Stdio::null()).spawn();
        let child = child.context("start a process for the slice")?;
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let id = id.context("the process of the slice has no number")?;
        let process =
            pidfd_open(id, PidfdFlags::empty()).context("watch the process of the slice")?;
        let watch = move || {
            let events = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED;
            loop {
                match waitid(WaitId::Pid(id), events) {
                    Ok(Some(status)) => {
                        let news = news(&status);
                        tell(news);
                        if matches!(news, News::Ended(_)) {
                            return;
                        }
                    }
                    Ok(None) | Err(Errno::INTR) => {}
                    // Nobody else waits for it.
                    Err(_) => return tell(News::Ended(Exit::Status(u8::MAX))),
                }
            }
        };
        let thread = thread::Builder::new().name("child".into()).spawn(watch);
        thread.context("watch the process of the slice")?;
        Ok(Self(process))
    }

    /// Asks it to stop. By a signal of the supervisor's own: whoever signals this process as well asks once.
    pub(super) fn ask_to_stop(&self) {
        self.signal(BY_SUPERVISOR);
    }

    /// Sends a signal. One that has ended needs none.
    pub(super) fn signal(&self, signal: Signal) {
        // It fails for one that has ended.
        let _ = pidfd_send_signal(&self.0, signal);
    }
}

fn news(status: &WaitIdStatus) -> News {
    if status.stopped() || status.continued() {
        return News::Halted(status.stopped());
    }
    News::Ended(match status.terminating_signal() {
        Some(signal) => Exit::Signal(signal),
        None => Exit::Status(
            status.exit_status().and_then(|status| u8::try_from(status).ok()).unwrap_or(u8::MAX),
        ),
    })
}
