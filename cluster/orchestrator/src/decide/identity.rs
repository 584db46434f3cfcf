//! Which host an agent is of. Two names of one agent (its socket and its address over TLS, say) would have its cores counted twice.
//!
//! ```text
//!   a name is registered ── at an address that another one has ──> refused
//!       └─ its agent says which it is ── nobody else's ──> it is this host's, and is written down
//!                                     └─ another host's ─> not heard: as if nobody had answered, and that is told
//! ```
//! What tells agents apart is the identity of their journals, which they keep as long as they know their slices. How an agent calls itself
//! may differ from the name of its host here; that is told too, and is no reason to refuse it.

use super::ask::Refusal;
use super::call::Report;
use super::machine::Orchestrator;
use state::Name;

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

    /// What is wrong with who answers for a host, in words.
    pub(crate) fn warning(&self, name: &Name) -> Option<String> {
        let heard = self.heard.get(name)?;
        if let Some(owner) = &heard.double_of {
            return Some(format!("its agent is that of host {owner}: it is not used"));
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
