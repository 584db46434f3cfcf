//! The gRPC API of one VM, as each of its slices serves it.
//!
//! ```text
//!   UNIX socket of vmm::control --HTTP/2 preface--+--> server (thread "api") --> VmService, Operations, health, reflection
//!   TCP --TLS 1.3, certificates of both ends------+                                 |
//!                                                                 asks, on threads that may wait
//!                                                                                   v
//!                                                                          vmm::control::Desk
//! ```
//! tokio runs on the thread "api" and nowhere else: what waits for a VM waits on threads of its own, of which there are few.
//! Everything that clients can make more of is bounded: connections, streams, watchers, operations, ids, waits, message sizes.

#![forbid(unsafe_code)]

mod client;
mod connection;
mod listening;
mod operations;
mod problem;
mod requests;
mod server;
mod service;
mod serving;
mod shape;
mod socket;
mod tls;
mod watch;

pub use client::{Channel, ClientError, connect};
pub use connection::{Connection, Stream, Who, admit};
pub use listening::{Listening, Remote, ServerError, welcome_remote};
pub use problem::{Detail, Problem, Row, row, status, status_of_row};
pub use server::Server;
pub use service::VmApi;
pub use serving::{PING_EVERY, PING_LIMIT, STREAMS_MAX, asked_to_stop, reflection, serve_until};
pub use socket::{listen_at, welcome_socket};
pub use tls::{TlsError, TlsFiles, certificate_file, key_file};
pub use watch::{QUEUE_MAX, WATCHERS_MAX};
