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
//! The VMM reaches it through a cloneable [`Handle`]. Guest memory is [`GuestRam`]: a memory
//! file, mapped once for the guest (watched where it is shared) and once for the VMM (never watched).

mod ahead;
mod apart;
mod arrivals;
mod asked;
mod backlog;
mod chunks;
mod classify;
mod clock;
mod device_pages;
mod engine;
mod error;
mod fault_queue;

mod handle;
mod huge;
mod inbox;
mod local_pager;
mod mapping;
mod memory;
mod overdue;
mod parcel;
mod placing;
mod planted;
mod prepare;
mod ram;
mod report;
mod runs;
pub mod schedule;
mod sending;
mod share;
#[cfg(feature = "simulate")]
pub mod simulate;
mod smaps;
mod store;
mod takings;
mod trace;
mod whole;
mod workers;
mod write_watch;

pub use apart::ShareError;
pub use chunks::ChunkCounts;
pub use classify::PageClass;
pub use device_pages::DeviceUse;
pub use engine::{Engine, EngineConfig, Uplink};
pub use error::EngineError;
pub use handle::{CopyError, Handle, Tuning};
pub use huge::HugePages;
pub use local_pager::{LocalPager, LocalPagerError};
pub use mapping::{UffdError, check_host};
pub use memory::{Memory, UnknownMemory};
pub use ram::{GuestRam, RamError};
pub use report::{ClassCounts, FaultCounts, HotPage, Report};
pub use trace::{PageTrace, SITES_MAX, Site, Touch, TraceReport, Tracing};
pub use write_watch::{WriteWatch, WriteWatchError};

pub use dsm_protocol::{
    Config as NodeConfig, HoldPolicy, HomeError, HomeRange, HomeTable, Replicate,
};
