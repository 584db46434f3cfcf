//! A VM is written down every so often, and a VM that has lost a slice goes on from what was written.
//!
//! ```text
//!   it runs, and the last try is long enough ago
//!      ─> WRITE: slice 0 has all of it written, under the operation's name ──> the checkpoint is recorded
//!      ─> DELETE: what is there beyond those that are kept                 ──> and is recorded no more
//!             refused, or the VM is over: given up as it is, and tried again later
//!
//!   a slice is lost ─> fenced ─> its next life goes on from the newest checkpoint, its memory behind it
//!                                  ended, before its guest ran ─> once more, all memory first
//!                                  once more                   ─> the one before ─> ... ─> none is left: it begins anew
//! ```
//! **A record comes after what it is about, and goes after it**: what is recorded was complete. One that could not be deleted to its end
//! is recorded still, and is the oldest.
//!
//! **All hosts see one folder of checkpoints**: each slice writes its part there, and whoever goes on reads all parts.
//!
//! An end that its guest or its user wanted is not undone: the next life begins anew then.

use super::call::{Call, Restore, Target, Written};
use super::machine::{Orchestrator, Purpose};
use super::objects::Stored;
use super::planted::PlantedBug;
use super::work::{Turn, at};
use state::{
    Assignment, Checkpoint, GoesOn, Name, Object, Operation, RELEASED_MAX, RunStrategy, Uid, Verb,
    Vm,
};

const WRITE: usize = 0;
/// How often one is tried.
const TRIES: u32 = 2;
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
        let last = *self.written.entry(name.clone()).or_insert(now);
        let is_time = now.saturating_sub(last) >= policy.every_s.saturating_mul(1000);
        let others = self.works.keys().filter(|vm| self.is_written_down(vm)).count();
        if !is_time || others >= self.settings.checkpoints_max || self.is_full() {
            return;
        }
        // Of a host that has not answered it is not known where its folder is.
        let Some(first) = assignment.slices.first() else { return };
        if self.heard.get(&first.host).is_none_or(|heard| heard.report.is_none()) {
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

    fn is_written_down(&self, vm: &Name) -> bool {
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
        if vm.desired.deleted || vm.desired.run == RunStrategy::Halted {
            return Turn::Over("it is not wanted any more".to_owned());
        }
        if let Some(why) = self.why_ended(vm, assignment, None) {
            return Turn::Over(why);
        }
        if work.done.contains(first) {
            return Turn::Next;
        }
        if let Some(why) = &work.refusal {
            return Turn::Over(why.clone());
        }
        let ask = |what| Turn::Ask(vec![(first.clone(), what)]);
        if at(operation) == Some(WRITE) {
            return self.write(operation, vm, first).map_or(Turn::Wait, ask);
        }
        let too_many = self.too_many(vm);
        let folders = too_many.into_iter().map(|it| it.path);
        let folders: Vec<String> = folders.chain(self.unfinished(vm)).collect();
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

    /// Those that are there beyond what is kept, the oldest first.
    fn too_many(&self, vm: &Vm) -> Vec<Checkpoint> {
        let keep = vm.desired.checkpoint.map_or(1, |policy| policy.keep).max(1);
        let all: Vec<_> = self.checkpoints(&vm.name).collect();
        let kept = usize::try_from(keep).unwrap_or(usize::MAX);
        let many = all.len().saturating_sub(kept);
        if self.planted.has(PlantedBug::NewestDiscarded) {
            return all.into_iter().rev().take(many).cloned().collect();
        }
        all.into_iter().take(many).cloned().collect()
    }

    /// Where something may be that was not written to its end: of the last tries that have failed.
    fn unfinished(&self, vm: &Vm) -> impl Iterator<Item = String> {
        let failed = |it: &&Operation| {
            it.verb == Verb::Checkpoint
                && it.vm == vm.name
                && !it.steps[WRITE].done
                && it.result.is_some()
        };
        let failed = self.objects.operations.values().rev().filter(failed);
        failed.take(UNFINISHED_MAX).map(|it| folder(vm, &it.id))
    }

    /// A VM was written down.
    pub(crate) fn note_written(&mut self, operation: &Operation, written: &Written) {
        let Some(vm) = self.objects.vms.get(&operation.vm) else { return };
        let checkpoint = Checkpoint {
            id: operation.id.clone(),
            vm: vm.name.clone(),
            generation: operation.generation,
            manifest: written.digest.clone(),
            path: folder(vm, &operation.id),
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
    }

    /// What there was too much of is deleted.
    pub(crate) fn note_deleted(&mut self, name: &Name, folders: &[String]) {
        let gone = self.checkpoints(name).filter(|it| folders.contains(&it.path));
        let gone: Vec<Checkpoint> = gone.cloned().collect();
        gone.iter().for_each(|it| self.remove_checkpoint(it));
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

    fn remove_checkpoint(&mut self, it: &Checkpoint) {
        if let Some(all) = self.objects.checkpoints.get_mut(&it.vm) {
            all.remove(&it.id);
            if all.is_empty() {
                self.objects.checkpoints.remove(&it.vm);
            }
        }
        self.deleted(it.key());
    }

    /// A VM is no more: nothing goes on from what was written of it. What no host can be asked to delete stays.
    pub(crate) fn forget_checkpoints(&mut self, vm: &Vm) {
        self.written.remove(&vm.name);
        let all: Vec<Checkpoint> = self.checkpoints(&vm.name).cloned().collect();
        all.iter().for_each(|it| self.remove_checkpoint(it));
        let folders = all.into_iter().map(|it| it.path);
        let folders: Vec<String> = folders.chain(self.unfinished(vm)).collect();
        let host = self.objects.hosts.keys().find(|host| !self.is_lost(host)).cloned();
        if let Some(host) = host.filter(|_| !folders.is_empty()) {
            self.call(&host, Call::Discard { folders }, Purpose::Nobody);
        }
    }

    /// What a VM goes on from that has lost a part.
    pub(crate) fn newest(&self, name: &Name) -> Option<GoesOn> {
        let newest = self.checkpoints(name).next_back()?;
        if self.planted.has(PlantedBug::LossBeginsAnew) {
            return None;
        }
        Some(GoesOn { checkpoint: newest.id.clone(), tried: 0 })
    }

    /// Whether a start that has failed may have done so because of what it was to go on from: its bootstrap was asked for, and no host
    /// was lost.
    pub(crate) fn has_tried(&self, start: &Operation) -> bool {
        let is_begun = start.verb == Verb::Start && start.steps.iter().take(2).all(|it| it.done);
        let assignment = self.objects.assignments.get(&start.vm);
        let has_lost = |it: &Assignment| it.hosts().into_iter().any(|host| self.is_lost(host));
        is_begun && !assignment.is_some_and(has_lost)
    }

    /// What it goes on from after a try in vain: the same once more, then the one before. None if none is left.
    pub(crate) fn next_to_go_on(&self, name: &Name, tried: &GoesOn) -> Option<GoesOn> {
        if tried.tried + 1 < TRIES {
            return Some(GoesOn { tried: tried.tried + 1, ..tried.clone() });
        }
        let before = self.checkpoints(name).rfind(|it| it.id < tried.checkpoint)?;
        Some(GoesOn { checkpoint: before.id.clone(), tried: 0 })
    }

    /// What the life that starts goes on from.
    pub(crate) fn restore(&self, vm: &Vm) -> Option<Restore> {
        let goes_on = vm.observed.goes_on.as_ref()?;
        let checkpoint = self.objects.checkpoints.get(&vm.name)?.get(&goes_on.checkpoint)?;
        Some(Restore { folder: checkpoint.path.clone(), lazy: goes_on.tried == 0 })
    }
}
