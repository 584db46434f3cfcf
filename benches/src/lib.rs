//! What the benchmarks are made of. `./x bench NAME` runs an experiment of [`experiments`];
//! `cargo bench` runs the criterion benchmarks in `benches/`.
//!
//! ```text
//!   experiment --> Cluster: a slice per MicroVm, joined by a transport --> samples --> Outcome
//!        |-------> Local:   one MicroVm whose faults one thread answers     (floor)
//!        |-------> raw:     the frames of a fault without any guest         (floor)
//!        |-------> Native:  the same workloads as threads of this process, for comparison
//!        +-------> Echo, Engines: what the criterion benchmarks are made of
//! ```

pub mod carrier;
pub mod child;
pub mod cluster;
pub mod delegated;
pub mod echo;
pub mod engines;
pub mod experiments;
pub mod image;
pub mod local;
pub mod microvm;
pub mod native;
pub mod noise;
pub mod paging;
pub mod placement;
pub mod plan;
pub mod pool;
pub mod raw;
pub mod real_vm;
pub mod sampled_vcpus;
pub mod samples;
pub mod slice;
mod story;
mod telling_vm;
pub mod worker_pool;
