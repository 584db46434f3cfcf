//! The distributed shared memory engine of one slice.
//!
//! One thread ([`Engine`]) owns the coherence protocol ([`dsm_protocol::Node`]), the userfaultfd and
//! the transport. It takes faults of the vCPUs, messages of other slices and commands of the VMM,
//! one at a time, and carries out what the protocol decides.
//!
//! ```text
//!  vCPU threads --fault--> userfaultfd --\                      /--> guest mapping (map, unmap)
//!  other slices --frames-> transport -----> Engine: Node::step ----> transport (messages, pages)
//!  VMM threads --commands-> channel -----/                      \--> VMM (frames, copies)
//! ```
//!
//! The rooms. Each uses only those to the right of it:
//!
//! ```text
//!   engine --> observe --> mapping --> prefetch, async_faults, snapshot --> memory --> kernel (userfaultfd, mmap)
//!   probe ------------------------------------------------------^
//! ```
//!
//! The VMM reaches it through a cloneable [`Handle`]. Guest memory is [`GuestRam`]: a memory
//! file, mapped once for the guest (watched where it is shared) and once for the VMM (never watched).

mod async_faults;
mod engine;
mod error;
mod kernel;
mod mapping;
mod memory;
mod observe;
mod planted;
mod prefetch;
mod probe;
#[cfg(feature = "simulate")]
pub mod simulate;
mod snapshot;

pub use dsm_protocol::saved;
pub use engine::schedule;
pub use engine::{
    CopyError, Engine, EngineConfig, Handle, HomeMoveError, JoinError, LeaveError, RestError,
    SnapshotError, Tuning, Unrest, Uplink,
};
pub use error::EngineError;
pub use kernel::{UffdError, check_host};
pub use mapping::ChunkCounts;
pub use memory::{
    DeviceUse, Give, GuestRam, HugePages, LoadError, Loaded, Loader, Memory, Pace, RamError,
    ShareError, Source, UnknownMemory,
};
pub use observe::{
    ClassCounts, FaultCounts, HomeCounts, HotPage, PageClass, PageTrace, PagesFrom, Report,
    SITES_MAX, Site, Touch, TraceReport, Tracing,
};
pub use probe::{LocalPager, LocalPagerError, WriteWatch, WriteWatchError};
pub use snapshot::{SnapshotEnd, SnapshotLost, SnapshotReader};

pub use dsm_protocol::{
    Config as NodeConfig, HoldError, HoldPolicy, HomeError, HomeRange, HomeTable, Mechanism,
    Mechanisms, Replicate, UnknownMechanism, frame_pieces,
};
