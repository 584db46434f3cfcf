//! What is to be done about a VM, by what is wanted and what is seen. It may be asked at any time, and any number of times.

use super::call::{Phase, Target};
use super::machine::Orchestrator;
use super::planted::PlantedBug;
use scheduler::{Class, Resources, Spec};
use state::{Assignment, Name, RunStrategy, SharingClass, Verb, Vm, VmDesired, VmState};
use std::sync::Arc;

/// Statuses of the first slice (docs/operations.md): the guest has reset itself, or its kernel has panicked.
const BOOTS: [u32; 2] = [3, 4];
/// Its time is over, somebody has stopped it at its socket, or it goes on elsewhere as another life.
const ENDED: [u32; 3] = [7, 8, 9];

/// What has become of a VM that runs.
enum Fate {
    Runs,
    /// Its guest wants to boot, or has panicked: nothing of it was lost.
    Boots(String),
    /// Its guest has ended it.
    Over(String),
    /// It has ended otherwise, or a part of it is gone.
    Lost(String),
}

/// What a VM wants, in the words of the scheduler.
pub(crate) fn spec(desired: &VmDesired) -> Spec {
    let class = match desired.class {
        SharingClass::Independent => Class::Independent,
        SharingClass::Requests => Class::Requests,
        SharingClass::Default => Class::Default,
        SharingClass::Shared => Class::Shared,
    };
    let units = u32::try_from(desired.memory_mib / 2).unwrap_or(u32::MAX);
    let mut spec = Spec::new(Resources::new(u32::from(desired.vcpus), units), class);
    spec.slices_max = desired.slices_max.unwrap_or(spec.slices_max);
    spec
}

impl Orchestrator {
    pub(crate) fn care(&mut self, name: &Name) {
        let Some(vm) = self.objects.vms.get(name).cloned() else { return };
        if self.works.contains_key(name) {
            // It looks itself whether it is still wanted.
            return self.work(name);
        }
        let assignment = self.objects.assignments.get(name).cloned();
        let VmDesired { deleted, run, .. } = vm.desired;
        match assignment {
            Some(_) if deleted => {
                self.stop(&vm, Verb::Delete, VmState::Stopping, "it is being deleted");
            }
            None if deleted => self.forget_all_of(&vm),
            Some(_) if run == RunStrategy::Halted => {
                self.stop(&vm, Verb::Stop, VmState::Stopping, "it is to be halted");
            }
            None if run == RunStrategy::Halted => self.rest(vm),
            Some(assignment) => self.watch(&vm, &assignment),
            None => self.want(vm),
        }
    }

    /// It does not run, as it is wanted.
    fn rest(&mut self, mut vm: Vm) {
        self.depart(&vm.name);
        self.forget_runs(&vm.name);
        vm.observed.state = VmState::Stopped;
        vm.observed.generation = vm.generation;
        vm.observed.why = "it is halted".to_owned();
        vm.observed.goes_on = None;
        self.put_vm(vm);
    }

    /// It is to run, and has no place.
    fn want(&mut self, mut vm: Vm) {
        if vm.observed.state == VmState::Stopped && vm.observed.generation == vm.generation {
            // It has run as often as it was to.
            return;
        }
        if self.vm_ids.contains_key(&vm.name) {
            return;
        }
        if self.resting.get(&vm.name).is_some_and(|until| *until > self.now.ms) {
            return;
        }
        self.resting.remove(&vm.name);
        vm.observed.state = VmState::Waiting;
        if !self.may_begin(&mut vm) {
            return;
        }
        let id = scheduler::VmId(self.next_vm);
        self.next_vm += 1;
        self.vm_ids.insert(vm.name.clone(), id);
        self.vm_names.insert(id, vm.name.clone());
        let spec = Arc::new(spec(&vm.desired));
        if !self.decide(scheduler::Input::Arrive { vm: id, spec }) {
            self.vm_ids.remove(&vm.name);
            self.vm_names.remove(&id);
            let again = self.now.ms.saturating_add(self.settings.again_ms);
            self.resting.insert(vm.name.clone(), again);
        }
    }

    /// It runs, as far as is known.
    fn watch(&mut self, vm: &Vm, assignment: &Assignment) {
        let is_seen = vm.observed.generation == vm.generation;
        match self.fate(vm, assignment, None) {
            Fate::Runs if is_seen => self.write_down(vm, assignment),
            Fate::Runs => {
                let mut vm = vm.clone();
                vm.observed.generation = vm.generation;
                self.put_vm(vm);
            }
            Fate::Over(why) if vm.desired.run == RunStrategy::Always => {
                self.stop(vm, Verb::Restart, VmState::Stopping, &why);
            }
            Fate::Boots(why) if vm.desired.run != RunStrategy::Once => {
                self.stop(vm, Verb::Restart, VmState::Stopping, &why);
            }
            Fate::Over(why) | Fate::Boots(why) => {
                self.stop(vm, Verb::Stop, VmState::Stopping, &why);
            }
            Fate::Lost(why) => {
                let goes_on = self.after_a_loss(vm);
                let is_over = vm.desired.run == RunStrategy::Once && goes_on.is_none();
                let mut vm = vm.clone();
                vm.observed.goes_on = goes_on;
                let verb = if is_over { Verb::Stop } else { Verb::Restart };
                self.stop(&vm, verb, VmState::Lost, &why);
            }
        }
    }

    /// Why it runs no more, if so. One slice is not looked at: it is about to join, and if it is lost then, the others say so.
    pub(crate) fn why_ended(
        &self,
        vm: &Vm,
        assignment: &Assignment,
        but: Option<u16>,
    ) -> Option<String> {
        match self.fate(vm, assignment, but) {
            Fate::Runs => None,
            Fate::Over(why) | Fate::Boots(why) | Fate::Lost(why) => Some(why),
        }
    }

    fn fate(&self, vm: &Vm, assignment: &Assignment, but: Option<u16>) -> Fate {
        let slices = || assignment.numbered().filter(|(number, _)| Some(*number) != but);
        for host in slices().map(|(_, part)| &part.host) {
            if !self.objects.hosts.contains_key(host) {
                return Fate::Lost(format!("host {host}, which had a part of it, was removed"));
            }
            if self.is_lost(host) {
                return Fate::Lost(format!("host {host}, which has a part of it, is lost"));
            }
        }
        let since = self.running_since.get(&vm.name).copied();
        for (slice, part) in slices() {
            let target = Target { uid: vm.uid.clone(), slice, life: vm.life };
            let heard = self.heard.get(&part.host).and_then(|heard| heard.report.as_ref());
            let Some((call, report)) = heard else { continue };
            match report.slice(&target) {
                Some(found) => match found.phase {
                    Phase::Runs => {}
                    Phase::Ended(Some(0)) if slice == 0 => {
                        return Fate::Over("its guest has ended it".to_owned());
                    }
                    Phase::Ended(Some(status)) if slice == 0 && BOOTS.contains(&status) => {
                        return Fate::Boots(found.cause.clone());
                    }
                    Phase::Ended(Some(status)) if slice == 0 && ENDED.contains(&status) => {
                        return Fate::Over(found.cause.clone());
                    }
                    // It was told that the VM is over. Why, the first slice says, whose host is asked as well.
                    Phase::Ended(Some(0)) if self.first_runs(vm, assignment) => {}
                    Phase::Ended(_) => {
                        let (host, cause) = (&part.host, &found.cause);
                        return Fate::Lost(format!("slice {slice} on {host} has ended: {cause}"));
                    }
                },
                // What was asked before it ran does not know of it.
                None if since.is_some_and(|since| *call >= since) => {
                    return Fate::Lost(format!("slice {slice} is not on {} any more", part.host));
                }
                None => {}
            }
        }
        Fate::Runs
    }

    /// As far as its host has said: it will say more.
    fn first_runs(&self, vm: &Vm, assignment: &Assignment) -> bool {
        let target = Target { uid: vm.uid.clone(), slice: 0, life: vm.life };
        let host = assignment.slices.first().and_then(|part| self.heard.get(&part.host));
        let report = host.and_then(|heard| heard.report.as_ref());
        let phase = report.and_then(|(_, report)| report.slice(&target)).map(|it| it.phase);
        phase == Some(Phase::Runs)
    }

    /// Whether anybody but the machine itself may know that it forgets; only with a planted bug.
    pub(crate) fn forgets_requests(&self) -> bool {
        self.planted.has(PlantedBug::RequestForgotten)
    }
}
