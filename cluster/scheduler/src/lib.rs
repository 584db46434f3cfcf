//! On which hosts VMs run, and which slices of them move together later. Decides, and does nothing: it has no clock, no
//! thread and no network.
//!
//! ```text
//!   inputs --> Scheduler::step --> effects: start, run, move, flip, wait
//!                 │ queue: whose turn it is
//!                 │ policy: where (BFF, FragBFF, ours) ──validate──> hosts that may be taken, and why others are not
//!                 │ budget: how often things may move
//!                 └ cluster: the ledger of what is whose, with an index of what is free
//! ```
//! **A running VM keeps what it has.** Its slices always sum to what it asked for. Nothing is taken from it for another one.
//! A slice moves only to where room has been kept for it, and what it had is free only when it is there. Up to the flip of
//! the location table a move can be given up; reservations expire. What moves is counted, and does not go back for a while.

#![forbid(unsafe_code)]

mod budget;
pub mod cluster;
pub mod cost;
mod explain;
pub mod fragmentation;
mod ids;
mod placement;
mod planted;
pub mod policy;
mod queue;
mod reason;
mod resources;
mod scheduler;
mod spec;
pub mod survival;
mod validate;

pub use budget::Limits;
pub use explain::{EXPLAINED_MAX, Explanation, explain};
pub use ids::{
    DeviceKind, Fabric, FailureDomain, Features, Group, HostId, ReservationId, Tenant, VmId,
};
pub use placement::{Decision, REJECTED_MAX, Rule, Share};
#[cfg(feature = "planted-bugs")]
pub use planted::PlantedBug;
pub use queue::{Discipline, Queue, Waiting};
pub use reason::WhyNot;
pub use resources::Resources;
pub use scheduler::{Effect, Input, InputError, Scheduler, Settings};
pub use spec::{Class, DEVICE_KINDS, DEVICES_MAX, DeviceCount, Spec, SpecError};
pub use validate::{Candidate, candidates, why_not};
