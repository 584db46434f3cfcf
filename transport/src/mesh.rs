//! From addresses to a transport: who calls whom, what is agreed, and when it starts.
//!
//! ```text
//!  bootstrap (slice 0)                              companion (slice n)
//!    connect ---- control connection, handshake ----> Listener::accept
//!            ---- Assign: slice, members, blob -----> (Assignment, CompanionMesh)
//!    gather  <--- Agree blob | Refuse text ---------- answer
//!    measure_clock <--- Probe / Clock --------------> verdict
//!    commit  ---- Commit blob (abort: Abort text) --> verdict
//!    into_transport <== connections per class ======> into_transport (higher id calls lower)
//!    for each carrier of the list, best first:
//!            <== shared memory or queue pairs, agreed on over those connections ==>
//!            <--- Ready, or Ready and why not | Refuse text
//!            ---- Go with this carrier | Next | Abort text ->
//! ```
//!
//! The bootstrap calls every companion, because it need not listen. Everything here blocks, each
//! step until the caller's deadline. A refused stranger never ends a companion's wait, and an idle one does not
//! delay others (`acceptor`).

mod acceptor;
mod bootstrap;
mod companion;
mod context;
mod error;
mod listener;
mod transport;

pub use acceptor::Refused;
pub use bootstrap::{Answer, BootstrapMesh, Plan};
pub use companion::{Assignment, CompanionMesh};
pub use error::MeshError;
pub use listener::Listener;
pub use transport::MeshTransport;
