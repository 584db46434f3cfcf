//! Frames between the slices of one VM.
//!
//! One thread of a slice owns its [`Transport`] and drives it by polling; nothing here blocks once
//! the transport exists, and nothing here knows pages, vCPUs or guests.
//!
//! ```text
//!  mesh ──(handshake, control)─┬> TcpTransport ┐
//!                              ├> RdmaTransport ┼─ engine ── frame, outbox, credits, lease
//!                              └> ShmTransport ─┘
//! ```
//!
//! The engine is written once. A carrier ([`TcpTransport`], [`RdmaTransport`], [`ShmTransport`]) only moves
//! bytes: an ordered byte stream for each class to each peer, so that a full stream of pages never delays an
//! interrupt, and prefetched pages never delay one that is waited for.

mod carrier;
mod clock;
mod config;
mod connection_id;
pub mod control;
mod credential;
mod engine;
pub mod frame;
pub mod handshake;
mod key;
mod link;
mod memory;
mod mesh;
mod one_line;
mod outbox;
mod pairs;
#[cfg(feature = "rdma")]
pub mod rdma;
mod ready;
mod secret;
pub mod shm;
mod steps;
mod sys;
pub mod tcp;
#[cfg(test)]
mod testing;
mod traits;

pub use clock::ClockEstimate;
pub use config::{CarrierKind, Config, ConfigError, RdmaMemory};
pub use control::{BLOB_BYTES_MAX, ControlError, MEMBERS_MAX, Member};
pub use credential::{Credential, Ticket};
pub use handshake::{HandshakeError, VmId};
pub use key::{Key, Keys, SliceKey};
pub use link::{AddPeerError, FormerPeer, PeerLink};
pub use memory::PageMemory;
pub use mesh::{
    Answer, Assignment, BootstrapMesh, Cancel, CompanionMesh, Invitation, Listener, Membership,
    MeshError, MeshTransport, Plan, Refused, Summons,
};
pub use one_line::one_line;
#[cfg(feature = "rdma")]
pub use rdma::{RdmaError, RdmaTransport};
pub use secret::{Secret, SecretError};
pub use shm::ShmTransport;
pub use tcp::TcpTransport;
pub use traits::{
    Class, DIRECT_HEAD_MAX, DirectReceive, Event, FRAME_BYTES_MAX, RUN_BYTES_MAX, SendError,
    Transport,
};
