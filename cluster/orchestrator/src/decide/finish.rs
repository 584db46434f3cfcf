//! An operation is over, and what follows for its VM.

use super::machine::Orchestrator;
use super::objects::Stored;
use state::{Name, Object, Operation, OperationResult, Verb, VmState};

impl Orchestrator {
    /// All of its steps are done, or undone.
    pub(crate) fn finish(&mut self, mut operation: Operation) {
        let name = operation.vm.clone();
        operation.result = Some(match operation.undoing.take() {
            Some(why) => OperationResult::Failed { why },
            None => OperationResult::Done,
        });
        self.works.remove(&name);
        let result = operation.result.clone();
        let (verb, ended) = (operation.verb, operation.clone());
        self.put_operation(operation);
        let Some(mut vm) = self.objects.vms.get(&name).cloned() else { return };
        match (verb, result) {
            (Verb::Start, Some(OperationResult::Done)) => {
                vm.observed.state = VmState::Running;
                let after = self.last_call();
                self.running_since.insert(name.clone(), after);
                self.written.insert(name.clone(), self.now.ms);
                self.note_run(&name);
                if let Some(from) = &vm.observed.goes_on {
                    vm.observed.why = format!("it has gone on from checkpoint {}", from.checkpoint);
                }
                self.put_vm(vm);
            }
            // What was written of it goes next.
            (Verb::Delete, _) => self.unassign(&name),
            (Verb::Checkpoint, _) => {}
            (Verb::Move, _) => {
                self.move_is_over(&mut vm, &ended);
                self.put_vm(vm);
            }
            (verb, result) => {
                self.unassign(&name);
                // Nothing of this life ever runs again.
                vm.life += 1;
                vm.observed.assignment = None;
                vm.observed.state = VmState::Waiting;
                match (verb, result) {
                    // What is wanted may have changed since it began to stop: then it does not stay so.
                    (Verb::Stop, _) => {
                        vm.observed.state = VmState::Stopped;
                        self.forget_runs(&name);
                    }
                    (_, Some(OperationResult::Failed { why })) => {
                        vm.observed.why =
                            format!("its start has failed, and is tried again: {why}");
                        self.rest_after_a_failure(&vm);
                    }
                    _ => self.rest_after_a_run(&mut vm),
                }
                self.put_vm(vm);
            }
        }
        self.care(&name);
    }

    /// It has no place any more.
    fn unassign(&mut self, name: &Name) {
        if let Some(assignment) = self.objects.assignments.remove(name) {
            self.deleted(assignment.key());
        }
        self.depart(name);
    }

    /// It is no more.
    pub(crate) fn forget(&mut self, name: &Name) {
        self.unassign(name);
        self.forget_runs(name);
        self.running_since.remove(name);
        if let Some(vm) = self.objects.vms.remove(name) {
            self.deleted(Stored::Vm(vm.clone()).key());
            if let Some(secret) = self.objects.secrets.remove(&vm.uid) {
                self.deleted(secret.key());
            }
        }
    }

    /// The scheduler knows it no more.
    pub(crate) fn depart(&mut self, name: &Name) {
        if let Some(id) = self.vm_ids.remove(name) {
            self.vm_names.remove(&id);
            self.decide(scheduler::Input::Depart { vm: id });
        }
    }
}
