//! Hosts where a VM could not start: it goes elsewhere for a while.
//!
//! ```text
//!   its start fails, and a host is to blame ──> that host is avoided for `avoid_ms`
//!     └─ there is room elsewhere: there;   there is none: where there is room, and nothing is avoided any more
//!   it runs, is halted, or is no more ──> nothing is avoided
//! ```
//! A host may lack an image, a tap or room that the ledger does not know of. Best fit would choose it again each time. What a host lacks
//! for all VMs is not found so, but said by its agent (`hosts.rs`).
//!
//! It is in memory only: with another leader a VM may try a host once more.

use super::machine::Orchestrator;
use scheduler::Spec;
use scheduler::policy::Policy;
use state::{Name, Vm};

impl Orchestrator {
    /// A host has refused a part of a VM that starts, or its part has ended there.
    pub(crate) fn blame(&mut self, vm: &Name, host: &Name) {
        let until = self.now.ms.saturating_add(self.settings.avoid_ms);
        self.failed.entry(vm.clone()).or_default().hosts.insert(host.clone(), until);
    }

    /// What a VM wants of the scheduler now.
    pub(crate) fn wanted(&mut self, vm: &Vm) -> Spec {
        let spec = super::care::spec(&vm.desired);
        let now = self.now.ms;
        let Some(failed) = self.failed.get_mut(&vm.name) else { return spec };
        failed.hosts.retain(|_, until| *until > now);
        let ids = failed.hosts.keys().filter_map(|host| self.heard.get(host)?.id);
        let elsewhere = Spec { avoid: ids.collect(), ..spec.clone() };
        if self.settings.choice.place(self.scheduler.cluster(), &elsewhere).is_ok() {
            return elsewhere;
        }
        failed.hosts.clear();
        spec
    }
}
