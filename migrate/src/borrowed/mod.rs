//! vCPUs that a VM borrows: those that have a slice other than the bootstrap's. Where each is to be, on its own slice (away) or on the
//! bootstrap's (at home). Nothing here acts, waits or reads a clock.
//!
//! ```text
//!   Adaptive:  at home ──short of cores in windows in a row, and the hold-off is over──> away
//!                 ^──────────away all compute less than the cores of home alone would───┘
//!   Borrowed:  a vCPU that is not where it is to be ──next──> a move ──moved──> there
//!                 somebody else has moved it, or its slice has left or was emptied ──observe──> not borrowed any more
//! ```
//! A borrowed core pays if what runs on it shares little memory with the others; else the vCPUs wait for pages, and compute less together than one
//! core would. No counter tells that in advance, so it is tried, and what a try can cost is bounded: the hold-off doubles with each
//! that fails. All borrowed vCPUs go and come as one group (decision 50).

mod adaptive;
mod group;
mod planted;
#[cfg(test)]
mod tests;

pub use adaptive::{Adaptive, Load};
pub use group::{Borrowed, GivenBack};
#[cfg(feature = "planted-bugs")]
pub use planted::PlantedBug;

/// Where borrowed vCPUs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// On the bootstrap's slice.
    Home,
    /// Each on its own slice.
    Away,
}
