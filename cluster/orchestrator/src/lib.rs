//! The orchestrator of a cluster: where VMs run, and that they do.
//!
//! ```text
//!   users ── Ask ──┐                      ┌── Commit ──> store, under the leader's term
//!                  v                      │
//!            decide::Orchestrator ── step ┼── Call ────> agents, and VMs by their agents
//!                  ^   (pure)             │
//!   agents, VMs ── Answered               └── Answer ──> users
//! ```
//! [`decide`] is pure: no clock, no network. What carries its effects out is not here yet.

#![forbid(unsafe_code)]

pub mod decide;
