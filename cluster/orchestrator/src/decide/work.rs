//! An operation (a saga) that goes on: which step it is at, whom it waits for, and when it asks again.
//!
//! ```text
//!   begun ─> step 0 ─> step 1 ─> ... ─> done
//!               │ a host refuses, or it takes too long (only of a start)
//!               └─> undoing: fence, then give back ─> failed
//! ```
//! In a step each host is asked until it has said that it is done. What is in memory here is asked anew after a crash.

use super::call::{Call, Failure, Reply};
use super::ids::CallId;
use super::machine::{Orchestrator, Purpose};
use super::planted::PlantedBug;
use super::progress::Work;
use state::{Assignment, Name, Operation, Step, Uid, Verb};
use std::collections::BTreeSet;

/// What there is to do about an operation now.
pub(crate) enum Turn {
    /// These are to be asked, each for itself.
    Ask(Vec<(Name, Call)>),
    /// The step is done.
    Next,
    /// It waits.
    Wait,
    /// It cannot be done.
    Fail {
        /// Why.
        why: String,
        /// The host that could not do its part.
        blamed: Option<Name>,
    },
    /// A part of it is done: what is left is tried once more, a while later.
    Again,
    /// What it is about is over, or is to be.
    Over(String),
}

impl Turn {
    /// It cannot be done, and no host is to blame.
    pub(crate) fn fail(why: String) -> Self {
        Self::Fail { why, blamed: None }
    }
}

pub(crate) fn steps(words: Vec<String>) -> Vec<Step> {
    words.into_iter().map(|what| Step { what, done: false, undone: false }).collect()
}

/// Which step is to be done, if any is.
pub(crate) fn at(operation: &Operation) -> Option<usize> {
    operation.steps.iter().position(|step| !step.done)
}

/// A step that is refused is undone, with all before it.
fn may_fail(operation: &Operation) -> bool {
    // Before BRING: nothing has moved.
    let is_early = at(operation).is_some_and(|at| at + 3 < operation.steps.len());
    let is_early = operation.verb == Verb::Move && is_early;
    operation.undoing.is_none() && (operation.verb == Verb::Start || is_early)
}

impl Orchestrator {
    /// The last call that was made.
    pub(crate) fn last_call(&self) -> CallId {
        CallId(self.next_call)
    }

    /// Begins an operation about a VM, which has none.
    pub(crate) fn begin(
        &mut self,
        assignment: &Assignment,
        verb: Verb,
        life: u64,
        words: Vec<String>,
    ) {
        let number = (u128::from(self.term.0) << 64) | u128::from(self.next_operation);
        self.next_operation += 1;
        let digits = Uid::new(number);
        let Ok(id) = Name::new(digits.as_str()) else { return };
        let operation = Operation {
            id: id.clone(),
            request: digits.as_str().to_owned(),
            vm: assignment.vm.clone(),
            verb,
            life,
            generation: assignment.generation,
            term: self.term,
            steps: steps(words),
            undoing: None,
            began: self.now.unix,
            result: None,
        };
        tracing::info!(operation = %id, vm = %assignment.vm, ?verb, life, "an operation begins");
        self.put_operation(operation);
        let work = Work::new(id, self.now, self.last_call());
        self.works.insert(assignment.vm.clone(), work);
    }

    pub(crate) fn operation(&self, vm: &Name) -> Option<Operation> {
        let work = self.works.get(vm)?;
        self.objects.operations.get(&work.id).cloned()
    }

    /// Goes on with what is done to a VM, as far as it can now.
    pub(crate) fn work(&mut self, vm: &Name) {
        // Each turn of the loop ends a step, or the operation.
        loop {
            let Some(operation) = self.operation(vm) else { return };
            let turn = self.next_turn(&operation);
            match turn {
                Turn::Wait => return,
                Turn::Ask(calls) => return self.ask_hosts(vm, calls),
                Turn::Next if operation.undoing.is_some() => self.undo_next(&operation),
                Turn::Next => self.step_done(operation),
                Turn::Fail { why, blamed } => {
                    if let Some(host) = blamed {
                        self.blame(vm, &host);
                    }
                    self.undo(&operation, &why);
                }
                Turn::Again => return self.try_again(vm),
                Turn::Over(why) => return self.abandon(operation, why),
            }
        }
    }

    fn next_turn(&self, operation: &Operation) -> Turn {
        let Some(assignment) = self.objects.assignments.get(&operation.vm) else {
            return Turn::Wait;
        };
        match operation.verb {
            Verb::Start if operation.undoing.is_some() => self.turn_of_undo(operation, assignment),
            Verb::Start => self.turn_of_start(operation, assignment),
            Verb::Move => self.turn_of_move(operation, assignment),
            Verb::Checkpoint => self.turn_of_checkpoint(operation, assignment),
            Verb::Stop | Verb::Restart | Verb::Delete => self.turn_of_stop(operation, assignment),
        }
    }

    /// Asks those that have not done it and are not being asked.
    fn ask_hosts(&mut self, vm: &Name, calls: Vec<(Name, Call)>) {
        let now = self.now.ms;
        let Some(work) = self.works.get(vm) else { return };
        if work.again > now {
            return;
        }
        let asking: BTreeSet<Name> =
            work.asking.keys().chain(work.former.keys()).cloned().collect();
        for (host, what) in calls {
            if asking.contains(&host) || self.is_left_alone(&host) {
                continue;
            }
            let id = self.call(&host, what, Purpose::Work { vm: vm.clone(), host: host.clone() });
            if let Some(work) = self.works.get_mut(vm) {
                work.asking.insert(host, id);
            }
        }
    }

    fn try_again(&mut self, vm: &Name) {
        let again = self.now.ms.saturating_add(self.settings.retry_ms);
        if let Some(work) = self.works.get_mut(vm) {
            (work.refusal, work.places, work.again) = (None, None, again);
            work.tried += 1;
        }
    }

    fn step_done(&mut self, mut operation: Operation) {
        let Some(at) = at(&operation) else { return };
        operation.steps[at].done = true;
        let (now, after) = (self.now, self.last_call());
        if let Some(work) = self.works.get_mut(&operation.vm) {
            work.turn(now, after);
        }
        if self::at(&operation).is_some() {
            self.put_operation(operation);
        } else {
            self.finish(operation);
        }
    }

    /// A host has answered an operation.
    pub(crate) fn worked(
        &mut self,
        vm: &Name,
        id: CallId,
        host: &Name,
        result: Result<Reply, Failure>,
    ) {
        let retry = self.now.ms.saturating_add(self.settings.retry_ms);
        let result = match result {
            // It would say of anything that it is over. A refusal proves nothing, and undoes or gives up only what is undone or given up for
            // such a host anyway.
            Ok(_) if self.knows_nothing(host) => {
                Err(Failure::Unreachable("its agent has a new journal".to_owned()))
            }
            result => result,
        };
        let Some(operation) = self.operation(vm) else { return };
        let Some(work) = self.works.get_mut(vm) else { return };
        if work.asking.get(host) != Some(&id) {
            if work.former.get(host) == Some(&id) {
                work.former.remove(host);
                self.work(vm);
            }
            return;
        }
        work.asking.remove(host);
        match result {
            Ok(Reply::Ensured(address)) => {
                work.addresses.insert(host.clone(), address);
                work.done.insert(host.clone());
            }
            Ok(Reply::Done) => {
                work.done.insert(host.clone());
                self.note_fenced(&operation, host);
            }
            Ok(Reply::Vm(super::call::VmSight::Runs)) => drop(work.done.insert(host.clone())),
            Ok(Reply::Vm(super::call::VmSight::Rests) | Reply::Report(_)) => work.again = retry,
            Err(Failure::Unreachable(why)) => {
                tracing::debug!(%host, why, "a host is asked again");
                work.again = retry;
                if self.planted.has(PlantedBug::SilenceIsProof) {
                    work.done.insert(host.clone());
                }
            }
            Ok(Reply::Places(places)) => {
                // If they are not where they should be, they are asked for once more a while later.
                work.again = retry;
                work.places = Some(places);
            }
            Ok(Reply::Failed(why)) => work.refusal = Some(why),
            Ok(Reply::Written(written)) => {
                work.done.insert(host.clone());
                self.note_written(&operation, &written);
            }
            Ok(Reply::Discarded(folders)) => self.note_discarded(vm, host, &folders),
            Err(Failure::Refused(why)) => {
                work.again = retry;
                if operation.verb == Verb::Checkpoint {
                    work.refusal = Some(why);
                } else if may_fail(&operation) {
                    if operation.verb == Verb::Start {
                        self.blame(vm, host);
                    }
                    self.undo(&operation, &format!("host {host}: {why}"));
                } else {
                    // What only goes on is asked again: somebody has to see to it.
                    tracing::warn!(%host, why, operation = %operation.id, "a host refuses to end what is over");
                }
            }
            // It is heard before.
            Err(Failure::Deposed) => {}
        }
        self.work(vm);
    }
}
