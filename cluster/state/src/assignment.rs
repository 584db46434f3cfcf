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
