//! A whole Debian system as guest: on a plain QEMU machine, or as one VM over several hosts.

pub mod check;
pub(crate) mod guest;
pub(crate) mod visit;
pub(crate) mod vm;
