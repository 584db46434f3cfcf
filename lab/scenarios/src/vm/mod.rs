//! One VM over the hosts of a lab: its options, its slices, its guest's words, and what is wrong with a run.

pub(crate) mod arguments;
pub(crate) mod attend;
pub(crate) mod companion;
pub(crate) mod console;
pub(crate) mod distro;
pub(crate) mod fault_classes;
pub(crate) mod guest_console;
pub(crate) mod joined;
pub(crate) mod judge;
pub(crate) mod layout;
mod options;
pub(crate) mod output;
pub(crate) mod prepare;
pub(crate) mod relocate;
mod reports;
pub(crate) mod saves;
pub(crate) mod scenario;
pub(crate) mod summary;

pub(crate) use options::LabMode;
pub use options::{Interrupts, VmOptions};
