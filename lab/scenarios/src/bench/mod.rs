//! Experiments over the hosts of a lab, most with a VM. Each is a room with the same files:
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | what is compared and why; `run` |
//! | `plan.rs` | the modes, and how much of each is measured |
//! | `measure.rs` | one turn of a mode |
//! | `report.rs` | rows, ratios and bars out of all rounds |
//!
//! What they share is in `rig` (turns, medians, the end of a bench) and, for those with devices, in `devices`.

pub mod ablation;
mod devices;
pub mod disk;
pub mod net;
mod options;
pub mod programs;
pub(crate) mod rig;
pub mod sharing;
pub mod transport;
pub mod workloads;

pub use options::BenchOptions;
