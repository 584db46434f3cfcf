//! Which host an agent is of. Two names of one agent (its socket and its address over TLS, say) would have its cores counted twice.
//!
//! ```text
//!   a name is registered ── at an address that another one has ──> refused
//!       └─ its agent says which it is ── nobody else's ──> it is this host's, and is written down
//!                                     ├─ another host's ─> not heard: as if nobody had answered, and that is told
//!                                     └─ another one than before, while VMs are there and the host has not started anew ─> the same
//! ```
//! **An agent with a new journal** knows nothing of slices that an agent before it has started. They may run on, and it would confirm that they
//! do not: their VM would begin once more, beside them.
//!
//! What tells agents apart is the identity of their journals, which they keep as long as they know their slices. How an agent calls itself
//! may differ from the name of its host here; that is told too, and is no reason to refuse it.

use super::ask::Refusal;
use super::call::{Phase, Report, Target};
use super::machine::Orchestrator;
use super::planted::PlantedBug;
use state::{Assignment, Name, Uid};

const NEW_JOURNAL: &str = "its agent has a new journal and knows nothing of slices that were started before: it is not heard. \
                           Give it its journal back, or start the host anew; or end these slices, tessera host remove --gone, and register it again";

impl Orchestrator {
    /// Nobody else is known at this address.
    pub(crate) fn check_address(&self, agent: &str) -> Result<(), Refusal> {
        match self.objects.hosts.values().find(|host| host.desired.agent == agent) {
            Some(host) => {
                Err(Refusal::AgentKnown { host: host.name.clone(), agent: agent.to_owned() })
            }
            None => Ok(()),
        }
    }

    /// Whether the agent that has answered for a host is another one's.
    pub(crate) fn is_of_another(&mut self, name: &Name, report: &Report) -> bool {
        let owner = self.objects.host_of_agent(&report.agent).filter(|owner| *owner != name);
        let owner = owner.cloned();
        let Some(heard) = self.heard.get_mut(name) else { return false };
        if let Some(owner) = &owner
            && heard.double_of.as_ref() != Some(owner)
        {
            tracing::error!(host = %name, %owner, "its agent is that of another host: it is not used");
        }
        heard.double_of.clone_from(&owner);
        owner.is_some()
    }

    /// Whether the agent that has answered may know nothing of slices that run there.
    pub(crate) fn has_new_journal(&mut self, name: &Name, report: &Report) -> bool {
        let known = self.objects.hosts.get(name).and_then(|host| host.facts.as_ref());
        let is_other = known.is_some_and(|known| {
            let is_named = !known.agent.is_empty() && !report.agent.is_empty();
            is_named && known.agent != report.agent && known.boot_id == report.boot_id
        });
        let believes = self.planted.has(PlantedBug::NewJournalBelieved);
        let is_new = is_other && !believes && self.may_run_slices(name);
        let Some(heard) = self.heard.get_mut(name) else { return false };
        if is_new && !heard.has_new_journal {
            tracing::error!(host = %name, "{NEW_JOURNAL}");
        }
        heard.has_new_journal = is_new;
        is_new
    }

    /// Whether a part of a VM is there that the agent before has not said to have ended.
    fn may_run_slices(&self, host: &Name) -> bool {
        let report = self.heard.get(host).and_then(|heard| heard.report.as_ref());
        let has_ended = |uid: &Uid, slice: u16, life: u64| {
            let target = Target { uid: uid.clone(), slice, life };
            let slice = report.and_then(|(_, report)| report.slice(&target));
            slice.is_some_and(|slice| slice.phase != Phase::Runs)
        };
        let runs = |(name, assignment): (&Name, &Assignment)| {
            let vm = self.objects.vms.get(name);
            let mut slices = assignment.may_run(host);
            slices.any(|slice| vm.is_none_or(|vm| !has_ended(&vm.uid, slice, vm.life)))
        };
        self.objects.assignments.iter().chain(&self.objects.before).any(runs)
    }

    /// What is wrong with who answers for a host, in words.
    pub(crate) fn warning(&self, name: &Name) -> Option<String> {
        let heard = self.heard.get(name)?;
        if let Some(owner) = &heard.double_of {
            return Some(format!("its agent is that of host {owner}: it is not used"));
        }
        if heard.has_new_journal {
            return Some(NEW_JOURNAL.to_owned());
        }
        if let Some(why) = &heard.silence {
            return Some(format!("its agent does not answer: {why}"));
        }
        let lacks = self.lacks(name);
        if !lacks.is_empty() {
            return Some(format!("nothing is placed there: it lacks {}", lacks.join("; ")));
        }
        let (_, report) = heard.report.as_ref()?;
        let differs = !report.name.is_empty() && report.name != name.as_str();
        differs.then(|| format!("its agent calls itself {}", report.name))
    }
}
