//! What whoever asked waits for. It is no object: whether it is reached is seen by the VM, however often it is tried meanwhile.

use super::machine::Orchestrator;
use state::{Name, Uid, Vm, VmState};

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// The VM runs, or has come to rest as it was wanted to.
    Created,
    /// It is no more.
    Deleted,
}

/// Whether a goal is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reached {
    /// Not yet.
    Not(Box<Vm>),
    /// It is, with the VM as it is now.
    With(Box<Vm>),
    /// It is: the VM is no more.
    Gone,
    /// It never will be: the VM is no more, or is to be no more.
    Never,
}

impl Goal {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Created => "create-",
            Self::Deleted => "delete-",
        }
    }

    /// Its name, of a VM.
    #[must_use]
    pub fn name(self, uid: &Uid) -> Name {
        let text = format!("{}{uid}", self.prefix());
        Name::new(&text)
            .unwrap_or_else(|error| unreachable!("a word and digits are a name: {error}"))
    }

    /// What a name says.
    #[must_use]
    pub fn parse(name: &Name) -> Option<(Self, Uid)> {
        let goal = [Self::Created, Self::Deleted].into_iter();
        let mut found = goal.filter_map(|goal| {
            let digits = name.as_str().strip_prefix(goal.prefix())?;
            Some((goal, Uid::try_from(digits.to_owned()).ok()?))
        });
        found.next()
    }
}

impl Orchestrator {
    /// Whether a goal is reached; none if the name is of none.
    #[must_use]
    pub fn reached(&self, name: &Name) -> Option<Reached> {
        let (goal, uid) = Goal::parse(name)?;
        let vm = self.vms().find(|vm| vm.uid == uid);
        Some(match (goal, vm) {
            (Goal::Deleted, None) => Reached::Gone,
            (Goal::Deleted, Some(vm)) => Reached::Not(Box::new(vm.clone())),
            (Goal::Created, None) => Reached::Never,
            (Goal::Created, Some(vm)) if vm.desired.deleted => Reached::Never,
            (Goal::Created, Some(vm)) => {
                let rests = matches!(
                    vm.observed.state,
                    VmState::Running | VmState::Paused | VmState::Stopped
                );
                let vm = Box::new(vm.clone());
                if rests { Reached::With(vm) } else { Reached::Not(vm) }
            }
        })
    }
}
