//! The orchestrator of a cluster: where VMs run, and that they do.
//!
//! ```text
//!   users ── Ask ──┐                      ┌── Commit ──> store, under the leader's term
//!                  v                      │
//!            decide::Orchestrator ── step ┼── Call ────> agents, and VMs by their agents
//!                  ^   (pure)             │
//!   agents, VMs ── Answered               └── Answer ──> users
//! ```
//! [`decide`] is pure: no clock, no network. [`run`] carries its effects out, one after another, as long as it leads. [`api`] is what
//! users call.

#![forbid(unsafe_code)]

pub mod api;
pub mod decide;
pub mod run;
