//! What is to be done about a VM, by what is wanted and what is seen. It may be asked at any time, and any number of times.

use super::fate::Fate;
use super::machine::Orchestrator;
use super::planted::PlantedBug;
use scheduler::{Class, Resources, Spec};
use state::{Assignment, Name, RunStrategy, SharingClass, Verb, Vm, VmDesired, VmState};
use std::sync::Arc;

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
            self.work(name);
            return self.show_whether_it_is_heard(name);
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
            if !self.is_asked_for_otherwise(&vm) {
                return;
            }
            // What it avoided is another by now.
            self.depart(&vm.name);
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
        let spec = Arc::new(self.wanted(&vm));
        if let Some(failed) = self.failed.get_mut(&vm.name) {
            failed.told.clone_from(&spec.avoid);
        }
        if !self.decide(scheduler::Input::Arrive { vm: id, spec }) {
            self.vm_ids.remove(&vm.name);
            self.vm_names.remove(&id);
            let again = self.now.ms.saturating_add(self.settings.again_ms);
            self.resting.insert(vm.name.clone(), again);
        }
    }

    /// It runs, as far as is known.
    fn watch(&mut self, vm: &Vm, assignment: &Assignment) {
        let is_noted = vm.observed.generation == vm.generation;
        match self.fate(vm, assignment, None) {
            Fate::Runs { is_seen: true } if vm.observed.state == VmState::Lost => {
                self.note_heard_again(vm);
            }
            Fate::Runs { .. } if is_noted => self.write_down(vm, assignment),
            Fate::Runs { .. } => self.note(vm, vm.observed.state, &vm.observed.why),
            Fate::Unheard(why) => self.note(vm, VmState::Lost, &why),
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

    /// A VM that moves is not watched: the move looks whether it is over, and waits for hosts that are silent.
    fn show_whether_it_is_heard(&mut self, name: &Name) {
        let moves = self.operation(name).is_some_and(|it| it.verb == Verb::Move);
        let Some(vm) = self.objects.vms.get(name).filter(|_| moves).cloned() else { return };
        let Some(assignment) = self.objects.assignments.get(name) else { return };
        // A newcomer says nothing of a VM that it is no part of.
        let newcomer = self.course(name).filter(|course| course.before.is_none());
        let but = newcomer.map(|course| course.to);
        match (self.fate(&vm, assignment, but), vm.observed.state) {
            (Fate::Unheard(why), VmState::Running | VmState::Lost) => {
                self.note(&vm, VmState::Lost, &why);
            }
            (Fate::Runs { is_seen: true }, VmState::Lost) => self.note_heard_again(&vm),
            _ => {}
        }
    }

    fn note_heard_again(&mut self, vm: &Vm) {
        self.note(vm, VmState::Running, "it has run on while nothing was heard of it");
    }

    /// How it is. Nothing is done about it.
    fn note(&mut self, vm: &Vm, state: VmState, why: &str) {
        let mut vm = vm.clone();
        vm.observed.generation = vm.generation;
        (vm.observed.state, vm.observed.why) = (state, why.to_owned());
        self.put_vm(vm);
    }

    /// Whether anybody but the machine itself may know that it forgets; only with a planted bug.
    pub(crate) fn forgets_requests(&self) -> bool {
        self.planted.has(PlantedBug::RequestForgotten)
    }
}
