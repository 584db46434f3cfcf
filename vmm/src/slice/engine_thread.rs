//! The thread of the memory engine, as the main thread sees it.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// For an engine that was asked to end: it may have large tables to free.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at one that is to end.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The thread; none in a VM of one slice.
#[derive(Debug, Default)]
pub(super) struct EngineThread {
    thread: Option<JoinHandle<()>>,
    /// It had ended at the last look.
    had_ended: bool,
}

impl EngineThread {
    pub(super) fn new(thread: JoinHandle<()>) -> Self {
        Self { thread: Some(thread), had_ended: false }
    }

    /// What is wrong if it has ended, at the second look: at the first one what it told before may still be on its way.
    pub(super) fn has_ended(&mut self) -> Option<&'static str> {
        let ended = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
        let had_ended = std::mem::replace(&mut self.had_ended, ended);
        (ended && had_ended).then_some("its memory engine has ended and said nothing")
    }

    /// Waits for its end. One that hangs is left to the end of the process.
    pub(super) fn join(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let limit = Instant::now() + END_LIMIT;
        while !thread.is_finished() {
            if Instant::now() >= limit {
                tracing::error!("the memory engine has not ended within {END_LIMIT:?}");
                return;
            }
            thread::sleep(LOOK_AGAIN);
        }
        if thread.join().is_err() {
            tracing::error!("the memory engine panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn end_is_told_at_the_second_look() {
        let (go, wait) = channel::<()>();
        let mut engine = EngineThread::new(thread::spawn(move || wait.recv().unwrap_or(())));
        assert_eq!((engine.has_ended(), engine.has_ended()), (None, None));
        drop(go);
        while !engine.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            thread::yield_now();
        }
        assert_eq!(engine.has_ended(), None);
        assert!(engine.has_ended().is_some());
        engine.join();
        assert_eq!((engine.has_ended(), engine.has_ended()), (None, None));
    }

    #[test]
    fn slice_without_an_engine_misses_none() {
        let mut none = EngineThread::default();
        assert_eq!((none.has_ended(), none.has_ended()), (None, None));
        none.join();
    }
}
