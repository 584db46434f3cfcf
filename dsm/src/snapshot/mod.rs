//! A snapshot of what a slice has of guest memory: what its pages were at one moment, read while the guest stores to them.
//!
//! Copy on write, a page at a time. The engine's thread has taken the right to write from the guest
//! ([`crate::mapping`]); another thread reads.
//!
//! ```text
//!   at the moment: pending --read from memory (`reader`)---------------------------> given
//!                     \--about to change: the engine copies it first (`frozen`) --> copy --given--> gone
//! ```
//!
//! Each page is given once. What the guest has never stored to is not given: it is zero.

mod error;
mod frozen;
mod reader;

pub use error::SnapshotLost;
pub(crate) use frozen::Frozen;
pub use reader::{SnapshotEnd, SnapshotReader};
