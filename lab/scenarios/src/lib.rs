//! What the verbs of `./x` run over the hosts of a lab.
//!
//! | room | what | uses |
//! |---|---|---|
//! | [`vm`] | one VM over several hosts: options, slices, the guest's words, what is wrong with a run | |
//! | [`distro`] | a whole Debian system as guest | `vm` |
//! | [`demo`] | a VM that is shown to a person | `vm`, `distro`, `soak` |
//! | [`judge`] | the disks of a killed guest | |
//! | [`soak`] | the same again and again: boots, and deaths at random moments | `vm`, `judge` |
//! | [`chaos`] | bad things drawn from a seed | `vm`, `soak` |
//! | [`links`] | two hosts with soft-RoCE and no VM | |
//! | [`bench`] | experiments, each mode in turn | `vm`, `distro`, `links` |
//!
//! A scenario has its options (what clap reads from a command line), a `run`, and a judge of its end. Judges are pure where
//! they can be, so their tests need no host.
#![forbid(unsafe_code)]

pub mod bench;
pub mod chaos;
pub mod demo;
pub mod distro;
mod interrupt;
pub mod judge;
pub mod links;
mod progress;
pub mod soak;
pub mod vm;
pub mod workspace;

pub use progress::Progress;
