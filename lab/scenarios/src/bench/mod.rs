//! Experiments over the hosts of a lab, most with a VM: every mode has its turn in each of several rounds.

mod client_link;
mod device;
pub mod disk;
mod disk_modes;
mod fio;
pub mod net;
mod options;
mod page_moves;
pub mod programs;
mod rounds;
pub mod transport;

pub use options::BenchOptions;
