//! Why a handshake failed.

use crate::connection_id::VmId;
use std::io::{self, ErrorKind};
use wire::{Epoch, SliceId};

/// Why a handshake failed. One line each; the reader knows from the caller which peer it was.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The other end is no Tessera.
    #[error("the peer does not speak this protocol: its first bytes are {first:02x?}")]
    Garbage {
        /// The first bytes that came.
        first: [u8; 4],
    },
    /// The other end speaks another version.
    #[error("the peer speaks protocol version {theirs}, this side speaks version {ours}")]
    Version {
        /// Our version.
        ours: u16,
        /// The version of the peer.
        theirs: u16,
    },
    /// A field has a value that does not exist.
    #[error("the peer sent a malformed greeting: {field} is {value}")]
    Malformed {
        /// The field.
        field: &'static str,
        /// What it held.
        value: u16,
    },
    /// The proof was wrong, on either side.
    #[error("the peer could not prove that it knows the secret")]
    Unproven,
    /// This side was given no key for that connection.
    #[error("this side has no key to prove itself to {to} with")]
    NoKey {
        /// Whom it wants.
        to: SliceId,
    },
    /// The other end refused our proof: the secrets differ.
    #[error("the peer refused the proof of this side: the secrets differ")]
    ProofRefused,
    /// The connection is for another VM.
    #[error("the peer serves another VM{}", shown(theirs))]
    WrongVm {
        /// Its VM, when it said so.
        theirs: Option<VmId>,
    },
    /// The connection is for another epoch.
    #[error("the peer is in another epoch{}", shown(theirs))]
    WrongEpoch {
        /// Its epoch, when it said so.
        theirs: Option<Epoch>,
    },
    /// The slice is not the one that belongs here.
    #[error("slice {from} wants {to} here, which is not expected")]
    UnexpectedSlice {
        /// The caller.
        from: SliceId,
        /// Whom it wanted.
        to: SliceId,
    },
    /// The role or the class does not belong here, or came twice.
    #[error("the connection has a purpose that is not expected here")]
    UnexpectedPurpose,
    /// Too many others called meanwhile.
    #[error("the peer had proved nothing yet when its place was needed")]
    Crowded,
    /// The other end did not answer in time.
    #[error("the peer said nothing in time")]
    Timeout,
    /// The other end closed in the middle.
    #[error("the peer closed the connection during the handshake")]
    Closed,
    /// The connection failed.
    #[error("cannot exchange the handshake with the peer")]
    Io(#[source] io::Error),
}

fn shown<T: std::fmt::Display>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(String::new, |value| format!(": {value}"))
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Timeout,
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                Self::Closed
            }
            _ => Self::Io(error),
        }
    }
}
