//! A companion that waits again after each VM.
//!
//! ```text
//!   child waits, serves a VM, ends --a signal, or the first one was refused--> over, with its status
//!        ^                            \--anything else--> a pause: 100 ms, doubled up to 10 s while they end soon
//!        +-------------------------------------------------------/
//! ```

use super::child::{Child, Exit, News};
use super::{hear_signals, now};
use crate::companion::Arguments;
use crate::log;
use crate::words::behind;
use anyhow::Result;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use vmm::slice::STATUS_REFUSED;

/// Waits again so soon, and after each process that ended soon after its start twice as late.
const SOONEST_MS: u64 = 100;
const LATEST_MS: u64 = 10_000;
/// One that has lived for so long was no failure.
const LIVED_MS: u64 = 10_000;

enum Event {
    Signal,
    Child(News),
}

/// Ends when somebody wants it, or if the first companion is refused. A VM that is over leaves its host free for the next one:
/// also one that was drained from here.
pub(super) fn run(_: &Arguments) -> Result<u8> {
    let words = behind(1);
    let (sender, events) = channel();
    let signals = sender.clone();
    hear_signals(move || drop(signals.send(Event::Signal)))?;
    let mut wait_ms = SOONEST_MS;
    let mut has_waited = false;
    loop {
        let news = sender.clone();
        let child = Child::start(&words, move |of| drop(news.send(Event::Child(of))))?;
        let (started, mut wanted) = (now(), false);
        let exit = loop {
            match events.recv()? {
                Event::Signal => {
                    wanted = true;
                    child.ask_to_stop();
                }
                Event::Child(News::Ended(exit)) => break exit,
                Event::Child(News::Halted(_)) => {}
            }
        };
        let lived = now().saturating_sub(started) >= LIVED_MS;
        has_waited |= lived || exit != Exit::Status(STATUS_REFUSED);
        if wanted || !has_waited {
            return Ok(exit.status());
        }
        wait_ms = if lived { SOONEST_MS } else { wait_ms };
        log::say(&format!("supervisor: the companion has ended ({exit}), and is to wait again"));
        match events.recv_timeout(Duration::from_millis(wait_ms)) {
            Ok(Event::Signal) => return Ok(exit.status()),
            Ok(Event::Child(_))
            | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        wait_ms = (wait_ms * 2).min(LATEST_MS);
    }
}
