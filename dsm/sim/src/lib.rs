//! Checks of the coherence protocol without hosts: models that try every interleaving of small
//! clusters, and a seeded simulator for large ones.
//!
//! Both drive the very `Node` that the engine drives, with array pages behind the `PageStore` port
//! and one flat memory as the oracle.

#![forbid(unsafe_code)]

pub mod compare;
pub mod models;
pub mod simulator;
pub mod store;
