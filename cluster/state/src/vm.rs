//! A VM: what is wanted of it, and what is seen of it.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

use crate::form::Object;
use crate::keys::{self, Name, Uid};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

/// A disk of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// The image, named from the hosts' folder of images.
    pub image: String,
    /// The guest only reads it.
    pub read_only: bool,
    /// Of the image; raw if empty.
    pub format: String,
}

/// A network device of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// The tap device on its host.
    pub tap: String,
    /// Its address; one is made if it is empty.
    pub mac: String,
}

/// What runs in a VM. The orchestrator hands it on and understands none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// Named from the hosts' folder of images.
    pub kernel: String,
    /// Named from there; none if empty.
    pub initrd: String,
    /// Of the kernel.
    pub cmdline: String,
    /// What is added to it.
    pub preset: String,
    /// Guest milliseconds per real second; 1000 if 0.
    #[serde(default)]
    pub clock_permille: u16,
    /// In the order in which the guest sees them.
    pub disks: Vec<Disk>,
    /// In the order in which the guest sees them.
    pub nics: Vec<Nic>,
}

/// How often a VM is written down, and how much of that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointPolicy {
    /// Seconds between two.
    pub every_s: u64,
    /// So many are kept.
    pub keep: u32,
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
    /// Slices that it may have; as its class says if it is none.
    pub slices_max: Option<u16>,
    /// What runs in it.
    pub guest: Guest,
    /// Never, if it is none.
    pub checkpoint: Option<CheckpointPolicy>,
    /// It is to end, and to be forgotten then.
    pub deleted: bool,
}

/// One word for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

/// What a VM goes on from that has lost a slice, until another checkpoint of it is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoesOn {
    /// Which checkpoint.
    pub checkpoint: Name,
    /// How often it was tried in vain.
    pub tried: u32,
    /// How often anything was, one after another.
    pub failed: u32,
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
    /// Why, in words.
    pub why: String,
    /// What its next life goes on from, or its present one has. None if it began anew, or was written down since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goes_on: Option<GoesOn>,
    /// The last life that began anew: what was written of an earlier one is history.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it so")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Its name.
    pub name: Name,
    /// Tells it from another one that had this name before.
    pub uid: Uid,
    /// How often it has begun. The first life is 1; an agent that has fenced a life never runs it again, nor an earlier one.
    pub life: u64,
    /// Advanced by each change of what is wanted; the first is 1.
    pub generation: Generation,
    /// What is wanted.
    pub desired: VmDesired,
    /// When it was to run before it was halted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_run: Option<RunStrategy>,
    /// What is seen.
    pub observed: VmObserved,
}

/// Beyond these nobody has asked, and a form has an end.
const DISKS_MAX: usize = 16;
const NICS_MAX: usize = 16;
const WORD_BYTES_MAX: usize = 4096;
/// Parts of a VM on different hosts.
const SLICES_MAX: u16 = 64;
/// Seconds between two checkpoints.
pub const EVERY_S: RangeInclusive<u64> = 10..=31_536_000;
/// Checkpoints that are kept.
pub const KEEP: RangeInclusive<u32> = 1..=100;

impl Vm {
    fn check_guest(&self) -> Result<(), String> {
        let VmDesired { guest, slices_max, checkpoint, .. } = &self.desired;
        if guest.kernel.is_empty() {
            return Err("no kernel".to_owned());
        }
        if guest.clock_permille > 1000 {
            return Err("a clock that is faster than time".to_owned());
        }
        let of_disks = guest.disks.iter().flat_map(|disk| [&disk.image, &disk.format]);
        let of_nics = guest.nics.iter().flat_map(|nic| [&nic.tap, &nic.mac]);
        let words = [&guest.kernel, &guest.initrd, &guest.cmdline, &guest.preset];
        let mut all = words.into_iter().chain(of_disks).chain(of_nics);
        if let Some(word) = all.find(|word| word.len() > WORD_BYTES_MAX) {
            return Err(format!("a word of {} bytes; {WORD_BYTES_MAX} are allowed", word.len()));
        }
        if guest.disks.len() > DISKS_MAX || guest.nics.len() > NICS_MAX {
            return Err(format!("{DISKS_MAX} disks and {NICS_MAX} network devices are allowed"));
        }
        if guest.disks.iter().any(|disk| disk.image.is_empty()) {
            return Err("a disk without an image".to_owned());
        }
        if guest.nics.iter().any(|nic| nic.tap.is_empty()) {
            return Err("a network device without a tap".to_owned());
        }
        if slices_max.is_some_and(|slices| slices == 0 || slices > SLICES_MAX) {
            return Err(format!("1 to {SLICES_MAX} slices are allowed"));
        }
        let kept = |policy: &CheckpointPolicy| {
            EVERY_S.contains(&policy.every_s) && KEEP.contains(&policy.keep)
        };
        if checkpoint.as_ref().is_some_and(|policy| !kept(policy)) {
            return Err(format!("checkpoints every {EVERY_S:?} s, of which {KEEP:?} are kept"));
        }
        Ok(())
    }
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
        if memory_mib % 2 != 0 {
            return Err(format!("{memory_mib} MiB; memory is counted in units of 2 MiB"));
        }
        self.check_guest()?;
        if self.life == 0 {
            return Err("life 0".to_owned());
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
