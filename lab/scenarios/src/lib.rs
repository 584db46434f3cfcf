//! What the verbs of `./x` run over the hosts of a lab.
//!
//! ```text
//!   demo ─> distro ─┐        chaos ─> soak ─> judge
//!   bench ─> links  ├─> vm ─> lab              │
//!        └─> distro ┘    <────── soak ─────────┘
//! ```
//! [`vm`] runs one VM over several hosts and says what is wrong with a run. Each other room is a kind of scenario: its
//! options (what clap reads from a command line), `run`, and the judge of its end. Judges are pure where they can be,
//! so their tests need no host.
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
