//! What the benchmarks are made of. `./x bench NAME` runs an experiment of [`experiments`];
//! `cargo bench` runs the criterion benchmarks in `benches/`.
//!
//! ```text
//!   experiment --> Cluster: a slice per MicroVm, joined by a transport --> samples --> Outcome
//!        |-------> Local:   one MicroVm whose faults one thread answers     (floor)
//!        |-------> raw:     the frames of a fault without any guest         (floor)
//!        +-------> threads of this process, for comparison
//! ```

pub mod carrier;
pub mod cluster;
pub mod experiments;
pub mod image;
pub mod local;
pub mod microvm;
pub mod outcome;
pub mod paging;
pub mod placement;
pub mod raw;
pub mod samples;
pub mod seats;
pub mod slice;
