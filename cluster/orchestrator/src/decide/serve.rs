//! What the scheduler has decided.

use super::machine::Orchestrator;
use scheduler::{Effect, Input};

impl Orchestrator {
    pub(crate) fn serve(&mut self, decided: Effect) {
        match decided {
            Effect::Start { reservation, vm, decision, .. } => {
                // Its VM may be gone by now, or be wanted no more; the room is then given back.
                let Some(name) = self.vm_names.get(&vm).cloned() else { return };
                // The ledger says what is planned. What a host keeps is an operation's affair, which has its own times.
                if !self.decide(Input::Ready { reservation }) {
                    return;
                }
                self.start(&name, &decision);
                if !self.works.contains_key(&name) {
                    self.depart(&name);
                }
            }
            Effect::Waits { vm, refusal } => {
                let Some(name) = self.vm_names.get(&vm) else { return };
                let Some(mut vm) = self.objects.vms.get(name).cloned() else { return };
                vm.observed.why = match refusal {
                    scheduler::policy::Refusal::Behind(before) => {
                        let name = self.vm_names.get(&before);
                        name.map_or_else(
                            || refusal.to_string(),
                            |name| format!("it comes after {name}, which nobody passes now"),
                        )
                    }
                    other => other.to_string(),
                };
                self.put_vm(vm);
            }
            // It runs in the ledger, since it was `Ready`.
            Effect::Run { .. } => {}
            Effect::Move { reservation, step, .. } => self.planned.push_back((reservation, step)),
            // A move is told to be ready when it is done, and no reservation is left to expire.
            Effect::Flip { .. } | Effect::Expired { .. } | Effect::HandBack { .. } => {}
        }
    }
}
