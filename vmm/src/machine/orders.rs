//! What the thread of one vCPU is told while the others run on, and what it answers.
//!
//! ```text
//!   None --begin--> Running --stop--> Stopping --report(state)--> Stopped --go--> Going --next--> Running
//!     ^  \-ghost--> Ghost                |                           \--leave--> Leaving
//!     |               |                  +-- report(error), or the limit has passed --> Running
//!     +---- end ------+--------------------------------------------------------------------/
//! ```
//! Any thread may end at any time, when the machine stops or it cannot go on.

use super::saved::VcpuState;
use crate::vcpu::StateError;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// It has no thread.
    #[default]
    None,
    /// The thread is that of its ghost.
    Ghost,
    Running,
    Stopping,
    Stopped,
    /// It runs on, with another offset of its counter if one is given.
    Going(Option<u64>),
    Leaving,
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    /// How long whoever gave the last order to stop waits, and when it was given.
    limit: Duration,
    given: Option<Instant>,
    /// The answer to it.
    answer: Option<Result<VcpuState, StateError>>,
    /// When that was there.
    answered: Option<Instant>,
}

/// What a stopped vCPU is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Nothing.
    Stay,
    /// Go on, with another offset of its counter if one is given.
    Go(Option<u64>),
    /// End its thread.
    Leave,
}

/// Why a vCPU was not stopped. It runs on.
#[derive(Debug)]
pub(crate) enum NotStopped {
    /// It has no thread.
    NoThread,
    /// It did not come in time.
    Late,
    /// It has no state.
    State(StateError),
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    /// A look without the lock, in front of each entry to the guest.
    are_given: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Orders {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: &mut State, stage: Stage) {
        self.are_given.store(stage == Stage::Stopping, SeqCst);
        state.stage = stage;
        self.changed.notify_all();
    }

    /// A thread is about to start: that of the vCPU, or that of its ghost.
    pub(crate) fn begin(&self, is_ghost: bool) {
        let stage = if is_ghost { Stage::Ghost } else { Stage::Running };
        self.set(&mut self.lock(), stage);
    }

    /// The thread has ended.
    pub(crate) fn end(&self) {
        self.set(&mut self.lock(), Stage::None);
    }

    /// Whether there is a thread that may be in the guest, or comes back to it.
    pub(crate) fn is_vcpu(&self) -> bool {
        !matches!(self.lock().stage, Stage::None | Stage::Ghost)
    }

    /// Waits for the end of the thread. False when `end` comes first.
    pub(crate) fn wait_for_end(&self, end: Option<Instant>) -> bool {
        let mut state = self.lock();
        while state.stage != Stage::None {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            let left = left.unwrap_or(Duration::from_secs(1));
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Has the vCPU, which is kicked by `ring`, leave the guest and save its state; that, and since when it waited here.
    pub(crate) fn stop(
        &self,
        limit: Duration,
        ring: impl FnOnce(),
    ) -> Result<(VcpuState, Instant), NotStopped> {
        let given = Instant::now();
        let end = given + limit;
        let goes = |state: &mut State| matches!(state.stage, Stage::Going(_));
        let waited = self.changed.wait_timeout_while(self.lock(), limit, goes);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.stage {
            Stage::Running => {}
            Stage::Going(_) => return Err(NotStopped::Late),
            _ => return Err(NotStopped::NoThread),
        }
        (state.answer, state.limit, state.given) = (None, limit, Some(given));
        self.set(&mut state, Stage::Stopping);
        drop(state);
        ring();
        let waits = |state: &mut State| state.stage == Stage::Stopping;
        let left = end.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.answer.take() {
            Some(answer) => {
                let since = state.answered.unwrap_or(given);
                answer.map(|state| (state, since)).map_err(NotStopped::State)
            }
            None if waits(&mut state) => {
                self.set(&mut state, Stage::Running);
                Err(NotStopped::Late)
            }
            None => Err(NotStopped::NoThread),
        }
    }

    /// Lets a vCPU that has stopped go on.
    pub(crate) fn go(&self, offset: Option<u64>, ring: impl FnOnce()) {
        self.release(Stage::Going(offset), ring);
    }

    /// Has the thread of a vCPU that has stopped end.
    pub(crate) fn leave(&self, ring: impl FnOnce()) {
        self.release(Stage::Leaving, ring);
    }

    fn release(&self, stage: Stage, ring: impl FnOnce()) {
        let mut state = self.lock();
        if state.stage == Stage::Stopped {
            self.set(&mut state, stage);
        }
        drop(state);
        ring();
    }

    /// On the vCPU's thread: whether it is to stop.
    pub(crate) fn are_given(&self) -> bool {
        self.are_given.load(SeqCst)
    }

    /// On the vCPU's thread: how long the last order to stop may take.
    pub(crate) fn limit(&self) -> Duration {
        self.lock().limit
    }

    /// On the vCPU's thread: when it was given.
    pub(crate) fn given(&self) -> Option<Instant> {
        self.lock().given
    }

    /// On the vCPU's thread: it has left the guest, with this state. False if it is to go on, since nobody waits any more
    /// or there is no state.
    pub(crate) fn report(&self, answer: Result<VcpuState, StateError>) -> bool {
        let mut state = self.lock();
        if state.stage != Stage::Stopping {
            return false;
        }
        let stops = answer.is_ok();
        (state.answer, state.answered) = (Some(answer), Some(Instant::now()));
        self.set(&mut state, if stops { Stage::Stopped } else { Stage::Running });
        stops
    }

    /// On the vCPU's thread, which has stopped: what to do.
    pub(crate) fn next(&self) -> Order {
        let mut state = self.lock();
        match state.stage {
            Stage::Going(offset) => {
                self.set(&mut state, Stage::Running);
                Order::Go(offset)
            }
            Stage::Leaving => Order::Leave,
            _ => Order::Stay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn order_that_is_not_obeyed_is_taken_back() {
        let orders = Orders::default();
        assert!(matches!(orders.stop(LONG, || {}), Err(NotStopped::NoThread)));
        orders.begin(true);
        assert!(!orders.is_vcpu());
        assert!(matches!(orders.stop(LONG, || {}), Err(NotStopped::NoThread)));
        orders.begin(false);
        assert!(orders.is_vcpu());
        let seen = || assert!(orders.are_given());
        assert!(matches!(orders.stop(Duration::ZERO, seen), Err(NotStopped::Late)));
        assert!(!orders.are_given());
        assert!(!orders.report(Err(StateError::ShutDown)), "nobody waits any more");
        assert!(!orders.wait_for_end(Some(Instant::now())));
    }

    #[test]
    fn vcpu_without_a_state_runs_on_and_one_that_ends_is_not_waited_for() {
        let orders = Orders::default();
        orders.begin(false);
        let answer = orders.stop(LONG, || assert!(!orders.report(Err(StateError::ShutDown))));
        assert!(matches!(answer, Err(NotStopped::State(StateError::ShutDown))));
        assert!(!orders.are_given() && orders.is_vcpu());
        assert!(matches!(orders.stop(LONG, || orders.end()), Err(NotStopped::NoThread)));
        assert!(orders.wait_for_end(None));
        orders.go(None, || {});
        assert_eq!(orders.next(), Order::Stay, "only who has stopped goes on");
    }
}
