//! Asks a ghost whether anything still waits in it, and has it answer when nothing does.
//!
//! ```text
//!   rest:    ask --> kick, unless it waits for a start-up --> wait for the answer or the end of the time
//!   ghost:   parked, with no INIT, no NMI and no vector pending --> answer
//! ```
//! The vCPU may also be about to come here. Then the ghost ends, parked, and who asked takes out what still waits in it:
//! ```text
//!   install: ask_to_leave --> kick, unless it waits for a start-up --> wait for its end, or take the question back
//! ```
//! The vCPUs here are at rest when it is asked, so nothing new comes and the answer stays true. A kick that meets a
//! start-up hides it (see `run`), hence a ghost in Starting is never kicked: it answers once it has been started.

use crate::vcpu::VcpuCore;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::VcpuId;

#[derive(Debug, Default)]
struct State {
    /// Somebody waits for an answer.
    is_asked: bool,
    /// It is to end when it is parked.
    is_leaving: bool,
    /// It waits for a start-up, or has not begun.
    is_shy: bool,
    /// Since when it waits for the start-up behind an INIT that it has told of.
    starting: Option<Instant>,
    /// Its thread has ended.
    is_over: bool,
}

/// What a ghost and who asks it share.
#[derive(Debug)]
pub(crate) struct GhostCall {
    core: Arc<VcpuCore>,
    state: Mutex<State>,
    changed: Condvar,
}

impl GhostCall {
    pub(super) fn new(core: Arc<VcpuCore>) -> Self {
        let state = State { is_shy: true, ..State::default() };
        Self { core, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn vcpu(&self) -> VcpuId {
        self.core.id
    }

    /// Asks the ghost to answer when nothing waits in it. Does not wait. One that has no thread has nothing either.
    pub(crate) fn ask(&self) {
        if self.core.doorbell.tid().is_none() {
            return;
        }
        let mut state = self.lock();
        state.is_asked = true;
        // Under the lock: the ghost that becomes shy takes back whatever kick came before.
        if !state.is_shy {
            self.core.doorbell.ring();
        }
    }

    /// Waits for the answer, or for the end of the ghost. False, and it is asked no more, when neither comes in time.
    pub(crate) fn wait(&self, end: Instant) -> bool {
        let left = end.saturating_duration_since(Instant::now());
        let wait = |state: &mut State| state.is_asked && !state.is_over;
        let waited = self.changed.wait_timeout_while(self.lock(), left, wait);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_answered = !wait(&mut state);
        state.is_asked = false;
        is_answered
    }

    /// Has the ghost end when it is parked. Does not wait.
    pub(crate) fn ask_to_leave(&self) {
        let mut state = self.lock();
        state.is_leaving = true;
        if !state.is_shy {
            self.core.doorbell.ring();
        }
    }

    /// Takes the question back. False if it has left already.
    pub(crate) fn stay(&self) -> bool {
        let mut state = self.lock();
        state.is_leaving = false;
        !state.is_over
    }

    /// The ghost is parked: whether it is to end now.
    pub(super) fn leaves(&self) -> bool {
        let mut state = self.lock();
        state.is_over |= state.is_leaving;
        state.is_over
    }

    pub(super) fn is_asked(&self) -> bool {
        self.lock().is_asked
    }

    pub(super) fn answer(&self) {
        self.lock().is_asked = false;
        self.changed.notify_all();
    }

    /// From now on a kick may, or may not, be sent to the ghost.
    pub(super) fn set_shy(&self, is_shy: bool) {
        let mut state = self.lock();
        state.is_shy = is_shy;
        state.starting = is_shy.then(Instant::now);
    }

    /// Whether it has told of an INIT, not longer ago than this, and not of the start-up behind it.
    pub(crate) fn is_starting(&self, within: Duration) -> bool {
        let state = self.lock();
        !state.is_over && state.starting.is_some_and(|since| since.elapsed() < within)
    }

    /// The ghost ends.
    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }
}
