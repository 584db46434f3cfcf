//! The scheduler of clusters over weeks of VMs that come and end, in minutes: which policy splits how many VMs for how long,
//! what it moves for that, and who waits.
//!
//! ```text
//!   generator, importer --Request--> Simulation --Input--> scheduler::Scheduler
//!                                      │   ^                    │
//!                                      │   └──────Effect────────┘
//!                                      ├ executor: boots and moves take their time
//!                                      ├ judge: hosts as their agents see them; I1 to I7
//!                                      └ meter: delays, core-hours, moves --Figures--> table, JSON, picture
//! ```
//! **One thread, no clock.** The same scenario, policy and seed have the same figures to the last digit.
//!
//! **The scheduler is the one that runs.** The simulator prepares and reports as an orchestrator does, and knows nothing of the
//! ledger. Policies that are here for comparison alone are in [`policies`].

#![forbid(unsafe_code)]

pub mod bound;
pub mod compare;
pub mod import;
mod judge;
mod meter;
pub mod policies;
mod pool;
pub mod replay;
mod simulation;
mod tally;
pub mod workload;

pub use judge::{Judge, Rule};
pub use pool::Pool;
pub use simulation::{Maintenance, Simulation, Times};
pub use tally::{Figures, SIZE_CLASSES, Tally};
pub use workload::Request;
