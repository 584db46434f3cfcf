//! Why the slices of a VM could not be joined.

use crate::config::{CarrierKind, ConfigError};
use crate::control::ControlError;
use crate::handshake::HandshakeError;
#[cfg(feature = "rdma")]
use crate::rdma::RdmaError;
use crate::shm::ShmError;
use std::io;
use std::net::SocketAddr;
use wire::SliceId;

/// Why the slices of a VM could not be joined.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// No bootstrap came in time.
    #[error("no bootstrap called in time")]
    NoBootstrap,
    /// Waiting for connections failed.
    #[error("cannot wait for connections")]
    Wait(#[source] io::Error),
    /// The machine has no descriptor, memory or thread for one more connection.
    #[error("there is no room for one more connection")]
    NoRoom(#[source] io::Error),
    /// A slice cannot be reached.
    #[error("cannot connect to {slice} at {address}")]
    Connect {
        /// The slice.
        slice: SliceId,
        /// Where it should listen.
        address: SocketAddr,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// A slice that was called, or a caller, did not pass the handshake.
    #[error("the handshake with {with} failed")]
    Handshake {
        /// Slice and address, or address of the caller.
        with: String,
        /// Why.
        #[source]
        source: HandshakeError,
    },
    /// The control connection ended or carried nonsense.
    #[error("the set-up with {with} failed")]
    Control {
        /// Slice and address.
        with: String,
        /// Why.
        #[source]
        source: ControlError,
    },
    /// A companion said no when the slices were to connect.
    #[error("{slice} cannot join: {text}")]
    Refused {
        /// The slice.
        slice: SliceId,
        /// Its reason.
        text: String,
    },
    /// The bootstrap called it off.
    #[error("the bootstrap called it off: {text}")]
    Aborted {
        /// Its reason.
        text: String,
    },
    /// Some slices did not connect in time.
    #[error("{slice} did not connect in time")]
    Missing {
        /// The first that is missing.
        slice: SliceId,
    },
    /// The plan cannot work.
    #[error("the plan of slices cannot be used")]
    Plan(#[source] ControlError),
    /// The plan's bounds cannot work.
    #[error("the transport's configuration cannot be used")]
    Config(#[source] ConfigError),
    /// A blob is too large.
    #[error("a blob of {length} bytes is larger than a blob may be")]
    BlobTooLarge {
        /// Its length in bytes.
        length: usize,
    },
    /// No such companion.
    #[error("{slice} is no companion of this bootstrap")]
    NotACompanion {
        /// The slice.
        slice: SliceId,
    },
    /// The steps were called out of order.
    #[error("the set-up step \"{step}\" is out of order")]
    OutOfOrder {
        /// The step that was called.
        step: &'static str,
    },
    /// A slice cannot use the last carrier of the list.
    #[error("{kind} cannot be used, and the list of transports has nothing after it: {text}")]
    Carrier {
        /// The last of the list.
        kind: CarrierKind,
        /// Which slice, and why.
        text: String,
    },
    /// A newcomer and a member cannot reach each other over the carrier of the VM.
    #[error("{slice} cannot join a VM whose frames go over {kind}: {text}")]
    Newcomer {
        /// The newcomer.
        slice: SliceId,
        /// The carrier of the VM.
        kind: CarrierKind,
        /// Why.
        text: String,
    },
    /// A newcomer needs a number that nobody had.
    #[error("{slice} is or was a slice of this VM: a newcomer needs a number that nobody had")]
    NotFresh {
        /// The number.
        slice: SliceId,
    },
    /// What a member was told about a newcomer cannot be read.
    #[error("the summons to a newcomer cannot be used")]
    Summons(#[source] ControlError),
    /// Only the bootstrap has the secret that all keys come from.
    #[error("{local} is not the bootstrap, which alone can call a newcomer")]
    NotTheBootstrap {
        /// This slice.
        local: SliceId,
    },
    /// The shared memory cannot be made into a transport.
    #[error("cannot build the transport from its shared memory")]
    SharedMemory(#[source] ShmError),
    #[cfg(feature = "rdma")]
    /// The queue pairs cannot be made into a transport.
    #[error("cannot build the transport from its queue pairs")]
    QueuePairs(#[source] RdmaError),
    /// The sockets cannot be made into a transport.
    #[error("cannot build the transport from its connections")]
    Transport(#[source] io::Error),
}

impl MeshError {
    /// True when the other end closed a connection before it had told whether it wants the caller.
    pub(super) fn is_hang_up(&self) -> bool {
        matches!(self, Self::Handshake { source: HandshakeError::Closed, .. })
    }

    /// True when a slice cannot be reached or went away, as one whose host is down: the plan may be
    /// good, and the same call can succeed later or with another host in its place.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        use ControlError as C;
        use HandshakeError as H;
        match self {
            Self::Connect { .. } | Self::Missing { .. } => true,
            Self::Handshake { source, .. } => matches!(source, H::Closed | H::Io(_)),
            Self::Control { source, .. } => matches!(source, C::Closed | C::Io(_)),
            _ => false,
        }
    }
}
