//! What passes between a slice that coordinates and the next one. `coordination` does it.
//!
//! ```text
//!   state of the one before --put--> kept --take--> the next one has it
//!   the one before wants to leave --want_leave--> thread of the coordinator --> it is dismissed, or told why not
//! ```

use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::SliceId;

#[derive(Debug, Default)]
struct Links {
    /// What came last from the one that coordinates.
    state: Option<Vec<u8>>,
    /// This slice is about to coordinate, or does: what is for the coordinator may come.
    chosen: bool,
    /// To the thread that has slices leave, on the coordinator.
    thread: Option<Sender<SliceId>>,
    /// A wish to leave that came before that thread was there.
    early: Option<SliceId>,
    /// Who waits here for this slice to leave.
    waiting: Option<Sender<Result<(), String>>>,
}

/// The part of a slice in becoming and in ceasing to be the coordinator.
#[derive(Debug, Default)]
pub(super) struct Succession(Mutex<Links>);

impl Succession {
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next coordinator must know has come. One that came before is forgotten.
    pub(super) fn put(&self, state: Vec<u8>) {
        self.lock().state = Some(state);
    }

    /// What has come, if anything has.
    pub(super) fn take(&self) -> Option<Vec<u8>> {
        self.lock().state.take()
    }

    /// This slice is about to coordinate, or does so no longer.
    pub(super) fn choose(&self, chosen: bool) {
        self.lock().chosen = chosen;
    }

    /// Whether what is for the coordinator may come here, as far as those know who send it.
    pub(super) fn is_chosen(&self) -> bool {
        self.lock().chosen
    }

    /// From now on slices can leave by their own wish; none: no more.
    pub(super) fn set_thread(&self, thread: Option<Sender<SliceId>>) {
        let mut links = self.lock();
        let early = links.early.take();
        if let (Some(thread), Some(slice)) = (&thread, early) {
            let _ = thread.try_send(slice);
        }
        links.thread = thread;
    }

    /// A slice wants to leave.
    ///
    /// # Errors
    /// Why it is not tried.
    pub(super) fn want_leave(&self, slice: SliceId) -> Result<(), &'static str> {
        let mut links = self.lock();
        match &links.thread {
            Some(thread) => thread.try_send(slice).map_err(|_| "it has asked for that already"),
            // The one before says that all know, and asks at once.
            None if links.chosen => {
                links.early = Some(slice);
                Ok(())
            }
            None => Err("another slice coordinates"),
        }
    }

    /// Where it is told whether this slice leaves.
    pub(super) fn wait(&self) -> Receiver<Result<(), String>> {
        let (waiting, told) = bounded(1);
        self.lock().waiting = Some(waiting);
        told
    }

    /// This slice leaves, or not and why. Nobody may wait for it.
    pub(super) fn told(&self, result: Result<(), String>) {
        if let Some(waiting) = self.lock().waiting.take() {
            let _ = waiting.try_send(result);
        }
    }

    /// The VM is over.
    pub(super) fn end(&self) {
        *self.lock() = Links::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_taken_once_and_the_last_one_counts() {
        let succession = Succession::default();
        assert_eq!(succession.take(), None);
        succession.put(vec![1]);
        succession.put(vec![2]);
        assert_eq!((succession.take(), succession.take()), (Some(vec![2]), None));
    }

    #[test]
    fn wish_to_leave_is_heard_by_the_coordinator_or_refused() {
        let succession = Succession::default();
        assert!(succession.want_leave(SliceId(0)).is_err());
        succession.choose(true);
        assert_eq!(succession.want_leave(SliceId(0)), Ok(()));
        let (thread, wishes) = bounded(1);
        succession.set_thread(Some(thread));
        assert!(succession.want_leave(SliceId(0)).is_err());
        assert_eq!(wishes.try_recv(), Ok(SliceId(0)));
    }

    #[test]
    fn who_waits_to_leave_is_told_once() {
        let succession = Succession::default();
        succession.told(Ok(()));
        let told = succession.wait();
        succession.told(Err("a page".into()));
        succession.told(Ok(()));
        assert_eq!(told.recv(), Ok(Err("a page".into())));
        assert!(told.recv().is_err());
    }
}
