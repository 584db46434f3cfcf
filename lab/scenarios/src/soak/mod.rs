//! A test of a VM again and again: boots, pauses, moves, and deaths of slices, hosts and guests at random moments.

pub mod boot;
pub mod checkpoint;
pub(crate) mod clocks;
pub(crate) mod compute;
pub mod device;
pub(crate) mod disks;
mod each_cpu;
pub mod guest;
pub(crate) mod judge;
pub mod kill;
pub(crate) mod leftovers;
pub(crate) mod load;
pub(crate) mod loopback;
pub mod lost;
pub mod migrate;
pub(crate) mod moments;
mod move_plan;
pub(crate) mod moves;
pub mod pause;
pub(crate) mod rig;
pub mod vcpus;
pub(crate) mod verify;
