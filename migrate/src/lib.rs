//! Where each vCPU runs, and how it moves.
//!
//! [`LocationTable`] is read on every forwarded interrupt, by vCPU threads, without locks. Only a
//! hand-over writes it; each change carries a newer epoch, so that a stale one is refused.

#![forbid(unsafe_code)]

mod location;

pub use location::{Location, LocationTable, StaleLocation};
