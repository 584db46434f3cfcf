//! Work in another process, which ends with this one.
#![expect(unsafe_code, reason = "fork, signals, and the end of a child with its parent")]
// UNSAFETY: the process has one thread when it forks; signals go to children that are not waited for yet.

use crate::cluster;
use anyhow::{Context, Result, bail};
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(2);

/// The process; killed when this is dropped.
#[derive(Debug)]
pub struct Child {
    process: libc::pid_t,
    has_ended: bool,
}

impl Child {
    /// Starts it. This process must have no other thread. The work says with which code the process ends.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn fork(work: impl FnOnce() -> u8) -> Result<Self> {
        cluster::alone()?;
        // SAFETY: this process has one thread, so the child may do what it likes.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).context("fork"),
            0 => {
                // SAFETY: plain arguments; the child ends when its parent does.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let code = work();
                // SAFETY: ends the child without what its parent would do at its end.
                unsafe { libc::_exit(code.into()) }
            }
            process => Ok(Self { process, has_ended: false }),
        }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> libc::pid_t {
        self.process
    }

    /// All its threads stop.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// They go on.
    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, number: libc::c_int) {
        if !self.has_ended {
            // SAFETY: a child of this process that nobody has waited for, so its number is its own.
            unsafe { libc::kill(self.process, number) };
        }
    }

    /// Waits for its end; its code.
    ///
    /// # Errors
    /// It does not end in that time, or by a signal.
    pub fn wait(&mut self, limit: Duration) -> Result<u8> {
        let (end, mut status) = (Instant::now() + limit, 0);
        loop {
            // SAFETY: a child of this process, and a place for its status.
            match unsafe { libc::waitpid(self.process, &raw mut status, libc::WNOHANG) } {
                0 if Instant::now() < end => sleep(LOOK),
                0 => bail!("process {} does not end within {limit:?}", self.process),
                -1 => return Err(io::Error::last_os_error()).context("wait for a process"),
                _ => break,
            }
        }
        self.has_ended = true;
        let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        let code = code.and_then(|code| u8::try_from(code).ok());
        code.with_context(|| format!("process {} has ended by a signal", self.process))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.has_ended {
            self.signal(libc::SIGKILL);
            // SAFETY: as above; no status wanted.
            unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
        }
    }
}
