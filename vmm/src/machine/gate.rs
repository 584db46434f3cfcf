//! A gate in front of the guest, through which all vCPUs of a slice go together when their counter steps forward, and
//! at which they stay while they are at rest.
//!
//! ```text
//!   open --step--> arriving --all vCPUs are out of the guest--> each has its new offset ----------> open
//!    |                \--one does not come in time-------------------------------------------------> open
//!    +---aside---> arriving --all are--> somebody else's work ------------------------------------------> open
//!    +----rest---> arriving --all are, and nothing of their last exits is left--> at rest --open_up--> open
//!                                              each is saved, or has a new offset <--/
//! ```
//! Two vCPUs of a slice never run with different offsets: by messages in shared memory, which take a tenth of a
//! microsecond, one would see the other's time go back. A new vCPU joins before its thread starts, with the latest
//! offset, and comes to the gate before it enters the guest for the first time.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use wire::VcpuId;

/// For so long all others are kept out of the guest at first because of one that does not come; as a step of the clock.
const FIRST_TRY: Duration = Duration::from_millis(20);

/// What each vCPU does at the gate, on its own thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Takes this offset of its counter.
    SetOffset(u64),
    /// Saves its state.
    Save,
}

/// A vCPU at the gate.
pub(crate) trait Participant {
    /// Why it cannot go on.
    type Error;

    /// Finishes what is left of its last exit.
    ///
    /// # Errors
    /// The vCPU must not enter the guest any more.
    fn settle(&mut self) -> Result<(), Self::Error>;

    /// Does a task.
    ///
    /// # Errors
    /// The vCPU must not enter the guest any more.
    fn run(&mut self, task: Task) -> Result<(), Self::Error>;
}

/// Why the gate was not shut. It is open again then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// These did not come in time.
    Missing(Vec<VcpuId>),
    /// Another step or rest did not end in time.
    Busy,
    /// The machine stops.
    Over,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    Arriving,
    Resting,
    Doing(Task),
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// Those that arrive are to settle first.
    is_rest: bool,
    /// Tasks so far.
    tasks: u64,
    /// vCPUs that may be in the guest.
    members: BTreeSet<VcpuId>,
    /// What was set last, if anything was.
    offset: Option<u64>,
    /// vCPUs at the gate.
    arrived: BTreeSet<VcpuId>,
    /// Of these, those that have done the task.
    done: usize,
    /// The gate is not shut any more.
    is_over: bool,
}

impl State {
    fn missing(&self) -> Vec<VcpuId> {
        self.members.difference(&self.arrived).copied().collect()
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// A look without the lock, in front of each entry to the guest.
    is_shut: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change; none when the time is over.
    fn wait_until<'a>(
        &self,
        state: MutexGuard<'a, State>,
        end: Instant,
    ) -> Result<MutexGuard<'a, State>, MutexGuard<'a, State>> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(state);
        }
        let waited = self.changed.wait_timeout(state, left);
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// A vCPU is about to be started: from now on it is waited for. Gives the offset that it has to take first, if any
    /// was set.
    #[must_use]
    pub(crate) fn join(&self, id: VcpuId) -> Option<u64> {
        let mut state = self.lock();
        state.members.insert(id);
        state.offset
    }

    /// A vCPU that has joined does not enter the guest any more.
    pub(crate) fn leave(&self, id: VcpuId) {
        self.lock().members.remove(&id);
        self.changed.notify_all();
    }

    /// A vCPU that has joined is about to enter the guest: while the gate is shut it waits, and does its tasks.
    ///
    /// # Errors
    /// Those of the participant; it must not enter then.
    pub(crate) fn pass<V: Participant>(
        &self,
        id: VcpuId,
        participant: &mut V,
    ) -> Result<(), V::Error> {
        if !self.is_shut.load(SeqCst) {
            return Ok(());
        }
        let mut is_settled = false;
        let mut state = loop {
            let state = self.lock();
            if state.phase == Phase::Open {
                return Ok(());
            }
            if is_settled || !state.is_rest {
                break state;
            }
            drop(state);
            participant.settle()?;
            is_settled = true;
        };
        state.arrived.insert(id);
        self.changed.notify_all();
        let (mut result, mut last) = (Ok(()), state.tasks);
        while state.phase != Phase::Open {
            match state.phase {
                Phase::Doing(task) if state.tasks != last => {
                    last = state.tasks;
                    drop(state);
                    let outcome = participant.run(task);
                    result = result.and(outcome);
                    state = self.lock();
                    state.done += 1;
                    self.changed.notify_all();
                }
                _ => state = self.wait(state),
            }
        }
        state.arrived.remove(&id);
        self.changed.notify_all();
        result
    }

    /// Shuts the gate and waits until all vCPUs are there. For a step, one at which they rest is shut already.
    fn shut(
        &self,
        is_rest: bool,
        limit: Duration,
        ring: impl FnOnce(),
    ) -> Result<MutexGuard<'_, State>, Refused> {
        let end = Instant::now() + limit;
        let mut state = self.lock();
        // Those of the step before have to be gone.
        // One that has joined since they rest has the old offset until it is there.
        let rests =
            |state: &State| !is_rest && state.phase == Phase::Resting && state.missing().is_empty();
        let free = |state: &State| state.phase == Phase::Open && state.arrived.is_empty();
        while !state.is_over && !free(&state) && !rests(&state) {
            state = self.wait_until(state, end).map_err(|_| Refused::Busy)?;
        }
        if state.is_over {
            return Err(Refused::Over);
        }
        if rests(&state) {
            return Ok(state);
        }
        (state.phase, state.is_rest) = (Phase::Arriving, is_rest);
        self.is_shut.store(true, SeqCst);
        drop(state);
        ring();
        let mut state = self.lock();
        while !state.is_over && !state.missing().is_empty() {
            state = match self.wait_until(state, end) {
                Ok(state) => state,
                Err(mut state) => {
                    let missing = state.missing();
                    self.open(&mut state);
                    return Err(Refused::Missing(missing));
                }
            };
        }
        if state.is_over { Err(Refused::Over) } else { Ok(state) }
    }

    /// The state when no task is being done.
    fn between_tasks(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while matches!(state.phase, Phase::Doing(_)) && !state.is_over {
            state = self.wait(state);
        }
        state
    }

    /// Has all that are at rest do a task. They rest on.
    fn send_resting(&self, state: MutexGuard<'_, State>, task: Task) {
        let mut state = self.send(state, task);
        if !state.is_over {
            state.phase = Phase::Resting;
            self.changed.notify_all();
        }
    }

    /// Has all that are at the gate do a task.
    fn send<'a>(&self, mut state: MutexGuard<'a, State>, task: Task) -> MutexGuard<'a, State> {
        (state.phase, state.done) = (Phase::Doing(task), 0);
        state.tasks += 1;
        // Whoever comes now has joined meanwhile, with the latest offset.
        let all = state.arrived.len();
        self.changed.notify_all();
        while state.done < all && !state.is_over {
            state = self.wait(state);
        }
        state
    }

    fn open(&self, state: &mut State) {
        (state.phase, state.is_rest) = (Phase::Open, false);
        self.is_shut.store(false, SeqCst);
        self.changed.notify_all();
    }

    /// Brings all vCPUs out of the guest, by `ring`, gives them an offset, and lets them go on; those that are at rest get
    /// it and stay. False, and nothing has changed, if one does not come out within `limit` (it waits for a page or a
    /// device).
    pub(crate) fn step(
        &self,
        offset: u64,
        limit: Duration,
        ring: impl FnOnce(),
        publish: impl FnOnce(),
    ) -> bool {
        let Ok(mut state) = self.shut(false, limit, ring) else { return false };
        publish();
        state.offset = Some(offset);
        if state.phase == Phase::Resting {
            self.send_resting(state, Task::SetOffset(offset));
        } else {
            let mut state = self.send(state, Task::SetOffset(offset));
            self.open(&mut state);
        }
        true
    }

    /// Brings all vCPUs out of the guest, by `ring`, and keeps them at the gate until it is opened.
    ///
    /// # Errors
    /// Not all came within `limit`; those that did go on.
    pub(crate) fn rest(&self, limit: Duration, ring: impl FnOnce()) -> Result<(), Refused> {
        self.shut(true, limit, ring)?.phase = Phase::Resting;
        Ok(())
    }

    /// Has all vCPUs, which are at rest, save their state. Only who brought them to rest may call it.
    pub(crate) fn save(&self) {
        let state = self.between_tasks();
        if state.phase == Phase::Resting {
            self.send_resting(state, Task::Save);
        }
    }

    /// Brings all vCPUs out of the guest, by `ring`, does `work`, which must be short, and lets them go on; those that are
    /// at rest stay. One may wait for a slow device, so it is tried several times: between tries the others run.
    ///
    /// # Errors
    /// Not all came within `limit`; those that did go on.
    pub(crate) fn aside<T>(
        &self,
        limit: Duration,
        ring: impl Fn(),
        work: impl FnOnce() -> T,
    ) -> Result<T, Refused> {
        let (end, mut patience) = (Instant::now() + limit, FIRST_TRY);
        let mut state = loop {
            let left = end.saturating_duration_since(Instant::now());
            // The last try has all that is left, if there is no room for a rest and another one.
            let limit = if 3 * patience <= left { patience } else { left };
            match self.shut(false, limit, &ring) {
                Err(Refused::Missing(_) | Refused::Busy) if limit < left => {
                    // As long as they have stood still.
                    thread::sleep(patience);
                    patience *= 2;
                }
                shut => break shut?,
            }
        };
        let result = work();
        if state.phase != Phase::Resting {
            self.open(&mut state);
        }
        Ok(result)
    }

    /// Ends the rest.
    pub(crate) fn open_up(&self) {
        self.open(&mut self.between_tasks());
    }

    /// Opens the gate for good: the machine stops.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        self.open(&mut state);
    }
}

#[cfg(test)]
mod tests;
