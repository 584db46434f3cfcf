//! A model of checkpoints: their coordinator with that of cuts, and slices whose vCPUs move tokens between the pages of their
//! memory and to other slices. Every interleaving is tried.
//!
//! ```text
//!   vCPU: a token from one page of its slice to the other, or to the next slice; none is made or lost
//!   checkpoint --cut--> coordinator of cuts --take, go on--> slice
//!   slice at rest, from Capture on: writes its part, one page after another
//! ```
//! What no message shows is in the state as well: what all slices had in memory when they came to rest, and which manifests
//! are on the disk.

mod cluster;
mod model;
mod properties;
mod scenario;
mod slice;

pub use cluster::Cluster;
pub use model::Action;
pub use properties::names;
pub use scenario::{Scenario, prove, refute};
