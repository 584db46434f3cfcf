//! Who is to bring pages home, and who waits for that. The thread that does it, and what goes between slices, is in `pulling`.
//!
//! ```text
//!   begin: waits --answered--> told --\
//!                \---end---> over ------> forget
//! ```

use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::SliceId;

/// Frames whose pages are to come from a slice.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) frames: Range<u64>,
    pub(super) from: SliceId,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The thread has it.
    Done,
    /// There is no thread: the guest does not run yet, or any more.
    Nobody,
    /// More is asked for than can wait.
    TooMany,
}

#[derive(Debug, Default)]
struct Links {
    /// To the thread of this slice, while the guest runs.
    thread: Option<Sender<Request>>,
    /// On the coordinator: who waits for which home.
    waiting: BTreeMap<u64, (SliceId, Sender<String>)>,
    next: u64,
}

/// The part of a slice in bringing pages home.
#[derive(Debug, Default)]
pub(super) struct Pulls(Mutex<Links>);

impl Pulls {
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on pages can be brought here.
    pub(super) fn set_thread(&self, thread: Sender<Request>) {
        self.lock().thread = Some(thread);
    }

    /// On the coordinator: somebody waits for a home; the number of the request, and what the home will say.
    pub(super) fn begin(&self, home: SliceId) -> (u64, Receiver<String>) {
        let (sender, answer) = bounded(1);
        let mut links = self.lock();
        let id = links.next;
        links.next += 1;
        links.waiting.insert(id, (home, sender));
        (id, answer)
    }

    /// Nobody waits for that any more.
    pub(super) fn forget(&self, id: u64) {
        self.lock().waiting.remove(&id);
    }

    /// Gives the thread of this slice work.
    pub(super) fn take(&self, request: Request) -> Taken {
        match &self.lock().thread {
            None => Taken::Nobody,
            Some(thread) if thread.try_send(request).is_ok() => Taken::Done,
            Some(_) => Taken::TooMany,
        }
    }

    /// On the coordinator: what a home says. Nobody may wait for it any more.
    pub(super) fn answered(&self, home: SliceId, id: u64, failure: String) {
        let links = self.lock();
        let waiting = links.waiting.get(&id).filter(|(of, _)| *of == home);
        if let Some((_, waiting)) = waiting {
            let _ = waiting.try_send(failure);
        }
    }

    /// The VM is over, and who waits is told.
    pub(super) fn end(&self) {
        *self.lock() = Links::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::TryRecvError;

    const HOME: SliceId = SliceId(1);

    #[test]
    fn only_the_home_that_was_asked_can_answer() {
        let pulls = Pulls::default();
        let (id, answer) = pulls.begin(HOME);
        pulls.answered(SliceId(2), id, "a stranger".into());
        pulls.answered(HOME, id + 1, "of nobody".into());
        assert_eq!(answer.try_recv(), Err(TryRecvError::Empty));
        pulls.answered(HOME, id, String::new());
        assert_eq!(answer.try_recv(), Ok(String::new()));
        pulls.forget(id);
        pulls.answered(HOME, id, "late".into());
        assert_ne!(pulls.begin(HOME).0, id);
    }

    #[test]
    fn who_waits_is_told_of_the_end() {
        let pulls = Pulls::default();
        let (_, answer) = pulls.begin(HOME);
        pulls.end();
        assert_eq!(answer.try_recv(), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn home_takes_no_more_than_can_wait() {
        let pulls = Pulls::default();
        let request = || Request { id: 0, frames: 0..8, from: HOME };
        assert_eq!(pulls.take(request()), Taken::Nobody);
        let (sender, _requests) = bounded(1);
        pulls.set_thread(sender);
        assert_eq!(pulls.take(request()), Taken::Done);
        assert_eq!(pulls.take(request()), Taken::TooMany);
    }
}
