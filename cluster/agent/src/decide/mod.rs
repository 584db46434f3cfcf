//! What the agent of a host does, decided without doing.
//!
//! One slice of a VM, as the agent sees it:
//!
//! ```text
//!   none --Ensure: recorded first--> Starting --process--> Running --process is gone--> Ended --Remove--> none
//!                                       │                     │ ^
//!                                       │ could not start     │ └── the agent starts again: found by its token
//!                                       └──────> Ended        └── Stop, Fence: asked to end, or killed
//! ```
//! **Recorded first.** [`Effect::Record`] comes before every effect that depends on it, and whoever carries effects out does them in
//! their order. An agent that is killed between two of them finds in its journal what it may have begun, and looks for it.
//!
//! **Three numbers fence.** The *term* is of the orchestrator: who has a lower one than was ever seen is deposed, and changes nothing.
//! The *generation* is of a VM's life: it rises when a VM goes on from a checkpoint. A generation that was fenced never runs here again, and
//! slices of two generations never run here together. The *token* is of one start: a process that carries it is that of this slice, whatever
//! its number.
//!
//! **Everything is asked for by content.** The same request twice has one effect: what is wished is there already. So whoever has
//! no answer asks again.
//!
//! **Without the orchestrator nothing ends.** An agent that hears from nobody leaves its slices alone; only reservations expire.
//!
//! Times are milliseconds of CLOCK_BOOTTIME, which goes on while a host sleeps and is not set by anybody.

mod agent;
mod capacity;
mod entry;
mod ids;
mod planted;
mod recovery;
mod request;
mod slice;

pub use agent::{Agent, Effect, Input, RESERVED_MAX_MS, Settings};
pub use entry::{Entry, Journal, Lowest, Reserved};
pub use ids::{Generation, Operation, SliceName, Term, Token, Vm};
#[cfg(feature = "planted-bugs")]
pub use planted::PlantedBug;
pub use recovery::Found;
pub use request::{Asked, Proof, Refusal, Reply, Request, Ticket};
pub use slice::{End, Manner, Order, Phase, Process, Slice};
