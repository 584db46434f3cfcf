//! What is in the store, as far as the machine needs it.

use state::{
    Asked, Assignment, Checkpoint, FormError, Host, Name, Object, Operation, Secret, Uid, Vm,
};
use std::collections::{BTreeMap, BTreeSet};

/// An object of the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stored {
    /// A VM.
    Vm(Vm),
    /// Where it is to be.
    Assignment(Assignment),
    /// A host.
    Host(Host),
    /// What is being done, or was.
    Operation(Operation),
    /// Of a VM.
    Secret(Secret),
    /// What was asked for by an id.
    Asked(Asked),
    /// What a VM can go on from.
    Checkpoint(Checkpoint),
}

impl Stored {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Vm(it) => it.key(),
            Self::Assignment(it) => it.key(),
            Self::Host(it) => it.key(),
            Self::Operation(it) => it.key(),
            Self::Secret(it) => it.key(),
            Self::Asked(it) => it.key(),
            Self::Checkpoint(it) => it.key(),
        }
    }

    /// Its form.
    ///
    /// # Errors
    /// It cannot be.
    pub fn to_form(&self) -> Result<Vec<u8>, FormError> {
        match self {
            Self::Vm(it) => it.to_form(),
            Self::Assignment(it) => it.to_form(),
            Self::Host(it) => it.to_form(),
            Self::Operation(it) => it.to_form(),
            Self::Secret(it) => it.to_form(),
            Self::Asked(it) => it.to_form(),
            Self::Checkpoint(it) => it.to_form(),
        }
    }

    /// The object under a key; none where the machine has no use for it.
    ///
    /// # Errors
    /// It is not what it should be.
    pub fn from_form(key: &str, form: &[u8]) -> Result<Option<Self>, FormError> {
        let kind = key.split('/').next().unwrap_or_default();
        Ok(Some(match kind {
            "vms" => Self::Vm(Vm::from_form(form)?),
            "assignments" => Self::Assignment(Assignment::from_form(form)?),
            "hosts" => Self::Host(Host::from_form(form)?),
            "operations" => Self::Operation(Operation::from_form(form)?),
            "secrets" => Self::Secret(Secret::from_form(form)?),
            "asked" => Self::Asked(Asked::from_form(form)?),
            "checkpoints" => Self::Checkpoint(Checkpoint::from_form(form)?),
            _ => return Ok(None),
        }))
    }
}

/// A change of the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// It is so now.
    Put(Box<Stored>),
    /// There is nothing under this key.
    Delete(String),
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Objects {
    pub(crate) vms: BTreeMap<Name, Vm>,
    /// The current one of each VM that has one.
    pub(crate) assignments: BTreeMap<Name, Assignment>,
    /// The one before it, of each VM that moves.
    pub(crate) before: BTreeMap<Name, Assignment>,
    pub(crate) hosts: BTreeMap<Name, Host>,
    pub(crate) operations: BTreeMap<Name, Operation>,
    pub(crate) secrets: BTreeMap<Uid, Secret>,
    pub(crate) asked: BTreeMap<Uid, Asked>,
    /// Of each VM that has one, by their ids.
    pub(crate) checkpoints: BTreeMap<Name, BTreeMap<Name, Checkpoint>>,
    /// Which host an agent is of.
    agents: BTreeMap<String, Name>,
    /// Operations that are over, the oldest first.
    over: BTreeSet<(u64, Name)>,
    /// Ids of requests, the oldest first.
    asked_at: BTreeSet<(u64, Uid)>,
}

impl Objects {
    /// Of a store.
    #[must_use]
    pub fn new(all: impl IntoIterator<Item = Stored>) -> Self {
        let mut objects = Self::default();
        all.into_iter().for_each(|one| objects.put(one));
        objects
    }

    pub(crate) fn put(&mut self, one: Stored) {
        match one {
            Stored::Vm(it) => drop(self.vms.insert(it.name.clone(), it)),
            Stored::Assignment(it) => self.put_assignment(it),
            Stored::Host(it) => self.put_host(it),
            Stored::Operation(it) => self.put_operation(it),
            Stored::Secret(it) => drop(self.secrets.insert(it.vm.clone(), it)),
            Stored::Asked(it) => {
                self.asked_at.insert((it.at, it.id.clone()));
                self.asked.insert(it.id.clone(), it);
            }
            Stored::Checkpoint(it) => {
                self.checkpoints.entry(it.vm.clone()).or_default().insert(it.id.clone(), it);
            }
        }
    }

    fn put_host(&mut self, it: Host) {
        self.remove_host(&it.name);
        if let Some(agent) = agent_of(&it) {
            self.agents.entry(agent.to_owned()).or_insert_with(|| it.name.clone());
        }
        self.hosts.insert(it.name.clone(), it);
    }

    pub(crate) fn remove_host(&mut self, name: &Name) {
        let Some(host) = self.hosts.remove(name) else { return };
        if let Some(agent) = agent_of(&host)
            && self.agents.get(agent) == Some(name)
        {
            self.agents.remove(agent);
        }
    }

    /// The host whose agent this is, as far as is known.
    pub(crate) fn host_of_agent(&self, agent: &str) -> Option<&Name> {
        self.agents.get(agent)
    }

    fn put_operation(&mut self, it: Operation) {
        if it.result.is_some() {
            self.over.insert((it.began, it.id.clone()));
        }
        self.operations.insert(it.id.clone(), it);
    }

    /// The oldest operation that is over, if there are more than are kept.
    pub(crate) fn forget_operation_beyond(&mut self, kept: usize) -> Option<Operation> {
        if self.over.len() <= kept {
            return None;
        }
        let (_, id) = self.over.pop_first()?;
        self.operations.remove(&id)
    }

    /// The oldest id of a request, if there are more than are kept, or if it was made before a moment.
    pub(crate) fn forget_request_beyond(&mut self, kept: usize, since: u64) -> Option<Asked> {
        let (at, _) = self.asked_at.first()?;
        if self.asked.len() <= kept && *at >= since {
            return None;
        }
        let (_, id) = self.asked_at.pop_first()?;
        self.asked.remove(&id)
    }

    /// The one of the highest generation is current.
    fn put_assignment(&mut self, it: Assignment) {
        let name = it.vm.clone();
        let (current, other) = match self.assignments.remove(&name) {
            Some(known) if known.generation > it.generation => (known, Some(it)),
            Some(known) if known.generation < it.generation => (it, Some(known)),
            _ => (it, None),
        };
        self.assignments.insert(name.clone(), current);
        if let Some(other) = other {
            self.before.insert(name, other);
        }
    }
}

/// Which agent it has, if that is known.
fn agent_of(host: &Host) -> Option<&str> {
    host.facts.as_ref().map(|facts| facts.agent.as_str()).filter(|agent| !agent.is_empty())
}
