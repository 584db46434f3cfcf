//! A model of supervision: the machine, hosts that answer or do not, a process that ends in all ways at all moments, and a disk with
//! checkpoints, some of which are damaged. Every order is tried.
//!
//! ```text
//!   machine --Start--> process ──> runs ──> ends: wanted, panicked, lost, refused, damaged
//!      │ Checkpoint       │ its other slices may run on for a lease, counted by clocks of their own
//!      └──> being written ──> on the disk ──> told, perhaps after the end of the process
//! ```
//! Time passes from one thing that is due to the next; what the user and the hosts do comes at any of these times.

mod model;
mod properties;
mod scenario;
mod world;

pub use model::Action;
pub use properties::names;
pub use scenario::{Scenario, prove, refute};
pub use world::World;
