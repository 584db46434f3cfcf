//! One slice of a VM: the process that owns vCPUs, memory and devices on one host.
//!
//! ```text
//!   bootstrap: plan -> connect -> gather answers -> measure clocks -> commit -> run -> end
//!   companion: listen -> accept -> answer -> verdict ------------------------> run -> end   (of a VM that runs: `joining`)
//!                  ^______________refused, aborted_____|
//! ```
//!
//! Until the commit nothing has been promised and every refusal leaves the companions listening.
//! After it, losing a slice with vCPUs or memory ends the VM on all of them. One that is drained leaves: it ends alone.
//! From then on the roles are equal: one slice coordinates, at first the bootstrap's (`coordination`, `watch`).

mod advice;
mod bootstrap;
mod borrowed;
mod borrowing;
mod bus;
mod calls;
mod channels;
mod checkpoint;
mod checkpoint_link;
mod clock_rounds;
mod clock_sync;
mod closed_devices;
mod companion;
mod console;
mod coordination;
mod cut;
mod cut_link;
mod device_rest;
mod dispatch;
mod end;
mod events;
mod frame_counts;
mod handover;
mod host;
mod hotplug;
mod join_link;
mod joining;
mod launch;
mod negotiation;
mod not_loaded;
mod operations;
mod overseeing;
mod own_devices;
mod page_hashes;
mod peripherals;
mod pulling;
mod pulls;
mod queue_states;
mod refusing;
mod relocation;
mod report;
mod reports;
mod restore;
mod saved;
mod silence;
mod spec;
mod standstill;
mod stop;
mod succession;
mod watch;

pub use devices::back_end::image::OnFull;
pub use dsm::Memory;
pub use transport::one_line;

pub use peripherals::{
    BackEndShape, ConsoleEnd, ConsoleSpec, DeviceKind, DeviceSpec, DiskFormat, DiskSpec, Lend,
    NicSpec, OpenError, Rings, RngSpec, Standby, VsockShape, VsockSpec,
};

pub use bootstrap::{Boot, BootstrapOptions, Start, bootstrap};
pub use borrowing::{Borrow, BorrowError};
pub use clock_sync::ClockTest;
pub use companion::{CompanionOptions, companion};
pub use host::{HostError, HostFacts, Offer};
pub use launch::LocalOptions;
pub use report::{LostSlice, RunReport, SliceReport};
pub use restore::{
    By, CheckpointDisks, GivenUp, Outcome, RestoreError, RestoreOptions, RestoredClock, clone_spec,
    disk_writers, fits_checkpoint, saved_spec,
};
pub use saved::{Disagreement, FormError, check_forms};
pub use spec::{Interrupts, PageTables, SliceSpec, SpecError, VmSpec};
pub use stop::StopHandle;

use crate::boot::BootError;
use crate::control::SocketError;
use crate::cpuid::CpuidError;
use crate::machine::MachineError;
use devices::acpi::AcpiError;
use dsm::{CopyError, EngineError, RamError};
use thiserror::Error;
use transport::MeshError;
use wire::SliceId;
use wire::control::EndCause;

/// The first slice: it starts the VM, and coordinates it until another one does.
pub(crate) const BOOTSTRAP: SliceId = SliceId(0);

/// How a VM ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The guest powered off.
    PowerOff,
    /// The guest asked for a reset.
    Reset,
    /// The guest's kernel panicked.
    GuestPanic,
    /// A slice is gone.
    LostSlice {
        /// Which.
        slice: SliceId,
        /// One line for a person.
        cause: String,
    },
    /// A slice cannot go on.
    Failed {
        /// Which.
        slice: SliceId,
        /// One line for a person.
        cause: String,
    },
    /// The time limit that the user set was reached.
    TimeLimit,
    /// It was asked to stop, and the guest was not waited for any more.
    Stopped {
        /// One line for a person.
        cause: String,
    },
    /// It is in a checkpoint, and was to end then.
    Saved,
    /// A later life of it has its disks: it goes on elsewhere.
    Overtaken {
        /// Who found that.
        slice: SliceId,
        /// One line for a person.
        cause: String,
    },
    /// Told by the coordinator that the VM is over, which is all that it was to wait for.
    Told(EndCause),
    /// This slice was drained: the VM goes on without it.
    Drained,
}

impl Ending {
    /// Exit status of the process. Stable: scripts depend on it.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Self::PowerOff | Self::Saved | Self::Told(_) | Self::Drained => 0,
            Self::Reset => 3,
            Self::GuestPanic => 4,
            Self::LostSlice { .. } => STATUS_LOST,
            Self::Failed { .. } => STATUS_FAILED,
            Self::TimeLimit => 7,
            Self::Stopped { .. } => STATUS_STOPPED,
            Self::Overtaken { .. } => STATUS_OVERTAKEN,
        }
    }

    /// One line for a person.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::PowerOff => "the guest powered off".into(),
            Self::Reset => "the guest asked for a reset".into(),
            Self::GuestPanic => "the guest's kernel panicked".into(),
            Self::LostSlice { slice, cause } => format!("{slice} is lost: {cause}"),
            Self::Failed { slice, cause } => format!("{slice} cannot go on: {cause}"),
            Self::TimeLimit => "the time limit was reached".into(),
            Self::Stopped { cause } => format!("stopped: {cause}"),
            Self::Told(cause) => {
                format!("the coordinator says that the VM is over: {}", told(*cause))
            }
            Self::Saved => "the VM is saved in a checkpoint".into(),
            Self::Overtaken { slice, cause } => {
                format!("the VM goes on elsewhere, as {slice} says: {cause}")
            }
            Self::Drained => "the slice was drained; the VM goes on without it".into(),
        }
    }
}

fn told(cause: EndCause) -> &'static str {
    match cause {
        EndCause::PowerOff => "the guest powered off",
        EndCause::Reset => "the guest asked for a reset",
        EndCause::GuestPanic => "the guest's kernel panicked",
        EndCause::Failure => "a slice is lost, or cannot go on",
        EndCause::TimeLimit => "the time limit was reached",
        EndCause::Stopped => "it was stopped",
        EndCause::Saved => "it is saved in a checkpoint",
        EndCause::Overtaken => "it goes on elsewhere",
    }
}

/// Exit status of a configuration that was refused before anything started.
pub const STATUS_REFUSED: u8 = 2;
/// Exit status of a VM of which a slice cannot go on.
const STATUS_FAILED: u8 = 6;
/// Exit status of a VM that was asked to stop and ended without its guest.
const STATUS_STOPPED: u8 = 8;
/// Exit status of a VM that goes on elsewhere, as a later life.
pub const STATUS_OVERTAKEN: u8 = 9;
/// Exit status when a slice is lost or was never there.
const STATUS_LOST: u8 = 5;

impl SliceError {
    /// Exit status of the process.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Self::Lost(_) | Self::LostLoading { .. } => STATUS_LOST,
            Self::Mesh(source) if source.is_loss() => STATUS_LOST,
            Self::GoesOnElsewhere { .. } => STATUS_OVERTAKEN,
            Self::Begun(_) | Self::FailedLoading { .. } => STATUS_FAILED,
            _ => STATUS_REFUSED,
        }
    }
}

/// Why a VM was not started.
#[derive(Debug, Error)]
pub enum SliceError {
    /// The shape of the VM is impossible.
    #[error("plan the VM")]
    Spec(#[from] SpecError),
    /// This host cannot run a slice.
    #[error("use this host")]
    Host(#[from] HostError),
    /// Kernel, initrd or command line cannot be used.
    #[error("prepare the guest's boot")]
    Boot(#[from] BootError),
    /// The ACPI tables cannot be built.
    #[error("build the ACPI tables")]
    Acpi(#[from] AcpiError),
    /// The hosts' processors have too little in common.
    #[error("find a processor model that every host has")]
    Cpuid(#[from] CpuidError),
    /// KVM refused.
    #[error("build the virtual machine")]
    Machine(#[from] MachineError),
    /// Guest memory cannot be had.
    #[error("set up guest memory")]
    Ram(#[from] RamError),
    /// The memory engine cannot start.
    #[error("start the distributed memory")]
    Engine(#[from] EngineError),
    /// The slices did not come together.
    #[error("connect the slices")]
    Mesh(#[from] MeshError),
    /// A companion went away between its first answer and the start.
    #[error("a slice is lost before the guest started")]
    Lost(#[source] MeshError),
    /// A slice went away while the guest was being loaded.
    #[error("{slice} is lost before the guest started: {cause}")]
    LostLoading {
        /// Which.
        slice: SliceId,
        /// What was seen of it.
        cause: String,
    },
    /// This slice could not go on while the guest was being loaded.
    #[error("this slice cannot go on, before the guest started: {cause}")]
    FailedLoading {
        /// What its memory engine, or whoever looks at that, has said.
        cause: String,
    },
    /// Guest memory could not be written at start.
    #[error("load the guest")]
    Load(#[source] CopyError),
    /// Ghosts were asked for and do not work.
    #[error("{slice} cannot use ghost vCPUs ({cause}); choose --interrupts userspace or auto")]
    Ghosts {
        /// Which slice.
        slice: SliceId,
        /// What its self-test found.
        cause: String,
    },
    /// A companion refused.
    #[error("{slice} refuses: {cause}")]
    Refused {
        /// Which.
        slice: SliceId,
        /// What it said.
        cause: String,
    },
    /// A peer sent a configuration that is not one.
    #[error("read the configuration of {0}")]
    Blob(SliceId, #[source] serde_json::Error),
    /// Time stamp counters run at different speeds.
    #[error("{slice} has a time stamp counter of {theirs} kHz, the bootstrap of {ours} kHz")]
    ClockSpeed {
        /// Which.
        slice: SliceId,
        /// Its frequency.
        theirs: u32,
        /// The bootstrap's.
        ours: u32,
    },
    /// A disk, network interface or the like cannot be opened.
    #[error("open the devices of this host")]
    Open(#[from] OpenError),
    /// The devices cannot be put together.
    #[error("set up the devices: {0}")]
    Devices(String),
    /// The control socket cannot be had.
    #[error("offer a control socket")]
    Control(#[from] SocketError),
    /// The first slice cannot coordinate.
    #[error("coordinate the VM")]
    Coordination(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The VM does not go on from a checkpoint.
    #[error("restore the VM from a checkpoint")]
    Restore(#[from] RestoreError),
    /// A record beside an image names a later life of the VM than whoever starts it again knows of.
    #[error(
        "the VM was restored elsewhere, and goes on there as its life {life}: so says a record beside a disk at {slice}"
    )]
    GoesOnElsewhere {
        /// On which host.
        slice: SliceId,
        /// The number of that life.
        life: u64,
    },
    /// Its vCPUs may have run.
    #[error("begin to run")]
    Begun(#[source] Box<SliceError>),
    /// What was restored does not come to rest.
    #[error("bring what was restored to rest")]
    Rest(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Console or report file.
    #[error("{what}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}
