//! Where a VM is to be. It never changes: another one follows it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::form::Object;
use crate::keys::{self, Name};
use crate::numbers::{Epoch, Generation, Term};
use crate::vm::VmDesired;

/// Slices of one VM.
const PARTS_MAX: usize = 64;
/// Slices that have left in one life.
const FORMER_MAX: usize = 64;

/// What one slice has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// On which host.
    pub host: Name,
    /// Numbers of its vCPUs, which may be none.
    pub vcpus: Vec<u16>,
    /// The memory whose home it is, in MiB.
    pub memory_mib: u64,
    /// Names of the devices whose real part it has.
    pub devices: Vec<Name>,
    /// The number of the slice, where it is not its place in the list: slices before it have left, or it came later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u16>,
}

/// A slice that was a part of the VM in this life and is none any more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Former {
    /// On which host.
    pub host: Name,
    /// The number of the slice.
    pub slice: u16,
    /// It has nothing of the VM any more, and never will have in this life. What may run of it still (a companion that has not joined, on a
    /// host that was lost) is ended where it is found. It is only to be forgotten.
    pub ended: bool,
}

/// Where a VM is to be; by the number of the slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// Of which VM.
    pub vm: Name,
    /// The generation that it is the placement of.
    pub generation: Generation,
    /// The one that it follows; none for the first.
    pub parent: Option<Generation>,
    /// The leader that decided it.
    pub term: Term,
    /// The epoch with which the VM's data plane begins.
    pub epoch: Epoch,
    /// Slice 0 first.
    pub slices: Vec<Part>,
    /// Slices that are to be looked after when this life ends, though they are no part of it any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<Former>,
}

/// What an assignment does not give of what is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AssignmentError {
    /// vCPUs 0 to n, each once.
    #[error("{found} vCPUs are assigned, {wanted} are wanted")]
    Vcpus {
        /// Different ones below the number that is wanted.
        found: usize,
        /// What is wanted.
        wanted: u16,
    },
    /// All of it, and no more.
    #[error("{found} MiB are assigned, {wanted} are wanted")]
    Memory {
        /// The sum.
        found: u64,
        /// What is wanted.
        wanted: u64,
    },
}

impl Assignment {
    /// Slices with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u16, &Part)> {
        (0..).zip(&self.slices).map(|(place, part)| (part.number.unwrap_or(place), part))
    }

    /// What a slice has.
    #[must_use]
    pub fn part(&self, number: u16) -> Option<&Part> {
        self.numbered().find(|(other, _)| *other == number).map(|(_, part)| part)
    }

    /// Hosts on which something of this life runs, or has run.
    #[must_use]
    pub fn hosts(&self) -> BTreeSet<&Name> {
        let former = self.former.iter().map(|it| &it.host);
        self.slices.iter().map(|part| &part.host).chain(former).collect()
    }

    /// Whether something of this life may run on a host.
    #[must_use]
    pub fn may_run_on(&self, host: &Name) -> bool {
        self.may_run(host).next().is_some()
    }

    /// Numbers of slices that may run on a host: its parts, and those that are no part any more and have not ended.
    pub fn may_run(&self, host: &Name) -> impl Iterator<Item = u16> {
        let here = self.numbered().filter(move |(_, part)| part.host == *host);
        let former = self.former.iter().filter(move |it| it.host == *host && !it.ended);
        here.map(|(number, _)| number).chain(former.map(|it| it.slice))
    }

    /// Numbers of slices on a host, of those that are no part any more too.
    pub fn slices_on(&self, host: &Name) -> impl Iterator<Item = u16> {
        let here = self.numbered().filter(move |(_, part)| part.host == *host);
        let former = self.former.iter().filter(move |it| it.host == *host);
        here.map(|(number, _)| number).chain(former.map(|it| it.slice))
    }

    /// Whether its slices sum to what is wanted.
    ///
    /// # Errors
    /// Where they do not.
    pub fn gives(&self, desired: &VmDesired) -> Result<(), AssignmentError> {
        let all = self.slices.iter().flat_map(|part| &part.vcpus);
        let below: BTreeSet<_> = all.clone().filter(|vcpu| **vcpu < desired.vcpus).collect();
        let wanted = desired.vcpus;
        if below.len() != usize::from(wanted) || all.count() != usize::from(wanted) {
            return Err(AssignmentError::Vcpus { found: below.len(), wanted });
        }
        let found = self.slices.iter().fold(0_u64, |sum, part| sum.saturating_add(part.memory_mib));
        let wanted = desired.memory_mib;
        if found == wanted { Ok(()) } else { Err(AssignmentError::Memory { found, wanted }) }
    }
}

impl Object for Assignment {
    const KIND: &'static str = "assignment";

    fn key(&self) -> String {
        keys::assignment(&self.vm, self.generation)
    }

    fn check(&self) -> Result<(), String> {
        if self.slices.is_empty() || self.slices.len() > PARTS_MAX {
            return Err(format!("{} slices; 1 to {PARTS_MAX} are allowed", self.slices.len()));
        }
        if self.parent.is_some_and(|parent| parent >= self.generation) {
            return Err("it follows a later one".to_owned());
        }
        let (mut hosts, mut vcpus, mut devices) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        if self.former.len() > FORMER_MAX {
            return Err(format!("{} slices that have left", self.former.len()));
        }
        let mut numbers = BTreeSet::new();
        let former = self.former.iter().map(|it| it.slice);
        let all = self.numbered().map(|(number, _)| number).chain(former);
        if let Some(twice) = { all }.find(|number| !numbers.insert(*number)) {
            return Err(format!("slice {twice} is there twice"));
        }
        for part in &self.slices {
            if !hosts.insert(&part.host) {
                return Err(format!("two slices on host {}", part.host));
            }
            if let Some(twice) = part.vcpus.iter().find(|vcpu| !vcpus.insert(**vcpu)) {
                return Err(format!("vCPU {twice} is in two places"));
            }
            if let Some(twice) = part.devices.iter().find(|device| !devices.insert(*device)) {
                return Err(format!("device {twice} is in two places"));
            }
            if part.vcpus.is_empty() && part.memory_mib == 0 && part.devices.is_empty() {
                return Err(format!("a slice with nothing on host {}", part.host));
            }
        }
        Ok(())
    }
}
