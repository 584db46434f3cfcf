//! A model of the hand-over of a vCPU: a coordinator, three slices and one vCPU that moves while all of them send to it.
//! Every interleaving of deliveries, of what slices do, and of what senders send is tried.
//!
//! ```text
//!   senders --> Member --> channels between slices, in order --> Member --> what the slice does, one after the other
//!                                                                           (stop, save, restore, run, deliver)
//! ```

mod cluster;
mod scenario;
mod slice;

pub use cluster::{Action, Cluster, Violation, names};
pub use scenario::{Scenario, Step, prove, refute};
