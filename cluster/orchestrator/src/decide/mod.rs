//! What an orchestrator decides. A machine: it has no clock, no thread and no network.
//!
//! ```text
//!   a VM:   waits ──the scheduler finds room──> starts ──its guest runs──> runs
//!             ^ ^                                 │ a step fails             │ guest ends, a slice is lost,
//!             │ └──── undone in reverse <─────────┘                          │ halted, deleted
//!             └── restart <── fenced on all its hosts <── stops <────────────┘──> stopped, or no more
//!
//!   Start:  keep room on all hosts -> companions -> bootstrap -> wait until the guest runs
//!           undone by: fence on all hosts -> give room back
//!   Stop, Restart, Delete:  shut the guest down -> fence on all hosts -> forget its slices.  Only goes on, never back.
//!   Move, Checkpoint:       beside a guest that runs (`moving.rs`, `checkpoint.rs`).
//! ```
//! **Recorded first.** All changes of a step are one commit, and it is the first effect: nothing is called or answered before what it
//! follows from is in the store. If it cannot be committed the machine is dropped, and another one begins from the store
//! ([`Orchestrator::recover`]). So it may be killed between any two effects: calls are asked again, and agents do each once.
//!
//! **Numbers.** A new life of a VM begins only after the one before was proven to be over on each of its hosts: by the agent's
//! proof, by the proof for another slice and a lease without it, or by the operator's word that the host is gone.

mod ask;
mod asking;
mod avoid;
mod call;
mod care;
mod checkpoint;
mod explain;
mod fate;
mod finish;
mod goal;
mod hosts;
mod identity;
mod ids;
mod machine;
mod moves;
mod moving;
mod objects;
mod older;
mod placement;
mod planted;
mod progress;
mod recover;
mod rest;
mod serve;
mod start;
mod stop;
mod sweep;
mod view;
mod work;

pub use ask::{Answer, Ask, Refusal, Request};
pub use call::{
    Call, Failure, Phase, Place, Reply, Report, Restore, Role, SharePart, SliceReport, Target,
    VmSight, Written,
};
pub use explain::VmWhy;
pub use goal::{Goal, Reached};
pub use ids::{CallId, Ticket, Time};
pub use machine::{Effect, Input, Orchestrator, Settings};
pub use objects::{Objects, Stored, Write};
pub use placement::Choice;
#[cfg(feature = "planted-bugs")]
pub use planted::PlantedBug;
pub(crate) use start::LIFE_MAX;
pub use view::{Counts, HostStanding, HostView, Plan, Standing, Standings};
