//! Output of a console on its way to who takes it: bounded, the oldest goes first.
//!
//! ```text
//!   taken in time --full--> the writer waits, once --nobody takes--> stalled: the oldest is lost
//!         ^                                                              |
//!         +---------------------------somebody takes---------------------+
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most bytes that wait.
pub(super) const BUFFER_BYTES: usize = 256 << 10;
/// How long a writer waits for room before somebody is taken for gone. The guest's kernel spins meanwhile.
const PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<u8>,
    /// What was taken last is not there yet.
    taken: bool,
    /// Nobody has taken anything since a writer waited in vain.
    stalled: bool,
    /// Bytes that were lost.
    lost: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// What was written and not yet taken. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct ConsoleBuffer {
    shared: Arc<Shared>,
    patience: Duration,
}

impl Default for ConsoleBuffer {
    fn default() -> Self {
        Self { shared: Arc::default(), patience: PATIENCE }
    }
}

impl ConsoleBuffer {
    /// A panic of another thread leaves bytes in order.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all of it. Waits a little for room, and not at all once that was in vain.
    fn push(&self, bytes: &[u8]) {
        let full =
            |state: &mut State| !state.stalled && state.waiting.len() + bytes.len() > BUFFER_BYTES;
        let waited = self.shared.changed.wait_timeout_while(self.lock(), self.patience, full);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            state.stalled = true;
            tracing::warn!("nobody takes the output of a console: the oldest is lost");
        }
        state.waiting.extend(bytes);
        let over = state.waiting.len().saturating_sub(BUFFER_BYTES);
        state.waiting.drain(..over);
        state.lost += over as u64;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Takes everything, waiting until there is something; `None` when `over` is set. What was taken before
    /// has arrived.
    pub(super) fn take(&self, over: &AtomicBool) -> Option<Vec<u8>> {
        let mut state = self.lock();
        state.taken = false;
        self.shared.changed.notify_all();
        let nothing = |state: &mut State| state.waiting.is_empty() && !over.load(Ordering::Acquire);
        let mut state =
            self.shared.changed.wait_while(state, nothing).unwrap_or_else(PoisonError::into_inner);
        if over.load(Ordering::Acquire) {
            return None;
        }
        let bytes = state.waiting.drain(..).collect();
        let lost = std::mem::take(&mut state.lost);
        (state.stalled, state.taken) = (false, true);
        drop(state);
        self.shared.changed.notify_all();
        if lost > 0 {
            tracing::warn!("{lost} bytes of a console's output were lost");
        }
        Some(bytes)
    }

    /// Takes back what could not be passed on, as far as there is room.
    pub(super) fn give_back(&self, bytes: &[u8]) {
        let mut state = self.lock();
        let kept = bytes.len().min(BUFFER_BYTES - state.waiting.len());
        let lost = bytes.len() - kept;
        state.lost += lost as u64;
        for byte in bytes[lost..].iter().rev() {
            state.waiting.push_front(*byte);
        }
    }

    /// Sets what a [`Self::take`] looks at, and has it look.
    pub(super) fn interrupt(&self, over: &AtomicBool) {
        let state = self.lock();
        over.store(true, Ordering::Release);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits until everything has arrived, at most so long.
    pub(super) fn finish(&self, limit: Duration) {
        let in_flight =
            |state: &mut State| !state.stalled && (state.taken || !state.waiting.is_empty());
        drop(self.shared.changed.wait_timeout_while(self.lock(), limit, in_flight));
    }
}

impl io::Write for ConsoleBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use std::thread;

    fn never() -> AtomicBool {
        AtomicBool::new(false)
    }

    #[test]
    fn output_that_nobody_takes_loses_its_oldest_and_stops_no_writer() {
        let mut buffer = ConsoleBuffer::default();
        buffer.write_all(&vec![1; BUFFER_BYTES]).unwrap();
        for byte in 2..=200 {
            buffer.write_all(&[byte]).unwrap();
        }

        let left = buffer.take(&never()).unwrap();

        assert_eq!(left.len(), BUFFER_BYTES);
        assert_eq!(left[BUFFER_BYTES - 199..], (2..=200).collect::<Vec<u8>>());
    }

    #[test]
    fn writer_waits_for_who_takes() {
        let patience = Duration::from_secs(60);
        let mut buffer = ConsoleBuffer { patience, ..ConsoleBuffer::default() };
        let taker = buffer.clone();
        let thread = thread::spawn(move || {
            let mut all = Vec::new();
            while all.len() < 4 * BUFFER_BYTES {
                all.extend(taker.take(&never()).unwrap());
            }
            all
        });
        let sent: Vec<u8> = (0..4 * BUFFER_BYTES).map(|at| at.to_le_bytes()[at % 2]).collect();
        sent.chunks(4096).for_each(|piece| buffer.write_all(piece).unwrap());

        assert!(thread.join().unwrap() == sent);
    }

    #[test]
    fn finish_returns_when_all_has_arrived_or_nobody_takes() {
        let mut buffer = ConsoleBuffer::default();
        buffer.finish(Duration::from_secs(60));
        buffer.write_all(b"late").unwrap();
        buffer.finish(Duration::from_millis(1));
        let taker = buffer.clone();
        let over = Arc::new(never());
        let seen = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let bytes = taker.take(&seen);
            (bytes, taker.take(&seen))
        });
        buffer.finish(Duration::from_secs(60));
        buffer.interrupt(&over);

        assert_eq!(thread.join().unwrap(), (Some(b"late".to_vec()), None));
    }

    #[test]
    fn output_that_is_given_back_comes_first_again() {
        let mut buffer = ConsoleBuffer::default();
        buffer.write_all(b"abc").unwrap();
        let taken = buffer.take(&never()).unwrap();
        buffer.write_all(b"de").unwrap();
        buffer.give_back(&taken[1..]);
        assert_eq!(buffer.take(&never()).unwrap(), b"bcde");
        buffer.write_all(&vec![1; BUFFER_BYTES - 1]).unwrap();
        buffer.give_back(b"xy");
        let left = buffer.take(&never()).unwrap();
        assert_eq!((left.len(), left[0], left[1]), (BUFFER_BYTES, b'y', 1));
    }

    proptest! {
        #[test]
        fn any_writes_leave_the_end_of_all_that_was_written(
            sizes in prop::collection::vec(0_usize..100_000, 0..6)
        ) {
            let mut buffer = ConsoleBuffer::default();
            buffer.lock().stalled = true;
            let mut all: Vec<u8> = vec![0xff];
            buffer.write_all(&[0xff]).unwrap();
            for size in sizes {
                let bytes: Vec<u8> = (0..size).map(|at| at.to_le_bytes()[0]).collect();
                buffer.write_all(&bytes).unwrap();
                all.extend(bytes);
            }
            let left = buffer.take(&never()).unwrap();
            prop_assert_eq!(left.len(), all.len().min(BUFFER_BYTES));
            prop_assert!(all.ends_with(&left));
        }
    }
}
