//! Why shared memory could not be set up.

use crate::config::ConfigError;
use crate::handshake::HandshakeError;
use std::io;
use wire::SliceId;

/// Why shared memory could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// The bounds cannot work.
    #[error("the transport's configuration cannot be used")]
    Config(#[source] ConfigError),
    /// Memory, doorbells or sockets cannot be made.
    #[error("cannot make shared memory for {slice}")]
    Create {
        /// The peer.
        slice: SliceId,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The peer did not prove itself, or is another one.
    #[error("the handshake with {slice} failed")]
    Handshake {
        /// The peer.
        slice: SliceId,
        /// Why.
        #[source]
        source: HandshakeError,
    },
    /// The peer sent something else than the descriptors.
    #[error("{slice} did not hand over usable shared memory: {what}")]
    BadOffer {
        /// The peer.
        slice: SliceId,
        /// What was wrong.
        what: &'static str,
    },
    /// The descriptors cannot be watched.
    #[error("cannot build the transport from its shared memory")]
    Transport(#[source] io::Error),
}
