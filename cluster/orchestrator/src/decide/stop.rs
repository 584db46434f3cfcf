//! A VM stops: for good, for a while, or to begin a new life. It only goes on: nothing of it is undone.
//!
//! ```text
//!   shut the guest down ─> fence: each host proves that nothing of this life runs there, or ever will ─> forget its slices
//!                            └ a host is lost: another slice was fenced, and so long ago that all others have stopped by themselves
//! ```
//! **Slices of one VM watch each other.** Whoever hears nothing of another one for a lease stops, and submits nothing to a disk or a
//! network before it has looked ([decision 58](../../../../docs/decisions/0058-a-lost-vm-goes-on-by-itself.md)). So the proof for one
//! slice is, a while later, a proof for all. A VM of one slice has nobody who watches it: its host is waited for, or its operator's word.
//!
//! **A slice that has left is watched by nobody.** People may have it leave at its VM's own socket, and the VM goes on without it. So the
//! slice that was fenced counts only if it was a part of its VM to the last.

use super::call::{Call, Phase, Report, SliceReport, Target};
use super::machine::Orchestrator;
use super::planted::PlantedBug;
use super::progress::Work;
use super::work::{Turn, at};
use state::{Assignment, Name, Operation, Verb, Vm, VmState};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

const SHUT_DOWN: usize = 0;
const FENCE: usize = 1;
/// Statuses of a slice that was in its VM when that ended, or was lost (docs/operations.md). One that has left ends with 0, as one that
/// was told that its VM is over.
const IN_ITS_VM: RangeInclusive<u32> = 3..=9;

/// Slices of a host that were a part of their VMs to the last, as far as it has said. `known` are those of the report before, if that is
/// not long ago.
pub(crate) fn members(report: &Report, known: &BTreeSet<Target>) -> BTreeSet<Target> {
    let is_member = |slice: &&SliceReport| match slice.phase {
        Phase::Runs => true,
        Phase::Ended(Some(status)) => IN_ITS_VM.contains(&status),
        // A fence ends it so, and an agent that has not started it never knows how it ended.
        Phase::Ended(None) => known.contains(&slice.target),
    };
    report.slices.iter().filter(is_member).map(|slice| slice.target.clone()).collect()
}

fn words(assignment: &Assignment) -> Vec<String> {
    let hosts: Vec<&str> = assignment.hosts().into_iter().map(Name::as_str).collect();
    let hosts = hosts.join(", ");
    vec![
        "shut the guest down".to_owned(),
        format!("have it never run again in this life on {hosts}"),
        format!("forget its slices on {hosts}"),
    ]
}

impl Orchestrator {
    /// Begins to end a VM.
    pub(crate) fn stop(&mut self, vm: &Vm, verb: Verb, state: VmState, why: &str) {
        let Some(assignment) = self.objects.assignments.get(&vm.name).cloned() else { return };
        let mut vm = vm.clone();
        vm.observed.state = state;
        if state != VmState::Lost {
            vm.observed.goes_on = None;
        }
        vm.observed.why = why.to_owned();
        vm.observed.generation = vm.generation;
        let name = vm.name.clone();
        self.begin(&assignment, verb, vm.life, words(&assignment));
        let first = assignment.slices.first();
        let runs = first.is_some_and(|part| self.is_member(&vm, 0, &part.host));
        if let Some(work) = self.works.get_mut(&vm.name) {
            work.is_first_asked = runs && verb != Verb::Restart;
        }
        self.put_vm(vm);
        self.running_since.remove(&name);
        if verb == Verb::Restart {
            self.note_end_of_run(&name);
        }
        self.work(&name);
    }

    pub(crate) fn turn_of_stop(&self, operation: &Operation, assignment: &Assignment) -> Turn {
        let Some(vm) = self.objects.vms.get(&operation.vm) else { return Turn::Wait };
        let Some(work) = self.works.get(&operation.vm) else { return Turn::Wait };
        let Some(at) = at(operation) else { return Turn::Wait };
        if at == SHUT_DOWN {
            return self.turn_of_shutdown(operation, vm, work, assignment);
        }
        if self.planted.has(PlantedBug::FenceSkipped) {
            return Turn::Next;
        }
        if at == FENCE && !self.knows_who_runs_it() {
            return Turn::Wait;
        }
        // What was removed has the operator's word that nothing runs there.
        let lacks =
            |host: &Name| !work.done.contains(host) && self.objects.hosts.contains_key(host);
        let mut calls = Vec::new();
        let fence = || Call::Fence { uid: vm.uid.clone(), life: operation.life };
        let forgets_former = self.planted.has(PlantedBug::FormerForgotten);
        let is_former = |host: &Name| assignment.slices.iter().all(|part| part.host != *host);
        for host in assignment.hosts() {
            // A lost host forgets when it comes back: no slice of an earlier life is left (`hosts.rs`). It is waited for only
            // where something of this life may run.
            let needs_proof = at == FENCE
                && assignment.may_run_on(host)
                && !self.has_stopped_by_itself(work, assignment);
            if !lacks(host) || (!needs_proof && self.is_out(host)) {
                continue;
            }
            if forgets_former && is_former(host) {
                continue;
            }
            let life = operation.life;
            let of = |slice| Target { uid: vm.uid.clone(), slice, life };
            let what = if at == FENCE {
                fence()
            } else {
                Call::Remove { targets: assignment.slices_on(host).map(of).collect() }
            };
            calls.push((host.clone(), what));
        }
        if at == FENCE {
            let others = self.run_it_too(operation, assignment).filter(|host| lacks(host));
            calls.extend(others.map(|host| (host.clone(), fence())));
        }
        if calls.is_empty() { Turn::Next } else { Turn::Ask(calls) }
    }

    /// A host has fenced: if its slice was one whose silence all others hear, they stop soon.
    pub(crate) fn note_fenced(&mut self, operation: &Operation, host: &Name) {
        let is_stop = matches!(operation.verb, Verb::Stop | Verb::Restart | Verb::Delete);
        let is_heard = |it: &Assignment| {
            // A slice may have come and not yet be a part of the VM, unless no move was cut off. The first one was from the beginning.
            let is_certain = it.former.iter().all(|former| former.ended);
            let mut here = it.numbered().filter(|(_, part)| part.host == *host);
            here.any(|(slice, _)| {
                (slice == 0 || is_certain) && self.is_missed(&operation.vm, slice, host)
            })
        };
        let heard = self.objects.assignments.get(&operation.vm).is_some_and(is_heard);
        let now = self.now.ms;
        if is_stop
            && at(operation) == Some(FENCE)
            && heard
            && let Some(work) = self.works.get_mut(&operation.vm)
        {
            work.fenced_at.get_or_insert(now);
        }
    }

    /// Whether a slice is a part of its VM, or was until it ended.
    fn is_member(&self, vm: &Vm, slice: u16, host: &Name) -> bool {
        let target = Target { uid: vm.uid.clone(), slice, life: vm.life };
        let heard = self.heard.get(host);
        // What a host has said before it was lost is old.
        heard.is_some_and(|heard| heard.members.contains(&target)) && !self.is_lost(host)
    }

    /// Whether the others of a VM that ends miss a slice of it that was fenced.
    fn is_missed(&self, name: &Name, slice: u16, host: &Name) -> bool {
        let (Some(vm), Some(work)) = (self.objects.vms.get(name), self.works.get(name)) else {
            return false;
        };
        let ends_it = slice == 0 && work.is_first_asked;
        let is_missed = ends_it || self.is_member(vm, slice, host);
        is_missed || self.planted.has(PlantedBug::LeaverIsMissed)
    }

    /// Whether slices on hosts that do not answer have surely stopped.
    fn has_stopped_by_itself(&self, work: &Work, assignment: &Assignment) -> bool {
        let rest =
            if self.planted.has(PlantedBug::LeaseIgnored) { 0 } else { self.settings.silence_ms };
        let is_long_ago = |at: u64| self.now.ms.saturating_sub(at) >= rest;
        // Of a move that was cut off both were parts of the VM.
        let left = assignment.former.iter().filter(|it| !it.ended).count();
        assignment.slices.len() + left > 1 && work.fenced_at.is_some_and(is_long_ago)
    }

    /// Until its host says that it has ended, or it had its time. A VM that lost a part cannot shut down.
    fn turn_of_shutdown(
        &self,
        operation: &Operation,
        vm: &Vm,
        work: &Work,
        assignment: &Assignment,
    ) -> Turn {
        let over = self.now.ms.saturating_sub(work.since) > self.settings.shutdown_ms;
        let Some(first) = assignment.slices.first() else { return Turn::Next };
        // What was removed has the operator's word; and where another slice has ended, nothing is left that could shut down.
        let is_gone = !self.objects.hosts.contains_key(&first.host)
            || self.why_ended(vm, assignment, None).is_some();
        let is_useless = operation.verb == Verb::Restart || is_gone;
        if over || is_useless || self.is_left_alone(&first.host) {
            return Turn::Next;
        }
        if self.is_lost(&first.host) {
            // Its agent may be back before the guest has had its time.
            return Turn::Wait;
        }
        let target = Target { uid: vm.uid.clone(), slice: 0, life: operation.life };
        if !work.done.contains(&first.host) {
            return Turn::Ask(vec![(first.host.clone(), Call::Stop { target })]);
        }
        let report = self.heard.get(&first.host).and_then(|heard| heard.report.as_ref());
        let Some((_, report)) = report.filter(|(call, _)| *call >= work.after) else {
            return Turn::Wait;
        };
        match report.slice(&target).map(|slice| slice.phase) {
            Some(Phase::Runs) => Turn::Wait,
            Some(Phase::Ended(_)) | None => Turn::Next,
        }
    }
}
