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
//! One more slice can join while the VM runs. Members that run do not listen, so all of them call the newcomer:
//!
//! ```text
//!  bootstrap                          members                        newcomer
//!    invite -------- control connection, handshake, Assign --------> Listener::accept
//!    answer, measure_clock, commit <-- as above -------------------> answer, verdict
//!    summons -- by frames of the VM --> Membership::meet
//!    meet =============================== connections, carrier ====> into_transport (waits for all)
//!         <------------------------------------------------- Ready, or Ready and why not | Refuse text
//!         <-- by frames of the VM: met, or why not
//!    add_peer                           add_peer                           |
//!    admit ------------------------------- State blob, Go ---------> the transport to all
//! ```
//!
//! Up to `add_peer` nothing has changed in the mesh that runs; after it, `remove_peer` undoes it.
//!
//! The bootstrap calls every companion, because it need not listen. Everything here blocks, each
//! step until the caller's deadline. A refused stranger never ends a companion's wait, and an idle one does not
//! delay others (`acceptor`).

mod acceptor;
mod bootstrap;
mod companion;
mod context;
mod error;
mod invitation;
mod listener;
mod membership;
mod summons;
mod transport;

pub use acceptor::Refused;
pub use bootstrap::{Answer, BootstrapMesh, Plan};
pub use companion::{Assignment, CompanionMesh};
pub use error::MeshError;
pub use invitation::{Cancel, Invitation};
pub use listener::Listener;
pub use membership::Membership;
pub use summons::Summons;
pub use transport::MeshTransport;
