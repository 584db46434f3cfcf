//! Lines on standard error: the log, and what a process says when it ends.
//!
//! ```text
//!   any thread --never waits--> [Lines: the last 256 KiB] --"log"--> descriptor 2
//! ```
//! A reader that stops, or goes away, must neither stop nor end a VM. So one thread writes, and does nothing else.
//! What cannot be written is lost and counted.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Most bytes that wait.
const LINES_BYTES: usize = 256 << 10;
/// How long the end of the process waits for lines that are on their way.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

static LINES: Lines = Lines::new();

/// Starts the thread that writes.
pub(crate) fn start() -> io::Result<()> {
    let work = || LINES.carry(Descriptor(rustix::stdio::stderr()));
    Builder::new().name("log".into()).spawn(work).map(drop)
}

/// Where the log goes. Each write is a line.
pub(crate) fn writer() -> impl Write {
    &LINES
}

/// Says a line that is not of the log.
pub(crate) fn say(line: &str) {
    LINES.push(format!("tessera: {line}\n").as_bytes());
}

/// The process is about to end: gives what was said a limited time to get there.
pub(crate) fn finish() {
    LINES.finish(FINISH_LIMIT);
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Box<[u8]>>,
    /// All of those.
    bytes: usize,
    /// Lines that were dropped to make room, and not yet told.
    lost: u64,
    /// The line that was taken last is not there yet.
    taken: bool,
}

/// Lines that wait to be written. The oldest goes when there is no room.
#[derive(Debug)]
struct Lines {
    state: Mutex<State>,
    changed: Condvar,
}

impl Lines {
    const fn new() -> Self {
        let state = State { waiting: VecDeque::new(), bytes: 0, lost: 0, taken: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line. Nobody writes while the lock is held, so this does not wait.
    fn push(&self, line: &[u8]) {
        let line: Box<[u8]> = Box::from(line);
        let mut state = self.lock();
        state.bytes += line.len();
        state.waiting.push_back(line);
        while state.bytes > LINES_BYTES
            && let Some(oldest) = state.waiting.pop_front()
        {
            state.bytes -= oldest.len();
            state.lost += 1;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for a line; with it comes how many before it were lost. The one that was taken before is done with.
    fn take(&self) -> (Box<[u8]>, u64) {
        let mut state = self.lock();
        state.taken = false;
        self.changed.notify_all();
        loop {
            if let Some(line) = state.waiting.pop_front() {
                state.bytes -= line.len();
                state.taken = true;
                return (line, std::mem::take(&mut state.lost));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes for ever. Where one line could not be written, the next one may: a disk has room again, a pipe has
    /// a new reader.
    fn carry(&self, mut to: impl Write) {
        let mut lost = 0;
        loop {
            let (line, dropped) = self.take();
            lost += dropped;
            if lost > 0 {
                let count = format!("tessera: {lost} lines for standard error were lost\n");
                if to.write_all(count.as_bytes()).is_ok() {
                    lost = 0;
                }
            }
            if to.write_all(&line).is_err() {
                lost += 1;
            }
        }
    }

    /// Waits until all lines are written or given up, at most so long.
    fn finish(&self, limit: Duration) {
        let in_flight = |state: &mut State| state.taken || !state.waiting.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), limit, in_flight));
    }
}

impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes past the lock of standard error, which would be held as long as the reader stops.
#[derive(Debug)]
struct Descriptor<D>(D);

impl<D: AsFd> Write for Descriptor<D> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(&self.0, bytes) {
                // Others who have the same terminal or pipe may have set this.
                Err(Errno::AGAIN) => {
                    poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None)?;
                }
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
