//! Where everything of a VM is, how it moves, and the form in which its parts are saved.
//!
//! ```text
//!   Placement (immutable, epoch n) --next(changes)--> Placement (epoch n + 1)
//!   PlacementOwner --advance--> what is in force <--load, without locks-- PlacementView
//! ```
//! One value says which slices there are, where each vCPU runs, which slice is home of which frames, and where devices
//! and their queues are. Whatever else needs to know derives it from there.
//!
//! Beside it are the pure machines that decide what all slices do together; `vmm` does it, and `migrate/sim` has their models:
//!
//! | module | decides |
//! |---|---|
//! | [`cut`] | how all slices come to rest at one moment, and what is done then |
//! | [`checkpoint`] | how they write that moment down; the files are those of the crate in `migrate/checkpoint` |
//! | [`supervise`] | when, from what and where a lost VM goes on |
//! | [`handover`] | how a vCPU moves to another slice |
//! | [`borrowed`] | when the vCPUs of other slices are there, and when at home |
//! | [`plan`] | which parts go where when a slice leaves, joins or is not needed |

#![forbid(unsafe_code)]

pub mod borrowed;
pub mod checkpoint;
pub mod cut;
pub mod handover;
mod owner;
mod placement;
pub mod plan;
mod planted;
pub mod saved;
pub mod supervise;

pub use owner::{AdvanceError, PlacementOwner, PlacementView, Route};
pub use placement::{
    Change, DevicePlace, DeviceState, MemoryPlace, MemoryState, Placement, PlacementError,
    PlacementState,
};
pub use saved::{Invalid, Saved, SavedError, SavedState};
