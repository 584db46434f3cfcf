//! Pages that are brought to their home from a slice that is to be emptied, because the bootstrap slice asks for it.
//!
//! ```text
//!   Pulls::pull (bootstrap slice) --Pull--> [thread of the home] --> memory engine
//!         answer <---------------Pulled-----------|
//! ```
//! Pages take seconds to come, and the engine brings them, so a thread of its own waits for them.

use super::channels::Channels;
use super::one_line;
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use thiserror::Error;
use wire::{Control, SliceId};

/// For the pages of one request, which has a few MiB.
const PULL_LIMIT: Duration = Duration::from_secs(60);
/// How much later the answer may come.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Requests that may wait. The bootstrap slice asks for one after another.
const REQUESTS_MAX: usize = 4;

/// Why pages are not at home.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum PullError {
    /// The home says why.
    #[error("{0} cannot bring its pages home: {1}")]
    Failed(SliceId, String),
    /// The home says nothing.
    #[error("{0} has not brought its pages home in time")]
    Silent(SliceId),
    /// There is no guest.
    #[error("the VM is over")]
    Over,
}

/// Frames whose pages are to come from a slice.
#[derive(Clone, Debug)]
struct Request {
    id: u64,
    frames: Range<u64>,
    from: SliceId,
}

#[derive(Debug, Default)]
struct Links {
    /// To the thread of this slice, while the guest runs.
    thread: Option<Sender<Request>>,
    /// On the bootstrap slice: who waits for which home.
    waiting: BTreeMap<u64, (SliceId, Sender<String>)>,
}

/// The part of a slice in bringing pages home.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    next: AtomicU64,
    links: Mutex<Links>,
}

impl Pulls {
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread. It does not keep the slice alive.
    pub(super) fn start(channels: &Arc<Channels>) -> io::Result<()> {
        let (sender, requests) = bounded::<Request>(REQUESTS_MAX);
        let weak = Arc::downgrade(channels);
        let run = move || {
            for request in requests {
                let Some(channels) = weak.upgrade() else { return };
                let failure = pull(&channels, &request).err().unwrap_or_default();
                channels.pulls.answer(&channels, request.id, failure);
            }
        };
        thread::Builder::new().name("pull".into()).spawn(run)?;
        channels.pulls.lock().thread = Some(sender);
        Ok(())
    }

    /// On the bootstrap slice: brings the pages of these frames, which `home` is the home of, there from another slice, and
    /// waits for it.
    pub(super) fn pull(
        &self,
        channels: &Channels,
        (home, frames): (SliceId, Range<u64>),
        from: SliceId,
    ) -> Result<(), PullError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = bounded(1);
        self.lock().waiting.insert(id, (home, sender));
        if home == channels.local() {
            if !self.take(Request { id, frames, from }) {
                return Err(PullError::Over);
            }
        } else {
            let (first, frames) = (frames.start, frames.end - frames.start);
            channels.send(home, &Control::Pull { id, from, first, frames });
        }
        let told = answer.recv_timeout(PULL_LIMIT + ANSWER_LIMIT);
        self.lock().waiting.remove(&id);
        match told {
            Ok(failure) if failure.is_empty() => Ok(()),
            // It may go to a terminal, and who wrote it is not known.
            Ok(failure) => Err(PullError::Failed(home, failure.replace(char::is_control, " "))),
            Err(RecvTimeoutError::Timeout) => Err(PullError::Silent(home)),
            Err(RecvTimeoutError::Disconnected) => Err(PullError::Over),
        }
    }

    /// On the engine's thread: the bootstrap slice asks this home. False if more is asked for than can wait.
    pub(super) fn asked(&self, id: u64, from: SliceId, first: u64, frames: u64) -> bool {
        // One that has no end has no pages either.
        let frames = first..first.saturating_add(frames);
        // Without a thread the VM is over, and the answer does not matter.
        self.lock().thread.is_none() || self.take(Request { id, frames, from })
    }

    fn take(&self, request: Request) -> bool {
        self.lock().thread.as_ref().is_some_and(|thread| thread.try_send(request).is_ok())
    }

    /// On the bootstrap slice: what a home says. Nobody may wait for it any more.
    pub(super) fn answered(&self, home: SliceId, id: u64, failure: String) {
        let links = self.lock();
        let waiting = links.waiting.get(&id).filter(|(of, _)| *of == home);
        if let Some((_, waiting)) = waiting {
            let _ = waiting.try_send(failure);
        }
    }

    fn answer(&self, channels: &Channels, id: u64, failure: String) {
        match channels.local() {
            super::BOOTSTRAP => self.answered(super::BOOTSTRAP, id, failure),
            _ => channels.send(super::BOOTSTRAP, &Control::Pulled { id, failure }),
        }
    }

    /// The VM is over, and who waits is told.
    pub(super) fn end(&self) {
        *self.lock() = Links::default();
    }
}

fn pull(channels: &Channels, request: &Request) -> Result<(), String> {
    let Some(engine) = channels.handle.get() else { return Ok(()) };
    let pulled = engine.pull_home(request.frames.clone(), request.from, PULL_LIMIT);
    pulled.map_err(|error| one_line(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::BOOTSTRAP;
    use crate::slice::channels::tests::channels;

    const HOME: SliceId = SliceId(1);

    #[test]
    fn only_the_home_that_was_asked_can_answer() {
        let (channels, _told) = channels(BOOTSTRAP);
        let asking = Arc::clone(&channels);
        let pull = move || asking.pulls.pull(&asking, (HOME, 0..8), SliceId(2));
        let thread = thread::spawn(pull);
        while channels.pulls.lock().waiting.is_empty() {
            thread::yield_now();
        }
        channels.pulls.answered(SliceId(2), 0, String::new());
        channels.pulls.answered(HOME, 1, String::new());
        channels.pulls.answered(HOME, 0, "no\x1b".into());
        assert_eq!(thread.join().unwrap(), Err(PullError::Failed(HOME, "no ".into())));
        assert!(channels.pulls.lock().waiting.is_empty());
    }

    #[test]
    fn who_waits_is_told_of_the_end() {
        let (channels, _told) = channels(BOOTSTRAP);
        let asking = Arc::clone(&channels);
        let pull = move || asking.pulls.pull(&asking, (HOME, 0..8), SliceId(2));
        let thread = thread::spawn(pull);
        while channels.pulls.lock().waiting.is_empty() {
            thread::yield_now();
        }
        channels.pulls.end();
        assert_eq!(thread.join().unwrap(), Err(PullError::Over));
        let own = channels.pulls.pull(&channels, (BOOTSTRAP, 0..8), HOME);
        assert_eq!(own, Err(PullError::Over), "there is no thread for it");
    }

    #[test]
    fn home_takes_no_more_than_can_wait() {
        let (channels, _told) = channels(HOME);
        assert!(channels.pulls.asked(0, BOOTSTRAP, 0, 8), "the VM is over, nobody minds");
        let (sender, _requests) = bounded(1);
        channels.pulls.lock().thread = Some(sender);
        assert!(channels.pulls.asked(0, BOOTSTRAP, u64::MAX, u64::MAX));
        assert!(!channels.pulls.asked(1, BOOTSTRAP, 0, 8));
    }
}
