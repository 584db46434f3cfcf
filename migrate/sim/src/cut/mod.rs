//! A model of a cut: a coordinator and three slices whose vCPUs send interrupts and call devices, while the first slice
//! brings changes of devices to all. Every interleaving is tried.
//!
//! ```text
//!   vCPU --interrupt--> another slice: counted
//!   vCPU --call--> first slice: a job --change--> every other slice: a job --applied--> first slice --answer--> vCPU
//!   coordinator --take, go on--> slice: takes the step as soon as it can
//! ```

mod cluster;
mod scenario;
mod slice;

pub use cluster::{Action, Cluster, names};
pub use scenario::{Scenario, prove, refute};
