//! A seeded simulator of whole engines: faults, frames and chunks, over a kernel of state machines.
//!
//! Each slice is an engine as in a VM (`dsm::simulate`), a turn at a time in virtual time. vCPUs run random programs
//! between the turns, and between the engine's calls to the kernel, as threads do. A vCPU reaches memory only as the fake
//! kernel's page tables let it; every load is compared with one flat memory, nobody may write what another can read, and
//! every operation must end. A run is a pure function of its [`Setup`].
//!
//! ```text
//!   vcpus ---touch--> fake kernel --fault--> engine --frames--> carrier --later--> engine of another slice
//!     ^                   ^                     |
//!     |                   +------calls----------+
//!     +--woken, between the calls too
//! ```

mod carrier;
mod contents;
mod guests;
mod joining;
mod leaves;
mod leaving;
mod loading;
mod moves;
mod moving;
mod programs;
mod reading;
mod report;
mod reporting;
mod rest;
mod setup;
mod snapshots;
mod world;

pub use dsm::simulate::PlantedBug;
pub use report::Report;
pub use setup::Setup;
pub use world::{Failure, run};
