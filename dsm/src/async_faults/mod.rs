//! Faults that the kernel's workers take in a vCPU's name (asynchronous page faults of KVM).
//!
//! A worker always asks to write. What the vCPU wants is found out by making the worker fail.
//!
//! ```text
//!   fault of a worker --workers: only the vCPU can tell--> probe_pages: the mapping is read-only
//!        |                                                      |
//!        +--a vCPU, or a page held here--> wants that           +--vCPU reads: it has the page
//!                                                               +--KVM refuses it a store: upgrade
//! ```

mod probe_pages;
mod workers;

pub(crate) use probe_pages::ProbePages;
pub(crate) use workers::{Verdict, Workers};
