//! The gRPC API of a cluster: `Vms`, `Hosts`, `Cluster` and `google.longrunning.Operations`, as the leader answers them.
//!
//! ```text
//!   UNIX socket, peer credentials --+--> server (thread "cluster-api") --> Vms, Hosts, Cluster, Operations --> run::Handle
//!   TCP, TLS 1.3, both certificates-+                                       names, spec: in   shape: out
//! ```
//! Nothing is remembered here. Everything that clients can make more of is bounded: connections, streams, watchers, those who wait,
//! pages, and the bytes of a request.

mod cluster;
mod hosts;
mod metrics;
mod names;
mod operations;
mod problem;
mod server;
mod shape;
mod spec;
mod vms;
mod watch;

pub use problem::{Problem, row, status};
pub use server::{Options, OrchestratorError, Server, serve};
pub use watch::WATCHERS_MAX;
