//! How hosts are: each is asked again and again, and is lost if it does not answer for its lease.
//!
//! ```text
//!   registered ──its agent answers──> up ──silent for a lease──> down ──its agent answers──> up
//! ```
//! A new leader has heard nobody: it waits for a lease before it calls anyone lost. A lease is of time in which the leader listens: while
//! it waits for its store nobody is silent.
//!
//! **A host that obeys somebody else** has heard of a term that is later than the leader's, while the store says that the leader leads.
//! Terms of a store only grow: so it is a host of another cluster, or the store is an older copy or a new one. Nothing is placed there,
//! and it is asked nothing but how it is. What it says of slices is true, so VMs that run there run.

use super::call::{Call, Failure, Reply, Report};
use super::ids::CallId;
use super::machine::{Heard, Orchestrator, Purpose};
use super::objects::Stored;
use super::planted::PlantedBug;
use super::stop::members;
use scheduler::Resources;
use scheduler::cluster::{HostSpec, HostState};
use state::rules;
use state::{Facts, Generation, Host, HostDesired, Name, NumaNode, Object, Term};

/// What it has, in the words of the scheduler; none if it has nothing.
pub(crate) fn spec(nodes: &[NumaNode]) -> Option<HostSpec> {
    let units = |mib: u64| u32::try_from(mib / 2).unwrap_or(u32::MAX);
    let resources = |node: &NumaNode| Resources::new(u32::from(node.cores), units(node.memory_mib));
    let nodes: Vec<Resources> = nodes.iter().map(resources).collect();
    (!nodes.is_empty()).then(|| HostSpec::new(nodes))
}

/// What the scheduler may do with a host.
pub(crate) const fn state_of(is_out: bool, is_unfit: bool, desired: &HostDesired) -> HostState {
    match (is_out, desired.cordoned || is_unfit, desired.draining) {
        (true, ..) => HostState::Lost,
        (false, _, true) => HostState::Draining,
        (false, true, false) => HostState::Cordoned,
        (false, false, false) => HostState::Open,
    }
}

impl Orchestrator {
    /// Whether nothing was heard of a host for its lease. One that is not registered is.
    pub(crate) fn is_lost(&self, name: &Name) -> bool {
        let heard = self.heard.get(name);
        heard.is_none_or(|heard| {
            rules::is_lost(self.listened, heard.at, heard.since, self.settings.lease_ms)
        })
    }

    /// The term that a host obeys, if it obeys somebody else.
    #[must_use]
    pub fn foreign(&self, name: &Name) -> Option<Term> {
        self.heard.get(name)?.report.as_ref()?.1.foreign
    }

    /// What slices need and a host has not, as far as its agent has said.
    pub(crate) fn lacks(&self, name: &Name) -> &[String] {
        let report = self.heard.get(name).and_then(|heard| heard.report.as_ref());
        report.map_or(&[], |(_, report)| &report.lacks)
    }

    /// Whether a host is asked nothing but how it is: it obeys somebody else, or would answer for slices that it does not know.
    pub(crate) fn is_left_alone(&self, name: &Name) -> bool {
        let is_foreign =
            self.foreign(name).is_some() && !self.planted.has(PlantedBug::ForeignAsked);
        is_foreign || self.knows_nothing(name)
    }

    /// Whether its agent has a new journal, and slices of before may run there.
    pub(crate) fn knows_nothing(&self, name: &Name) -> bool {
        self.heard.get(name).is_some_and(|heard| heard.has_new_journal)
    }

    /// Whether a host does nothing that it is asked.
    pub(crate) fn is_out(&self, name: &Name) -> bool {
        self.is_lost(name) || self.is_left_alone(name)
    }

    /// One that was not known is listened to from now on.
    pub(crate) fn heard_entry(&mut self, name: &Name) -> &mut Heard {
        let since = self.listened;
        self.heard.entry(name.clone()).or_insert_with(|| Heard { since, ..Heard::default() })
    }

    /// Asks each that is not being asked; and says who is lost.
    pub(crate) fn look_at_hosts(&mut self) {
        let names: Vec<Name> = self.objects.hosts.keys().cloned().collect();
        for name in names {
            if self.heard_entry(&name).looking.is_none() {
                let call = self.call(&name, Call::Look, Purpose::Host(name.clone()));
                self.heard_entry(&name).looking = Some(call);
            }
            self.show_host(&name);
        }
    }

    /// Tells the scheduler whether a host takes anything, where that has changed.
    pub(crate) fn show_host(&mut self, name: &Name) {
        let (is_lost, is_out) = (self.is_lost(name), self.is_out(name));
        let is_unfit = !self.lacks(name).is_empty();
        let Some(host) = self.objects.hosts.get(name) else { return };
        let wanted = state_of(is_out, is_unfit, &host.desired);
        let Some(heard) = self.heard.get_mut(name) else { return };
        if is_lost && !heard.is_lost {
            let why = heard.silence.as_deref().unwrap_or("its agent does not answer");
            tracing::warn!(host = %name, why, "nothing is heard of a host: it is down");
        } else if heard.is_lost && !is_lost {
            tracing::info!(host = %name, "a host is up again");
        }
        heard.is_lost = is_lost;
        let Some(id) = heard.id else { return };
        let now = self.scheduler.cluster().host(id).map(scheduler::cluster::Host::state);
        if now.is_some_and(|now| now != wanted) {
            self.decide(scheduler::Input::Host { host: id, state: wanted });
        }
    }

    /// A host has answered, or has not.
    pub(crate) fn looked(&mut self, call: CallId, name: &Name, result: Result<Reply, Failure>) {
        let Some(heard) = self.heard.get_mut(name) else { return };
        if heard.looking != Some(call) {
            return;
        }
        heard.looking = None;
        match result {
            Ok(Reply::Report(report)) => self.heard_of(call, name, &report),
            Ok(_) => tracing::warn!(host = %name, "its agent answers something else"),
            Err(Failure::Unreachable(why) | Failure::Refused(why)) => {
                if heard.silence.is_none() {
                    tracing::warn!(host = %name, why, "its agent does not say how it is");
                }
                heard.silence = Some(why);
            }
            Err(Failure::Deposed) => {}
        }
    }

    fn heard_of(&mut self, call: CallId, name: &Name, report: &Report) {
        let now = self.listened;
        let Some(host) = self.objects.hosts.get(name).cloned() else { return };
        if self.is_of_another(name, report) || self.has_new_journal(name, report) {
            return;
        }
        self.learn_facts(host, report);
        self.tell_of_another(name, report);
        let was_lost = self.is_lost(name);
        if let Some(heard) = self.heard.get_mut(name) {
            if was_lost {
                // What has ended meanwhile may have left long ago.
                heard.members.clear();
            }
            if heard.report.is_none() {
                tracing::info!(host = %name, version = report.version, "a host is up");
            }
            if heard.report.as_ref().is_none_or(|(_, known)| known.lacks != report.lacks) {
                for lack in &report.lacks {
                    tracing::warn!(host = %name, lack, "nothing is placed on a host: it can run no slice");
                }
            }
            heard.silence = None;
            heard.members = members(report, &heard.members);
            heard.at = Some(now);
            heard.report = Some((call, report.clone()));
        }
        self.show_host(name);
        self.sweep(name, report);
        let here = |(vm, assignment): (&Name, &state::Assignment)| {
            assignment.slices_on(name).next().map(|_| vm.clone())
        };
        let vms: Vec<Name> = self.objects.assignments.iter().filter_map(here).collect();
        for vm in vms {
            if self.is_full() {
                // The next report is about them too.
                break;
            }
            self.care(&vm);
        }
    }

    /// An operator has to see to it.
    fn tell_of_another(&self, name: &Name, report: &Report) {
        let known = self.foreign(name);
        match (known, report.foreign) {
            (known, Some(term)) if known != Some(term) => {
                let own = self.term;
                tracing::warn!(host = %name, %term, %own, "it obeys an orchestrator of a later term: nothing is asked of it");
            }
            (Some(_), None) => tracing::info!(host = %name, "it obeys this orchestrator again"),
            _ => {}
        }
    }

    /// Writes down what it has, where that is another than is known.
    fn learn_facts(&mut self, mut host: Host, report: &Report) {
        let name = host.name.clone();
        let known = host.facts.as_ref();
        let same = known.is_some_and(|known| {
            known.boot_id == report.boot_id
                && known.nodes == report.nodes
                && known.version == report.version
                && known.agent == report.agent
        });
        if !same {
            let generation = Generation(known.map_or(1, |known| known.generation.0 + 1));
            host.facts = Some(Facts {
                boot_id: report.boot_id.clone(),
                generation,
                nodes: report.nodes.clone(),
                version: report.version.clone(),
                agent: report.agent.clone(),
            });
            if let Err(why) = host.check() {
                tracing::error!(host = %name, why, "what its agent says cannot be");
                return;
            }
            self.put(Stored::Host(host));
        }
        self.add_to_scheduler(&name, &report.nodes);
    }

    /// What a host has does not change for the scheduler while VMs are there; it does when nobody is.
    fn add_to_scheduler(&mut self, name: &Name, nodes: &[NumaNode]) {
        let known = self.heard.get(name).and_then(|heard| heard.id);
        let Some(spec) = spec(nodes) else { return };
        if let Some(id) = known {
            let Some(host) = self.scheduler.cluster().host(id) else { return };
            if host.total() == spec.total() || host.free() != host.total() {
                return;
            }
            self.host_names.remove(&id);
            self.decide(scheduler::Input::Host { host: id, state: HostState::Lost });
        }
        match self.scheduler.add_host(&spec) {
            Ok(id) => {
                self.host_names.insert(id, name.clone());
                self.heard_entry(name).id = Some(id);
            }
            Err(error) => tracing::error!(host = %name, %error, "it is not used"),
        }
    }
}
