//! What is asked of the agent of a host, over gRPC: `AgentService`, and the way on to the slices of the host.
//!
//! ```text
//!   UNIX socket, peer credentials --+--> server (thread "agent-api") --> AgentService --order, names--> agent::runtime --> slices
//!   TCP, TLS 1.3, both certificates-+                \--> VmService, Operations: `tessera-slice` --> control socket of that slice
//! ```
//! The agent decides, and its journal says what is here; nothing is remembered beside it. Files of a slice (secret, sockets, report) are in
//! a folder whose name is the slice's, so whoever asks twice finds the same.

#![forbid(unsafe_code)]

mod checkpoints;
mod forward;
mod inventory;
mod logs;
mod metrics;
mod names;
mod order;
mod places;
mod ports;
mod problem;
mod server;
mod service;
mod shape;
mod watch;

pub use forward::METADATA;
pub use inventory::{Ability, Inventory, Node};
pub use ports::Ports;
pub use problem::{Problem, row, status};
pub use server::{AgentError, Options, Server};
pub use watch::{MISSED_MAX, WATCHERS_MAX};
