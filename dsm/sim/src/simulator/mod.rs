//! A seeded simulator: clusters too large to try every interleaving, in virtual time.
//!
//! Messages of a pair of slices arrive in order after random delays, those of runs without an order. vCPUs run random programs
//! (`workload`); every load is compared with one flat memory, every operation must end within a
//! bounded virtual time, and at the end all copies must agree. A run is a pure function of its
//! [`Setup`], so a seed that fails can be replayed.

mod checks;
mod joining;
pub(crate) mod joins;
mod leaves;
mod leaving;
mod moves;
mod moving;
mod programs;
pub(crate) mod random;
mod report;
mod rest;
pub(crate) mod saves;
mod setup;
mod workload;
mod world;

pub use report::{Failure, Report};
pub use setup::Setup;
pub use workload::Workload;
pub use world::{run, run_saved};
