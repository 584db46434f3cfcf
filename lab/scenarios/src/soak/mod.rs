//! A test of a VM again and again: boots, and deaths of slices, hosts and guests at random moments.

pub mod boot;
pub mod device;
pub(crate) mod disks;
pub mod guest;
pub(crate) mod judge;
pub mod kill;
pub(crate) mod leftovers;
pub(crate) mod moments;
pub(crate) mod rig;
