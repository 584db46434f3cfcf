//! Supervision: a VM that ended because a slice is lost goes on from its newest checkpoint by itself. Decided here, done by
//! `tessera supervise`; nothing here waits, reads a clock, starts a process or touches a file.
//!
//! ```text
//!             begin          all hosts answer            lives: a checkpoint every T
//!   New ──────────> Waiting ─────────────────────> Alive ─────────────────────────────> Over: the guest or the user ended it
//!                    ^   │ spares, or what is left   │
//!                    │   │ after a limit             │ a slice is lost, it was refused, or its checkpoint is damaged
//!                    │   └─> Over: stopped           │
//!                    └───────────────────────────────┴────> Over: given up, and why
//!                                          not before the back-off
//! ```
//! **One generation at a time.** Whoever starts the VM again knows only that one process has ended. The other slices, which it
//! may not reach, stop by themselves: when they hear that a slice is lost, or when they have heard nothing for a lease.
//! [`Policy::stopped_after`] is how long that takes at most. The next life is started before, to read its memory, and told by
//! when they have stopped: it uses no disk and runs no guest before. A slice that is stopped from outside for longer finds its fence
//! shut, and the record beside each image names another generation (decisions 27 and 53).
//!
//! **The newest that can be restored.** One that is damaged is passed over, and so is one from which the VM failed twice
//! before it ran. A VM that has a checkpoint is never begun anew: its guest would find a later disk and nothing else. One that
//! has had none is, as after a power cut.
//!
//! **A VM that was restored elsewhere** goes on there. Each start from a checkpoint is told the last life that was begun here; a record beside
//! an image that names a later one is somebody else's, and the end. Starts that never ran are counted too: they may have left their
//! number there. Only a checkpoint that a user gives is gone on from whatever is there, until its guest has run once.
//!
//! **A supervisor that starts again** where another one ended before the VM did goes on as that one would have: from the newest
//! checkpoint, when all slices have surely stopped. A VM is over only if its guest or its user ended it, and it had gone on by then.
//!
//! **It ends.** A VM that is lost again and again without a new checkpoint in between is given up. Starts that are *refused* do not
//! count: storage that does not answer may do so later, and nothing has run. They are tried again every half minute at most.
//!
//! **A checkpoint that takes long** holds up the next ones. Nothing can be done from here, so it is said, again and again.
//!
//! **Increments.** The first checkpoint of each life of the VM is full, and so is each M-th one after that and the one after one that
//! failed; the others are increments of the one before. So a chain has M checkpoints at most.
//!
//! **Checkpoints are deleted when a newer one exists**, never before: not one of the newest, nor what these are increments of, nor one
//! that is damaged, which a person may want to see.
//!
//! Times are milliseconds of CLOCK_BOOTTIME, which goes on while a host sleeps and is not set by anybody.

mod layout;
mod planted;
mod policy;
mod shelf;
mod supervisor;
#[cfg(test)]
mod tests;
mod verdict;

pub use layout::{DeviceReach, Layout, Place, Plan, Room, Share};
#[cfg(feature = "planted-bugs")]
pub use planted::PlantedBug;
pub use policy::Policy;
pub use shelf::Shelf;
pub use supervisor::Supervisor;
pub use verdict::{Cause, Effect, Lives, Reason, Verdict};
