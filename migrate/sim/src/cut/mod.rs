//! A model of a cut: a coordinator and three slices whose vCPUs send interrupts and call devices, while the slice that
//! coordinates brings changes of devices to all; at a cut another one may come to coordinate. Every interleaving is tried.
//!
//! ```text
//!   vCPU --interrupt--> another slice: counted
//!   vCPU --call--> coordinator: a job --change--> every other slice: a job --applied--> coordinator --answer--> vCPU
//!   coordinator --take, go on--> slice: takes the step as soon as it can
//! ```

mod cluster;
mod scenario;
mod slice;

pub use cluster::{Action, Cluster, names};
pub use scenario::{Scenario, prove, refute};
