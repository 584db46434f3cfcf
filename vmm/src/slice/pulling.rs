//! Pages that are brought to their home from a slice that is to be emptied, because the coordinator asks for it.
//!
//! ```text
//!   pull (coordinator) --Pull--> [thread of the home] --> memory engine
//!         answer <----------Pulled-----------|
//! ```
//! Pages take seconds to come, and the engine brings them, so a thread of its own waits for them.

use super::channels::Channels;
use super::one_line;
use super::pulls::{Request, Taken};
use super::refusing::Explains;
use crate::control::Reason;
use crossbeam_channel::{RecvTimeoutError, bounded};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use thiserror::Error;
use wire::{Control, SliceId};

/// For the pages of one request.
const PULL_LIMIT: Duration = Duration::from_secs(60);
/// How much later the answer may come.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Requests that may wait. The coordinator asks for one after another.
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

impl Explains for PullError {
    fn reason(&self) -> Reason {
        match self {
            Self::Failed(..) => Reason::Failed,
            Self::Silent(_) => Reason::Silent,
            Self::Over => Reason::Over,
        }
    }
}

/// Starts the thread of a slice. It does not keep the slice alive.
pub(super) fn start(channels: &Arc<Channels>) -> io::Result<()> {
    let (sender, requests) = bounded::<Request>(REQUESTS_MAX);
    let weak = Arc::downgrade(channels);
    let run = move || {
        for request in requests {
            let Some(channels) = weak.upgrade() else { return };
            let failure = bring(&channels, &request).err().unwrap_or_default();
            // No other slice comes to coordinate while pages are pulled.
            let coordinator = channels.coordinator();
            if channels.local() == coordinator {
                channels.pulls.answered(coordinator, request.id, failure);
            } else {
                channels.send(coordinator, &Control::Pulled { id: request.id, failure });
            }
        }
    };
    thread::Builder::new().name("pull".into()).spawn(run)?;
    channels.pulls.set_thread(sender);
    Ok(())
}

/// On the engine's thread: the coordinator asks this home. False if it asks for more than can wait.
pub(super) fn asked(channels: &Channels, request: Request) -> bool {
    let id = request.id;
    match channels.pulls.take(request) {
        Taken::Done => true,
        Taken::TooMany => false,
        Taken::Nobody => {
            let failure = "its guest does not run".to_owned();
            channels.send(channels.coordinator(), &Control::Pulled { id, failure });
            true
        }
    }
}

/// Whatever is asked for, only what this slice is home of is looked at.
fn bring(channels: &Channels, request: &Request) -> Result<(), String> {
    let Some(engine) = channels.handle.get() else { return Ok(()) };
    let placement = channels.placement.load();
    if !placement.is_member(request.from) {
        return Err(format!("{} is no member", request.from));
    }
    for own in placement.frames_of(channels.local()) {
        let frames =
            own.start.max(request.frames.start)..own.end.min(request.frames.end).max(own.start);
        if !frames.is_empty() {
            let pulled = engine.pull_home(frames, request.from, PULL_LIMIT);
            pulled.map_err(|error| one_line(&error))?;
        }
    }
    Ok(())
}

/// On the coordinator: brings the pages of these frames, which `home` is the home of, there from another slice, and
/// waits for it.
pub(super) fn pull(
    channels: &Channels,
    (home, frames): (SliceId, Range<u64>),
    from: SliceId,
) -> Result<(), PullError> {
    let (id, answer) = channels.pulls.begin(home);
    if home == channels.local() {
        if channels.pulls.take(Request { id, frames, from }) != Taken::Done {
            channels.pulls.forget(id);
            return Err(PullError::Over);
        }
    } else {
        let (first, frames) = (frames.start, frames.end - frames.start);
        channels.send(home, &Control::Pull { id, from, first, frames });
    }
    let told = answer.recv_timeout(PULL_LIMIT + ANSWER_LIMIT);
    channels.pulls.forget(id);
    match told {
        Ok(failure) if failure.is_empty() => Ok(()),
        // It may go to a terminal, and who wrote it is not known.
        Ok(failure) => Err(PullError::Failed(home, failure.replace(char::is_control, " "))),
        Err(RecvTimeoutError::Timeout) => Err(PullError::Silent(home)),
        Err(RecvTimeoutError::Disconnected) => Err(PullError::Over),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::channels::tests::channels;

    const FIRST: SliceId = SliceId(0);

    #[test]
    fn what_a_home_says_is_shown_without_control_characters() {
        let (channels, _told) = channels(FIRST);
        let asking = Arc::clone(&channels);
        let thread = thread::spawn(move || pull(&asking, (SliceId(1), 0..8), SliceId(2)));
        let expected = Err(PullError::Failed(SliceId(1), "no ".into()));
        // Until it waits nobody hears an answer.
        while !thread.is_finished() {
            channels.pulls.answered(SliceId(1), 0, "no\x1b".into());
            thread::yield_now();
        }
        assert_eq!(thread.join().unwrap(), expected);
    }

    #[test]
    fn nothing_is_pulled_when_the_vm_is_over() {
        let (channels, _told) = channels(FIRST);
        assert_eq!(pull(&channels, (FIRST, 0..8), SliceId(1)), Err(PullError::Over));
    }
}
