//! Checks of the coherence protocol without hosts: models that try every interleaving of small
//! clusters, and seeded simulators for large ones.
//!
//! ```text
//!   models, simulator:   Node (dsm-protocol) ---- array pages behind the `PageStore` port
//!   mapping:             Engine, store and chunks (dsm) over Node ---- real memory, a fake kernel's page tables
//! ```
//!
//! All drive the very code that runs in a VM, with one flat memory as the oracle.

#![forbid(unsafe_code)]

pub mod compare;
pub mod mapping;
pub mod models;
pub mod simulator;
pub mod store;
