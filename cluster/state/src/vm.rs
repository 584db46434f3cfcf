//! A VM: what is wanted of it, and what is seen of it.

use serde::{Deserialize, Serialize};

use crate::form::Object;
use crate::keys::{self, Name};
use crate::numbers::Generation;

/// vCPUs and devices are numbered in a byte somewhere.
const VCPUS_MAX: u16 = 255;

/// When it is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStrategy {
    /// It is started again, however it ends.
    Always,
    /// It is started again if it was lost, and not if its guest ended it.
    RerunOnFailure,
    /// It runs once.
    Once,
    /// It does not run.
    Halted,
}

/// How much its vCPUs share, which bounds its slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharingClass {
    /// Jobs that have nothing to do with each other.
    Independent,
    /// A server of requests.
    Requests,
    /// Not known.
    Default,
    /// Threads of one program: never split.
    Shared,
}

/// What the user wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmDesired {
    /// 1 to 255.
    pub vcpus: u16,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// How much it shares.
    pub class: SharingClass,
    /// When it is to run.
    pub run: RunStrategy,
}

/// One word for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmState {
    /// It waits for room.
    Waiting,
    /// Its slices are being started.
    Starting,
    /// Its guest runs.
    Running,
    /// Its guest stands still.
    Paused,
    /// It ends.
    Stopping,
    /// It does not run.
    Stopped,
    /// A slice is lost, and it is to go on from a checkpoint.
    Lost,
}

/// What the orchestrator sees.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmObserved {
    /// Which generation this is about. Smaller than the VM's: in progress, and no error.
    pub generation: Generation,
    /// In a word.
    pub state: VmState,
    /// The generation of its current assignment, if it has one.
    pub assignment: Option<Generation>,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Its name.
    pub name: Name,
    /// Advanced by each change of what is wanted; the first is 1.
    pub generation: Generation,
    /// What is wanted.
    pub desired: VmDesired,
    /// What is seen.
    pub observed: VmObserved,
}

impl Object for Vm {
    const KIND: &'static str = "vm";

    fn key(&self) -> String {
        keys::vm(&self.name)
    }

    fn check(&self) -> Result<(), String> {
        let VmDesired { vcpus, memory_mib, .. } = self.desired;
        if vcpus == 0 || vcpus > VCPUS_MAX {
            return Err(format!("{vcpus} vCPUs; 1 to {VCPUS_MAX} are allowed"));
        }
        if memory_mib == 0 {
            return Err("no memory".to_owned());
        }
        if self.generation == Generation(0) {
            return Err("generation 0".to_owned());
        }
        let observed = &self.observed;
        if observed.generation > self.generation {
            return Err(format!(
                "generation {} is seen, {} is wanted",
                observed.generation, self.generation
            ));
        }
        Ok(())
    }
}
