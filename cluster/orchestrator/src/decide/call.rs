//! What hosts are asked, and what they answer.

use state::{Guest, NumaNode, Secret, Term, Uid};

/// A slice in one life of its VM.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Of which VM.
    pub uid: Uid,
    /// Which of its slices.
    pub slice: u16,
    /// Which life.
    pub life: u64,
}

/// What a slice gets at first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharePart {
    /// Where its companion listens; empty for the bootstrap's own.
    pub address: String,
    /// vCPUs.
    pub vcpus: u16,
    /// Memory in MiB.
    pub memory_mib: u64,
}

/// What a slice is to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It waits for a bootstrap.
    Companion,
    /// It boots the guest; its own part is first.
    Bootstrap {
        /// What each slice gets.
        parts: Vec<SharePart>,
        /// What runs there.
        guest: Box<Guest>,
        /// What it goes on from; it boots if it is none.
        restore: Option<Restore>,
    },
}

/// What a VM goes on from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Restore {
    /// The checkpoint's folder, beside the others.
    pub folder: String,
    /// The guest runs before its memory is read.
    pub lazy: bool,
}

/// What the agent of a host is asked. Each may be asked again, and is done once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// How the host is, and what runs there.
    Look,
    /// Keep room.
    Reserve {
        /// For which operation.
        operation: Uid,
        /// For which slice.
        target: Target,
        /// Cores.
        cores: u16,
        /// Memory in MiB.
        memory_mib: u64,
    },
    /// Give back what was kept.
    Release {
        /// For which operation.
        operation: Uid,
    },
    /// Have a slice run.
    Ensure {
        /// Which.
        target: Target,
        /// Cores.
        cores: u16,
        /// Memory in MiB.
        memory_mib: u64,
        /// Of the VM.
        secret: Secret,
        /// What it is to be.
        role: Role,
    },
    /// Ask the slice how its VM is.
    Ask {
        /// Which.
        target: Target,
    },
    /// Have a slice use so much of its host.
    Resize {
        /// Which.
        target: Target,
        /// Cores.
        cores: u16,
        /// Memory in MiB.
        memory_mib: u64,
    },
    /// Have a companion join the VM, with nothing.
    Join {
        /// The slice that is asked: it coordinates.
        target: Target,
        /// Where the companion listens.
        address: String,
        /// Which slice it is to be.
        number: u16,
        /// The same one twice is one.
        request: Uid,
    },
    /// Have all of a slice go to another one, and the slice leave.
    Bring {
        /// The slice that is asked: it coordinates.
        target: Target,
        /// What goes.
        slice: u16,
        /// Where to.
        to: u16,
        /// The same one twice is one.
        request: Uid,
    },
    /// Ask the slice that coordinates where parts of its VM are.
    Where {
        /// Which.
        target: Target,
    },
    /// Have the whole VM written down.
    WriteDown {
        /// The slice that is asked: it coordinates.
        target: Target,
        /// The folder, which is not there yet, as its host knows it.
        path: String,
        /// Numbers of checkpoints that were deleted.
        released: Vec<u64>,
        /// The same one twice is one.
        request: Uid,
    },
    /// Delete checkpoints, or what there is of them.
    Discard {
        /// Their folders, beside the others.
        folders: Vec<String>,
    },
    /// Have a slice end at once.
    End {
        /// Which.
        target: Target,
    },
    /// Have the guest shut down.
    Stop {
        /// Which slice.
        target: Target,
    },
    /// Have this life and all earlier ones never run there again.
    Fence {
        /// Of which VM.
        uid: Uid,
        /// Which life.
        life: u64,
    },
    /// Forget slices that have ended.
    Remove {
        /// Which.
        targets: Vec<Target>,
    },
}

/// How a VM is, as its coordinating slice says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VmSight {
    /// Its guest runs.
    Runs,
    /// It has not begun, or stands still.
    Rests,
}

/// What a slice has of its VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which slice.
    pub slice: u16,
    /// Its vCPUs, ascending.
    pub vcpus: Vec<u16>,
    /// The memory whose home it is, in MiB.
    pub memory_mib: u64,
}

/// A checkpoint that was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Written {
    /// The digest of its manifest, in hexadecimal.
    pub digest: String,
    /// Bytes of all parts.
    pub bytes: u64,
    /// The number by which slices know it.
    pub cut: u64,
}

/// What a host has answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// It is done.
    Done,
    /// The slice is there; a companion listens at this address.
    Ensured(String),
    /// How the VM is.
    Vm(VmSight),
    /// Where its parts are.
    Places(Vec<Place>),
    /// The VM is written down.
    Written(Written),
    /// Nothing is there of these checkpoints.
    Discarded(Vec<String>),
    /// The VM has tried, and it has failed; a part of it may be done. Asked again by the same request, it says this again.
    Failed(String),
    /// How the host is.
    Report(Report),
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// Nobody answers, or not yet: it may have been done, and is asked again.
    Unreachable(String),
    /// It was not done, and will not be.
    Refused(String),
    /// Somebody else leads: a host has obeyed another one, and the store knows it.
    Deposed,
}

/// How far a slice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It has a process, or is about to.
    Runs,
    /// It has none any more; with this status, if somebody saw it.
    Ended(Option<u32>),
}

/// A slice on a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SliceReport {
    /// Which.
    pub target: Target,
    /// How far it is.
    pub phase: Phase,
    /// How it has ended, in words.
    pub cause: String,
}

/// How a host is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    /// Which agent has answered, by its journal; empty if it does not say.
    pub agent: String,
    /// How it calls its host; empty if it does not.
    pub name: String,
    /// Of its last start.
    pub boot_id: String,
    /// What VMs may have.
    pub nodes: Vec<NumaNode>,
    /// Of its agent.
    pub version: String,
    /// What slices need and is not there, each with its cause; nothing runs there then.
    pub lacks: Vec<String>,
    /// The folder that checkpoints are in; all hosts see the same one.
    pub checkpoints: String,
    /// What is there.
    pub slices: Vec<SliceReport>,
    /// It obeys an orchestrator of this term, which is later than the leader's, and the store says that the leader still leads.
    pub foreign: Option<Term>,
}

impl Report {
    /// A slice of it.
    #[must_use]
    pub fn slice(&self, target: &Target) -> Option<&SliceReport> {
        self.slices.iter().find(|slice| slice.target == *target)
    }
}
