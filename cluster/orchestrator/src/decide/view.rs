//! What users see. Nothing here changes anything.

use super::care::spec;
use super::explain::rule;
use super::machine::Orchestrator;
use scheduler::fragmentation::{Fragmentation, Mix};
use scheduler::policy::Policy;
use scheduler::{HostId, Resources, WhyNot, explain};
use state::{
    Assignment, Host, Name, Operation, SharingClass, Term, Uid, Verb, Vm, VmDesired, VmState,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Says which state of what is wanted this is.
#[must_use]
pub(crate) fn etag(vm: &Vm) -> String {
    let text = format!("{}.{}", vm.uid, vm.generation);
    blake3::hash(text.as_bytes()).to_hex().as_str()[..16].to_owned()
}

/// Where a VM would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// There is one that wants just that.
    pub unchanged: bool,
    /// The bootstrap's part first; none if it would wait.
    pub parts: Vec<(Name, Resources)>,
    /// By which rule, or why it would wait.
    pub why: String,
    /// Hosts that were not taken, and why.
    pub rejected: Vec<(Name, String)>,
    /// Of this plan, and of every other one that says the same.
    pub token: String,
}

/// How a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostStanding {
    /// Its agent has not answered yet.
    Unknown,
    /// Its agent answers.
    Up,
    /// Its agent has not answered for its lease.
    Down,
    /// Its agent answers, and obeys somebody else.
    Foreign,
}

/// A host, with what is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView<'a> {
    /// As it is in the store.
    pub host: &'a Host,
    /// How it is.
    pub standing: HostStanding,
    /// What VMs may have.
    pub total: Resources,
    /// What nobody has.
    pub free: Resources,
    /// VMs that have a part of it.
    pub vms: Vec<Name>,
    /// What is wrong with it, in words.
    pub warning: Option<String>,
    /// What slices need and is not there.
    pub lacks: &'a [String],
}

/// How many hosts there are, and of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standings {
    /// All.
    pub all: usize,
    /// Those whose agents answer, and obey this orchestrator.
    pub up: usize,
    /// Those whose agents answer, and obey somebody else.
    pub foreign: usize,
}

/// How the cluster is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// Of the leader.
    pub term: Term,
    /// Hosts, by how they are.
    pub hosts: Standings,
    /// All VMs.
    pub vms: usize,
    /// Those whose guests run.
    pub running: usize,
    /// Those that wait.
    pub waiting: usize,
    /// Those on several hosts.
    pub aggregate: usize,
    /// What is free.
    pub fragmentation: (u64, f64),
}

/// What is counted of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    /// How it is.
    pub standing: Standing,
    /// What VMs may have of all hosts.
    pub total: Resources,
    /// What of that nobody has.
    pub free: Resources,
    /// VMs, by their states.
    pub vms: BTreeMap<VmState, u64>,
    /// Those that wait for room, by their classes.
    pub waiting: BTreeMap<SharingClass, u64>,
    /// Operations that go on.
    pub operations: BTreeMap<Verb, u64>,
    /// All VMs: their names, and how they are.
    pub names: BTreeMap<Uid, (Name, VmState)>,
    /// All hosts, and whether each is up.
    pub hosts: BTreeMap<Name, bool>,
    /// Seconds since the newest checkpoint of each VM that is written down, or since it runs.
    pub checkpoints: BTreeMap<Uid, u64>,
}

impl Orchestrator {
    /// All VMs, ascending by name.
    pub fn vms(&self) -> impl Iterator<Item = &Vm> {
        self.objects.vms.values()
    }

    /// Those whose names come after this one.
    pub fn vms_after(&self, after: Option<&Name>) -> impl Iterator<Item = &Vm> + use<'_> {
        let start = after.cloned().map_or(Bound::Unbounded, Bound::Excluded);
        self.objects.vms.range((start, Bound::Unbounded)).map(|(_, vm)| vm)
    }

    /// A VM.
    #[must_use]
    pub fn vm(&self, name: &Name) -> Option<&Vm> {
        self.objects.vms.get(name)
    }

    /// What names the state of what is wanted of it.
    #[must_use]
    pub fn etag(vm: &Vm) -> String {
        etag(vm)
    }

    /// Where a VM is to be.
    #[must_use]
    pub fn assignment(&self, name: &Name) -> Option<&Assignment> {
        self.objects.assignments.get(name)
    }

    /// What is being done to a VM.
    #[must_use]
    pub fn going_on(&self, name: &Name) -> Option<&Operation> {
        self.objects.operations.get(&self.works.get(name)?.id)
    }

    /// All operations that are kept, the oldest first.
    pub fn operations(&self) -> impl DoubleEndedIterator<Item = &Operation> {
        self.objects.operations.values()
    }

    /// An operation.
    #[must_use]
    pub fn operation_of(&self, id: &Name) -> Option<&Operation> {
        self.objects.operations.get(id)
    }

    fn host_standing(&self, name: &Name) -> HostStanding {
        let at = self.heard.get(name).and_then(|heard| heard.at);
        match (at, self.is_lost(name)) {
            (_, true) => HostStanding::Down,
            _ if self.foreign(name).is_some() => HostStanding::Foreign,
            (None, false) => HostStanding::Unknown,
            (Some(_), false) => HostStanding::Up,
        }
    }

    /// A host.
    #[must_use]
    pub fn host(&self, name: &Name) -> Option<HostView<'_>> {
        let host = self.objects.hosts.get(name)?;
        let standing = self.host_standing(name);
        let id = self.heard.get(name).and_then(|heard| heard.id);
        let known = id.and_then(|id| self.scheduler.cluster().host(id));
        let (total, free) =
            known.map_or((Resources::NONE, Resources::NONE), |it| (it.total(), it.free()));
        let has = |it: &&Assignment| it.slices.iter().any(|part| part.host == *name);
        let all = self.objects.assignments.values().chain(self.objects.before.values());
        let vms: BTreeSet<Name> = all.filter(has).map(|it| it.vm.clone()).collect();
        let vms = vms.into_iter().collect();
        Some(HostView {
            host,
            standing,
            total,
            free,
            vms,
            warning: self.warning(name),
            lacks: self.lacks(name),
        })
    }

    /// Names of all hosts, ascending.
    pub fn hosts(&self) -> impl Iterator<Item = &Name> {
        self.objects.hosts.keys()
    }

    /// How the cluster is.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let states = |state: VmState| self.vms().filter(|vm| vm.observed.state == state).count();
        let up = self.hosts().filter(|name| !self.is_out(name)).count();
        let is_foreign = |name: &&Name| self.host_standing(name) == HostStanding::Foreign;
        let foreign = self.hosts().filter(is_foreign).count();
        let fragmentation = Fragmentation::of(self.scheduler.cluster(), &Mix::azure());
        let is_aggregate = |it: &&Assignment| it.slices.len() > 1;
        Standing {
            term: self.term,
            hosts: Standings { all: self.objects.hosts.len(), up, foreign },
            vms: self.objects.vms.len(),
            running: states(VmState::Running),
            waiting: states(VmState::Waiting),
            aggregate: self.objects.assignments.values().filter(is_aggregate).count(),
            fragmentation: (fragmentation.free_cores, fragmentation.phi),
        }
    }

    /// What the scheduler and the machine count, for who watches from outside.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let cluster = self.scheduler.cluster();
        let known = self.hosts().filter_map(|name| cluster.host(self.heard.get(name)?.id?));
        let (mut total, mut free) = (Resources::NONE, Resources::NONE);
        for host in known {
            (total, free) = (total.plus(host.total()), free.plus(host.free()));
        }
        let age = |vm: &Vm| Some((vm.uid.clone(), self.checkpoint_age(vm)?));
        let mut counts = Counts {
            standing: self.standing(),
            total,
            free,
            vms: BTreeMap::new(),
            waiting: BTreeMap::new(),
            operations: BTreeMap::new(),
            names: BTreeMap::new(),
            hosts: self.hosts().map(|name| (name.clone(), !self.is_out(name))).collect(),
            checkpoints: self.vms().filter_map(age).collect(),
        };
        for vm in self.vms() {
            *counts.vms.entry(vm.observed.state).or_default() += 1;
            counts.names.insert(vm.uid.clone(), (vm.name.clone(), vm.observed.state));
            if vm.observed.state == VmState::Waiting {
                *counts.waiting.entry(vm.desired.class).or_default() += 1;
            }
        }
        for operation in self.works.values().filter_map(|work| self.operation_of(&work.id)) {
            *counts.operations.entry(operation.verb).or_default() += 1;
        }
        counts
    }

    /// Where a VM would be now.
    #[must_use]
    pub fn plan(&self, name: &Name, desired: &VmDesired) -> Plan {
        let known = self.objects.vms.get(name);
        let unchanged = known.is_some_and(|vm| vm.desired == *desired);
        let spec = Arc::new(spec(desired));
        let found = self.settings.choice.place(self.scheduler.cluster(), &spec);
        let (parts, why, rejected) = match found {
            Ok(decision) => {
                let parts = decision.shares.iter();
                let parts =
                    parts.map(|share| (self.name_of(share.host), share.resources)).collect();
                (parts, rule(decision.rule).to_owned(), decision.rejected)
            }
            Err(refusal) => {
                let explained = explain(self.scheduler.cluster(), &spec, spec.slices_max > 1);
                (Vec::new(), refusal.to_string(), explained.hosts)
            }
        };
        let token = self.token(name, desired, &parts);
        Plan { unchanged, parts, why, rejected: self.in_words(rejected), token }
    }

    fn token(&self, name: &Name, desired: &VmDesired, parts: &[(Name, Resources)]) -> String {
        // What is decided, in a form that is the same for the same decision.
        let text = format!("{name} {desired:?} {parts:?}");
        blake3::hash(text.as_bytes()).to_hex().as_str()[..32].to_owned()
    }

    fn name_of(&self, id: HostId) -> Name {
        let known = self.host_names.get(&id).cloned();
        known.unwrap_or_else(|| id_name(id))
    }

    pub(crate) fn in_words(&self, rejected: Vec<(HostId, WhyNot)>) -> Vec<(Name, String)> {
        // A host that was removed is in the ledger for ever, and is nobody's concern.
        let known = rejected.into_iter().filter(|(id, _)| self.host_names.contains_key(id));
        known.map(|(id, why)| (self.name_of(id), why.to_string())).collect()
    }

    /// Where the agent of a host is reached.
    #[must_use]
    pub fn agent_of(&self, host: &Name) -> Option<&str> {
        self.objects.hosts.get(host).map(|host| host.desired.agent.as_str())
    }

    /// The leader's term.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }
}

fn id_name(id: HostId) -> Name {
    let text = format!("host-{}", id.0);
    Name::new(&text).unwrap_or_else(|error| unreachable!("digits are a name: {error}"))
}
