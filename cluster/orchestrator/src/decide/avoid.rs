//! Hosts where a VM could not start: it goes elsewhere for a while.
//!
//! ```text
//!   its start fails, and a host is to blame ──> that host is avoided for `avoid_ms`
//!     └─ there is room elsewhere: there;   there is none: where there is room. It is asked for otherwise when that changes
//!   it runs, is halted, or is no more ──> nothing is avoided, by its moves neither
//! ```
//! A host may lack an image, a tap or room that the ledger does not know of. Best fit would choose it again each time. What a host lacks
//! for all VMs is not found so, but said by its agent (`hosts.rs`).
//!
//! It is in memory only: with another leader a VM may try a host once more.

use super::machine::Orchestrator;
use scheduler::policy::Policy;
use scheduler::{HostId, Spec};
use state::{Name, Vm};

impl Orchestrator {
    /// A host has refused a part of a VM that starts, or its part has ended there.
    pub(crate) fn blame(&mut self, vm: &Name, host: &Name) {
        let until = self.now.ms.saturating_add(self.settings.avoid_ms);
        self.failed.entry(vm.clone()).or_default().hosts.insert(host.clone(), until);
    }

    /// Whether a VM that waits would not be asked for as it was.
    pub(crate) fn is_asked_for_otherwise(&mut self, vm: &Vm) -> bool {
        // One that has room by now is about to start.
        let waits =
            self.vm_ids.get(&vm.name).is_some_and(|id| self.scheduler.queue().contains(*id));
        if !waits || !self.failed.contains_key(&vm.name) {
            return false;
        }
        let avoid = self.wanted(vm).avoid;
        self.failed.get(&vm.name).is_some_and(|failed| failed.told != avoid)
    }

    /// Hosts that a VM avoids now, in the words of the scheduler.
    fn avoided(&self, vm: &Name) -> Vec<HostId> {
        let hosts = self.failed.get(vm).into_iter().flat_map(|failed| &failed.hosts);
        let now = hosts.filter(|(_, until)| **until > self.now.ms);
        now.filter_map(|(host, _)| self.heard.get(host)?.id).collect()
    }

    /// What a VM wants of the scheduler now.
    pub(crate) fn wanted(&mut self, vm: &Vm) -> Spec {
        let spec = super::care::spec(&vm.desired);
        let now = self.now.ms;
        let Some(failed) = self.failed.get_mut(&vm.name) else { return spec };
        failed.hosts.retain(|_, until| *until > now);
        let elsewhere = Spec { avoid: self.avoided(&vm.name), ..spec.clone() };
        let has_room = self.settings.choice.place(self.scheduler.cluster(), &elsewhere).is_ok();
        if has_room { elsewhere } else { spec }
    }
}
