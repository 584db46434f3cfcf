//! Carries out what [`decide`](crate::decide) says: leads by the store, calls agents, and tells whoever asks.
//!
//! ```text
//!   campaign ──> leads ──> load ──> machine ── one input after another ──> effects, one after another
//!      ^                              │ inputs: commands, ends of calls, ticks
//!      └── resign <── lease lost, commit failed, deposed, told to end   (the machine is dropped, and nothing of it goes on)
//! ```
//! **One task owns the machine**, so there is one order. Beside it goes what renews the lease: the one that ends first ends the other,
//! whatever it waits for. Calls are tasks of their own, which end with the leader. Each has its time, and carries the leader's term.
//!
//! Whoever asks has a [`Handle`]. With a leader gone, so are all answers that it owed: they say that nobody knows whether it was done.

mod agents;
mod campaign;
mod convert;
mod handle;
mod history;
mod leader;
mod load;

pub use agents::{AgentTls, Agents, AgentsError};
pub use campaign::{Standing, orchestrate};
pub use handle::{AskError, Handle, Inbox, Role, handle};
pub use leader::{Changed, Command, Ended, LeadError, Pace, View, lead};
pub use load::LoadError;
