//! A gate in front of the guest, through which all vCPUs of a slice go together when their counter steps forward.
//!
//! ```text
//!   open --step--> arriving --all vCPUs are out of the guest--> setting --each has its new offset--> open
//!                     \--one does not come in time------------------------------------------------> open
//! ```
//! Two vCPUs of a slice never run with different offsets: by messages in shared memory, which take a tenth of a
//! microsecond, one would see the other's time go back. A new vCPU joins before it enters the guest: it waits for a step
//! in progress and starts with the latest offset.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    Arriving,
    Setting(u64),
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// vCPUs that may be in the guest.
    members: usize,
    /// What was set last, if anything was.
    offset: Option<u64>,
    /// vCPUs at the gate.
    arrived: usize,
    /// Of these, those with the new offset.
    done: usize,
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

    /// A vCPU is about to enter the guest for the first time.
    ///
    /// # Errors
    /// Those of `set`; the vCPU must not enter then.
    pub(crate) fn join<E>(&self, set: impl FnOnce(u64) -> Result<(), E>) -> Result<(), E> {
        let mut state = self.lock();
        while state.phase != Phase::Open {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.offset.map_or(Ok(()), set)?;
        state.members += 1;
        Ok(())
    }

    /// A vCPU that has joined does not enter the guest any more.
    pub(crate) fn leave(&self) {
        self.lock().members -= 1;
        self.changed.notify_all();
    }

    /// A vCPU that has joined is about to enter the guest: it waits while others are brought out, and takes a new
    /// offset by `set`.
    ///
    /// # Errors
    /// Those of `set`; the vCPU must not enter then.
    pub(crate) fn pass<E>(&self, set: impl FnOnce(u64) -> Result<(), E>) -> Result<(), E> {
        if !self.is_shut.load(SeqCst) {
            return Ok(());
        }
        let mut state = self.lock();
        if state.phase == Phase::Open {
            return Ok(());
        }
        state.arrived += 1;
        self.changed.notify_all();
        while state.phase == Phase::Arriving {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut result = Ok(());
        if let Phase::Setting(offset) = state.phase {
            result = set(offset);
            state.done += 1;
            self.changed.notify_all();
            while state.phase == Phase::Setting(offset) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        state.arrived -= 1;
        self.changed.notify_all();
        result
    }

    /// Brings all vCPUs out of the guest, by `ring`, gives them an offset, and lets them go on. False, and
    /// nothing has changed, if one does not come out within `limit`: it waits for a page or a device.
    pub(crate) fn step(
        &self,
        offset: u64,
        limit: Duration,
        ring: impl FnOnce(),
        publish: impl FnOnce(),
    ) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.lock();
        // Those of the step before have to be gone.
        while state.arrived > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (state.phase, state.done) = (Phase::Arriving, 0);
        self.is_shut.store(true, SeqCst);
        drop(state);
        ring();
        let mut state = self.lock();
        while state.arrived < state.members {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let all = state.arrived >= state.members;
        if all {
            publish();
            (state.phase, state.offset) = (Phase::Setting(offset), Some(offset));
            self.changed.notify_all();
            while state.done < state.arrived {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        state.phase = Phase::Open;
        self.is_shut.store(false, SeqCst);
        self.changed.notify_all();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, AtomicUsize};
    use std::thread::{scope, sleep, spawn};

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn vcpus_never_run_with_different_offsets() {
        let (gate, over) = (Gate::default(), AtomicBool::new(false));
        let offsets = [(); 3].map(|()| AtomicU64::new(0));
        let torn = AtomicUsize::new(0);
        scope(|threads| {
            for own in &offsets {
                let (gate, over, offsets, torn) = (&gate, &over, &offsets, &torn);
                gate.join::<()>(|_| panic!("nothing was set")).unwrap();
                threads.spawn(move || {
                    let mut seen = 0;
                    while !over.load(SeqCst) {
                        gate.pass::<()>(|offset| {
                            own.store(offset, SeqCst);
                            Ok(())
                        })
                        .unwrap();
                        // In the guest: whoever else is there has what this one has, or this one left already.
                        let mine = own.load(SeqCst);
                        torn.fetch_add(usize::from(mine < seen), SeqCst);
                        seen = offsets.iter().map(|other| other.load(SeqCst)).max().unwrap_or(0);
                        torn.fetch_add(
                            usize::from(
                                seen > mine
                                    && !gate.is_shut.load(SeqCst)
                                    && own.load(SeqCst) < seen,
                            ),
                            SeqCst,
                        );
                    }
                });
            }
            for offset in 1..=200 {
                assert!(gate.step(offset, LIMIT, || {}, || {}));
                assert!(offsets.iter().all(|own| own.load(SeqCst) == offset));
            }
            over.store(true, SeqCst);
        });
        assert_eq!(torn.into_inner(), 0);
    }

    #[test]
    fn vcpu_that_does_not_come_keeps_the_others_for_the_limit_only() {
        let gate = Arc::new(Gate::default());
        let passed = Arc::new(AtomicBool::new(false));
        let (own, done) = (Arc::clone(&gate), Arc::clone(&passed));
        // One of the two is in the guest all the time.
        for _ in 0..2 {
            gate.join::<()>(|_| panic!("nothing was set")).unwrap();
        }
        let one = spawn(move || {
            while !done.load(SeqCst) {
                own.pass::<()>(|_| panic!("no new offset")).unwrap();
                sleep(Duration::from_micros(50));
            }
        });
        assert!(!gate.step(7, Duration::from_millis(20), || {}, || panic!("published")));
        passed.store(true, SeqCst);
        one.join().unwrap();
    }

    #[test]
    fn slice_without_vcpus_steps_at_once() {
        assert!(Gate::default().step(7, Duration::ZERO, || {}, || {}));
    }

    #[test]
    fn vcpu_that_starts_later_has_the_offset_of_the_others() {
        let gate = Gate::default();
        assert!(gate.step(7, Duration::ZERO, || {}, || {}));
        let set = AtomicU64::new(0);
        let own = |offset| {
            set.store(offset, SeqCst);
            Ok::<(), ()>(())
        };
        gate.join(own).unwrap();
        assert_eq!(set.into_inner(), 7);
        gate.leave();
        assert!(gate.step(8, Duration::ZERO, || {}, || {}), "nobody is left");
    }

    /// One that starts while the others are brought out must not stand for one that is still in the guest.
    #[test]
    fn vcpu_that_starts_during_a_step_waits_for_its_end() {
        let (gate, set) = (Gate::default(), AtomicU64::new(0));
        gate.join::<()>(|_| panic!("nothing was set")).unwrap();
        scope(|threads| {
            let (gate, set) = (&gate, &set);
            let mut late = None;
            let stepped = gate.step(
                7,
                Duration::from_millis(50),
                || {
                    late = Some(threads.spawn(|| {
                        gate.join::<()>(|_| panic!("nothing was set")).unwrap();
                        gate.pass::<()>(|offset| {
                            set.store(offset, SeqCst);
                            Ok(())
                        })
                        .unwrap();
                    }));
                },
                || panic!("published"),
            );
            assert!(!stepped, "the first is still in the guest");
            late.unwrap().join().unwrap();
        });
        assert_eq!(set.into_inner(), 0);
    }
}
