//! Lines on standard error: the log, and what a process says when it ends.
//!
//! ```text
//!   any thread --never waits--> [Lines: the last 256 KiB] --"log"--> descriptor 2
//! ```
//! A reader that stops, or goes away, must neither stop nor end a VM. So one thread writes, and does nothing else.
//! What cannot be written is lost and counted. How lines look (`form`), whose they are (`owner`) and which are written (`filter`) is
//! settled once, before a role begins.

mod filter;
mod form;
mod owner;

use anyhow::{Context, Result, anyhow};
pub(crate) use form::Form;
use form::Formed;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write, stderr};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;
use tracing::Level;
use tracing_subscriber::fmt::format::JsonFields;

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

/// Each line has this form from now on, also the last one of a panic.
pub(crate) fn choose(form: Form) {
    form.choose();
    if form == Form::Json {
        vmm::crash::write_lines_as(|line| Form::Json.said(Level::ERROR, line));
    }
}

/// From now on what is logged is written, as far as the environment wants it. Lines of a slice name it.
pub(crate) fn begin(is_slice: bool) -> Result<()> {
    if is_slice {
        owner::Owner::be_slice()?;
    }
    let filter = filter::of_environment()?;
    let form = Form::chosen();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| &LINES)
        // It would print them, and panic where that fails.
        .log_internal_errors(false)
        .with_ansi(form == Form::Text && stderr().is_terminal());
    let begun = match form {
        Form::Text => log.event_format(Formed::new(form, stderr().is_terminal())).try_init(),
        Form::Json => {
            log.fmt_fields(JsonFields::new()).event_format(Formed::new(form, false)).try_init()
        }
    };
    begun.map_err(|error| anyhow!(error)).context("begin the log")
}

/// Says a line that is not of the log.
pub(crate) fn say(line: &str) {
    tell(Level::INFO, line);
}

/// Says why something is not done.
pub(crate) fn refuse(line: &str) {
    tell(Level::ERROR, line);
}

fn tell(level: Level, line: &str) {
    LINES.push(Form::chosen().said(level, line).as_bytes());
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
                let text = format!("{lost} lines for standard error were lost");
                let count = Form::chosen().said(Level::WARN, &text);
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
