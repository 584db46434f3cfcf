//! A VM is written down every so often, and a VM that has lost a slice goes on from what was written.
//!
//! ```text
//!   it runs, and the last try is long enough ago
//!      ─> WRITE: slice 0 has all of it written, under the operation's name ──> the checkpoint is recorded
//!      ─> DELETE: what is there beyond those that are kept                 ──> and is recorded no more
//!             refused, or the VM is over: given up as it is, and tried again later
//!
//!   a slice is lost ─> fenced ─> its next life goes on from the newest checkpoint, its memory behind it
//!                                  has ended soon, or before its guest ran ─> once more, all memory first
//!                                  once more ─> the one before ─> ... ─> none is left: from the newest again, after a longer rest each time
//! ```
//! Storage that does not answer, and a checkpoint that is damaged, look alike from here. So a VM of which something is written never begins
//! anew by itself; it does when its user halts it and has it run again.
//!
//! **A record comes after what it is about, and goes after it**: what is recorded was complete. One that could not be deleted to its end
//! is recorded still, and is the oldest.
//!
//! **All hosts see one folder of checkpoints**: each slice writes its part there, and whoever goes on reads all parts. Those of a VM that is to
//! be no more are deleted by any host. They are given up when each that is registered has refused: one may lack the folder, and another one may
//! be back later.
//!
//! **An end that its guest or its user wanted is not undone**: the next life begins anew then, and what was written before is history.

use super::call::{Call, Failure, Reply, Restore, Target, Written};
use super::machine::{Orchestrator, Purpose};
use super::objects::Stored;
use super::planted::PlantedBug;
use super::start::MOVES_BITS;
use super::work::{Turn, at};
use state::{
    Assignment, Checkpoint, GoesOn, Name, Object, Operation, RELEASED_MAX, RunStrategy, Uid, Verb,
    Vm,
};
use std::collections::BTreeMap;

const WRITE: usize = 0;
/// How often one is tried.
const TRIES: u32 = 2;
/// Those that are deleted at a time: each is a change of a commit.
const DISCARDED_MAX: usize = 32;
/// Tries that have failed of which what they have left is deleted.
const UNFINISHED_MAX: usize = 8;

/// The folder of a checkpoint, beside those of all others. What is left of a VM is found by its beginning.
fn folder(vm: &Vm, id: &Name) -> String {
    format!("{}-{id}", vm.uid)
}

impl Orchestrator {
    /// Checkpoints of a VM, the oldest first.
    pub fn checkpoints(&self, vm: &Name) -> impl DoubleEndedIterator<Item = &Checkpoint> {
        self.objects.checkpoints.get(vm).into_iter().flat_map(|all| all.values())
    }

    /// A VM that runs is written down, if it is time.
    pub(crate) fn write_down(&mut self, vm: &Vm, assignment: &Assignment) {
        let Some(policy) = vm.desired.checkpoint else { return };
        let (name, now) = (&vm.name, self.now.ms);
        let newest = self.checkpoints(name).next_back().map(|newest| newest.at);
        let age = newest.map_or(0, |at| self.now.unix.saturating_sub(at));
        let known = now.saturating_sub(age.saturating_mul(1000));
        let last = *self.written.entry(name.clone()).or_insert(known);
        let id = self.vm_ids.get(name);
        let moves =
            id.is_some_and(|id| self.scheduler.cluster().reservations_of(*id).next().is_some());
        let is_time = !moves && now.saturating_sub(last) >= policy.every_s.saturating_mul(1000);
        if !is_time || self.is_full() {
            return;
        }
        let others = self.works.keys().filter(|vm| self.is_written_down(vm)).count();
        if others >= self.settings.checkpoints_max {
            return;
        }
        // Of a host that has not answered it is not known where its folder is.
        let Some(first) = assignment.slices.first() else { return };
        let has_said = self.heard.get(&first.host).is_some_and(|heard| heard.report.is_some());
        if !has_said || self.is_out(&first.host) {
            return;
        }
        let name = name.clone();
        self.written.insert(name.clone(), now);
        let words = vec![
            "have all of it written down".to_owned(),
            format!("delete all but {} checkpoints", policy.keep),
        ];
        self.begin(assignment, Verb::Checkpoint, vm.life, words);
        if self.planted.has(PlantedBug::RecordedFirst)
            && let Some(operation) = self.operation(&name)
        {
            let written = Written { digest: "0".repeat(64), bytes: 0, cut: 0 };
            self.note_written(&operation, &written);
        }
        self.work(&name);
    }

    pub(crate) fn is_written_down(&self, vm: &Name) -> bool {
        self.operation(vm).is_some_and(|operation| operation.verb == Verb::Checkpoint)
    }

    pub(crate) fn turn_of_checkpoint(
        &self,
        operation: &Operation,
        assignment: &Assignment,
    ) -> Turn {
        let (Some(vm), Some(work), Some(first)) = (
            self.objects.vms.get(&operation.vm),
            self.works.get(&operation.vm),
            assignment.slices.first().map(|part| &part.host),
        ) else {
            return Turn::Wait;
        };
        // What is recorded is a step that is done, whatever has become of the VM.
        if work.done.contains(first) {
            return Turn::Next;
        }
        if vm.desired.deleted || vm.desired.run == RunStrategy::Halted {
            return Turn::Over("it is not wanted any more".to_owned());
        }
        if let Some(why) = self.why_ended(vm, assignment, None) {
            return Turn::Over(why);
        }
        if let Some(why) = &work.refusal {
            return Turn::Over(why.clone());
        }
        // Others wait for its place.
        if self.is_out(first) {
            return Turn::Over(format!(
                "host {first} does not answer, or obeys another orchestrator"
            ));
        }
        let ask = |what| Turn::Ask(vec![(first.clone(), what)]);
        if at(operation) == Some(WRITE) {
            return self.write(operation, vm, first).map_or(Turn::Wait, ask);
        }
        let too_many = self.too_many(vm).into_iter().take(DISCARDED_MAX);
        let folders: Vec<String> = too_many.chain(self.unfinished(vm)).collect();
        if folders.is_empty() { Turn::Next } else { ask(Call::Discard { folders }) }
    }

    fn write(&self, operation: &Operation, vm: &Vm, first: &Name) -> Option<Call> {
        let (_, report) = self.heard.get(first)?.report.as_ref()?;
        let path = format!("{}/{}", report.checkpoints, folder(vm, &operation.id));
        let target = Target { uid: vm.uid.clone(), slice: 0, life: operation.life };
        let newest = self.checkpoints(&vm.name).next_back();
        let released = newest.map(|newest| newest.released.clone()).unwrap_or_default();
        // The same one when another leader asks again: it is written once.
        let request = Uid::try_from(operation.request.clone()).ok()?;
        Some(Call::WriteDown { target, path, released, request })
    }

    /// Folders of those that are there beyond what is kept, the oldest first.
    fn too_many(&self, vm: &Vm) -> Vec<String> {
        let keep = vm.desired.checkpoint.map_or(1, |policy| policy.keep).max(1);
        let kept = usize::try_from(keep).unwrap_or(usize::MAX);
        let mut all: Vec<_> = self.checkpoints(&vm.name).map(|it| it.path.clone()).collect();
        if self.planted.has(PlantedBug::NewestDiscarded) {
            all.reverse();
        }
        all.truncate(all.len().saturating_sub(kept));
        all
    }

    /// Where something may be that was not written to its end: of the last tries that have failed.
    fn unfinished(&self, vm: &Vm) -> impl Iterator<Item = String> {
        let failed = |it: &&Operation| {
            it.verb == Verb::Checkpoint
                && it.vm == vm.name
                && !it.steps[WRITE].done
                && it.result.is_some()
                && self.checkpoints(&vm.name).all(|other| other.id != it.id)
        };
        let failed = self.objects.operations.values().rev().filter(failed);
        failed.take(UNFINISHED_MAX).map(|it| folder(vm, &it.id))
    }

    /// A VM was written down.
    pub(crate) fn note_written(&mut self, operation: &Operation, written: &Written) {
        let Some(mut vm) = self.objects.vms.get(&operation.vm).cloned() else { return };
        let checkpoint = Checkpoint {
            id: operation.id.clone(),
            vm: vm.name.clone(),
            generation: operation.generation,
            manifest: written.digest.clone(),
            path: folder(&vm, &operation.id),
            bytes: written.bytes,
            at: self.now.unix,
            cut: written.cut,
            released: Vec::new(),
        };
        if let Err(why) = checkpoint.check() {
            tracing::error!(vm = %vm.name, why, "what was written down cannot be");
            return;
        }
        self.put(Stored::Checkpoint(checkpoint));
        vm.observed.goes_on = None;
        self.put_vm(vm);
    }

    /// What there was too much of is deleted, or some of it.
    pub(crate) fn note_discarded(&mut self, name: &Name, host: &Name, folders: &[String]) {
        self.note_deleted(name, folders);
        let left = self.objects.vms.get(name).is_some_and(|vm| !self.too_many(vm).is_empty());
        if let Some(work) = self.works.get_mut(name).filter(|_| !left) {
            work.done.insert(host.clone());
        }
    }

    fn note_deleted(&mut self, name: &Name, folders: &[String]) {
        let gone = self.remove_checkpoints(name, folders);
        if gone.is_empty() {
            return;
        }
        let Some(mut newest) = self.checkpoints(name).next_back().cloned() else { return };
        newest.released.extend(gone.iter().map(|it| it.cut));
        // Of what is told to nobody disks keep a state for longer than they need.
        let surplus = newest.released.len().saturating_sub(RELEASED_MAX);
        newest.released.drain(..surplus);
        self.put(Stored::Checkpoint(newest));
    }

    /// Those in these folders are recorded no more.
    fn remove_checkpoints(&mut self, vm: &Name, folders: &[String]) -> Vec<Checkpoint> {
        let gone = self.checkpoints(vm).filter(|it| folders.contains(&it.path));
        let gone: Vec<Checkpoint> = gone.cloned().collect();
        for it in &gone {
            if let Some(all) = self.objects.checkpoints.get_mut(vm) {
                all.remove(&it.id);
            }
            self.deleted(it.key());
        }
        gone
    }

    /// A VM is to be no more, and nothing runs of it: what was written of it goes first, some at a time.
    pub(crate) fn forget_all_of(&mut self, vm: &Vm) {
        let is_asked =
            |it: &Purpose| matches!(it, Purpose::Discard { vm: other, .. } if *other == vm.name);
        if self.calls.values().any(is_asked) {
            return;
        }
        let all = self.checkpoints(&vm.name).take(DISCARDED_MAX).map(|it| it.path.clone());
        // Records of what was written go with it. Those of tries that have failed stay, so it is remembered that this was done.
        let left = self.unfinished(vm).filter(|_| !self.swept.contains(&vm.name));
        let folders: Vec<String> = all.chain(left).collect();
        let is_recorded = self.checkpoints(&vm.name).next().is_some();
        // It would wait for a host that may never be: where nothing is recorded, only a try that has failed may have left something.
        let nobody_can = self.objects.hosts.is_empty() && !is_recorded;
        if folders.is_empty() || nobody_can {
            self.written.remove(&vm.name);
            self.swept.remove(&vm.name);
            self.discarding.remove(&vm.name);
            self.objects.checkpoints.remove(&vm.name);
            return self.forget(&vm.name);
        }
        let is_up = |host: &&Name| !self.is_out(host);
        let tried = self.discarding.get(&vm.name);
        let is_tried = |host: &&Name| tried.is_some_and(|tried| tried.contains_key(*host));
        let next = self.objects.hosts.keys().filter(is_up).find(|host| !is_tried(host));
        if let Some(host) = next.cloned() {
            let (vm, what) = (vm.name.clone(), Call::Discard { folders: folders.clone() });
            self.call(&host.clone(), what, Purpose::Discard { vm, host, folders });
            return;
        }
        // Unless they are given up, all are asked again.
        let tried = self.discarding.remove(&vm.name).unwrap_or_default();
        match self.who_has_not_refused(&tried) {
            None => {
                let why = tried.into_values().flatten().next().unwrap_or_default();
                tracing::warn!(vm = %vm.name, why, "checkpoints of a VM that is deleted stay: no host deletes them");
                self.are_discarded(&vm.name, &folders);
            }
            Some(whom) => {
                let mut vm = vm.clone();
                vm.observed.why =
                    format!("its checkpoints are to be deleted, which waits for {whom}");
                self.put_vm(vm);
            }
        }
    }

    /// For whom checkpoints wait that somebody may delete yet. None if all have refused.
    fn who_has_not_refused(&self, tried: &BTreeMap<Name, Option<String>>) -> Option<String> {
        let has_refused = |host: &Name| tried.get(host).is_some_and(Option::is_some);
        let one_is_enough = self.planted.has(PlantedBug::RefusalDecides);
        if one_is_enough && tried.values().any(Option::is_some) {
            return None;
        }
        let hosts = &self.objects.hosts;
        let left = hosts.keys().find(|host| !has_refused(host)).map(|host| format!("host {host}"));
        left.or_else(|| hosts.is_empty().then(|| "a host: none is registered".to_owned()))
    }

    fn are_discarded(&mut self, vm: &Name, folders: &[String]) {
        self.discarding.remove(vm);
        self.remove_checkpoints(vm, folders);
        self.swept.insert(vm.clone());
        self.care(vm);
    }

    /// A host has deleted what was written of a VM that is to be no more, or cannot: then the next one is asked.
    pub(crate) fn discarded(
        &mut self,
        vm: &Name,
        host: &Name,
        folders: &[String],
        result: Result<Reply, Failure>,
    ) {
        let refusal = match result {
            Ok(_) => return self.are_discarded(vm, folders),
            Err(Failure::Refused(why)) => Some(why),
            Err(Failure::Unreachable(_) | Failure::Deposed) => None,
        };
        self.discarding.entry(vm.clone()).or_default().insert(host.clone(), refusal);
    }

    /// Those of the lives that went on one from the other.
    pub(crate) fn of_this_line<'a>(
        &'a self,
        vm: &'a Vm,
    ) -> impl DoubleEndedIterator<Item = &'a Checkpoint> {
        let line = vm.observed.line;
        self.checkpoints(&vm.name).filter(move |it| it.generation.0 >> MOVES_BITS >= line)
    }

    fn newest(&self, vm: &Vm, failed: u32) -> Option<GoesOn> {
        let newest = self.of_this_line(vm).next_back()?;
        Some(GoesOn { checkpoint: newest.id.clone(), tried: 0, failed })
    }

    /// What a VM goes on from that has lost a part: the newest, or if it had gone on from one just before, the next to try.
    pub(crate) fn after_a_loss(&self, vm: &Vm) -> Option<GoesOn> {
        if self.planted.has(PlantedBug::LossBeginsAnew) {
            return None;
        }
        let began = self.written.get(&vm.name).copied().unwrap_or(self.since);
        let is_soon = self.now.ms.saturating_sub(began) < self.settings.settled_ms;
        match &vm.observed.goes_on {
            Some(tried) if is_soon => self.next_to_go_on(vm, tried),
            _ => self.newest(vm, 0),
        }
    }

    /// Whether a start that fails now may do so because of what it was to go on from: its bootstrap was asked for, and no host is lost.
    pub(crate) fn has_tried(&self, start: &Operation) -> bool {
        let is_begun = start.verb == Verb::Start && start.steps.iter().take(2).all(|it| it.done);
        let assignment = self.objects.assignments.get(&start.vm);
        let has_lost = |it: &Assignment| it.hosts().into_iter().any(|host| self.is_out(host));
        is_begun && !assignment.is_some_and(has_lost)
    }

    /// What it goes on from after a try in vain: the same once more, then the one before, and after all of them the newest again.
    pub(crate) fn next_to_go_on(&self, vm: &Vm, tried: &GoesOn) -> Option<GoesOn> {
        let failed = tried.failed.saturating_add(1);
        if tried.tried + 1 < TRIES {
            return Some(GoesOn { tried: tried.tried + 1, failed, ..tried.clone() });
        }
        let before = self.of_this_line(vm).rfind(|it| it.id < tried.checkpoint);
        let before = before.map(|it| GoesOn { checkpoint: it.id.clone(), tried: 0, failed });
        before.or_else(|| self.newest(vm, failed))
    }

    /// What the life that starts goes on from.
    pub(crate) fn restore(&self, vm: &Vm) -> Option<Restore> {
        let goes_on = vm.observed.goes_on.as_ref()?;
        let checkpoint = self.objects.checkpoints.get(&vm.name)?.get(&goes_on.checkpoint)?;
        Some(Restore { folder: checkpoint.path.clone(), lazy: goes_on.tried == 0 })
    }
}
