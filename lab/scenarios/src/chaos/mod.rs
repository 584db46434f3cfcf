//! Bad things drawn from a seed, at random moments of a VM whose guest writes to disks and echoes datagrams.

pub mod echo;
mod evidence;
mod inflict;
mod judge;
mod net;
mod plan;
mod round;
mod run;

pub use run::{ChaosOptions, run};
