//! The fixed layouts of the handshake, little-endian.

use super::error::HandshakeError;
use crate::connection_id::{ConnectionId, Role, VmId};
use wire::{Epoch, SliceId};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 4] = *b"TESS";
/// The protocol version. It covers everything that slices say to each other.
pub(super) const VERSION: u16 = 11;
/// Bytes of a hello.
pub const HELLO_BYTES: usize = 64;
/// Bytes of a reply.
pub const REPLY_BYTES: usize = 40;
const CLASS_CONTROL: u8 = 0xff;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HelloLayout {
    magic: [u8; 4],
    version: U16,
    role: u8,
    class: u8,
    vm: [u8; 16],
    epoch: U32,
    from: U16,
    to: U16,
    nonce: [u8; 32],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReplyLayout {
    magic: [u8; 4],
    version: U16,
    status: u8,
    zero: u8,
    body: [u8; 32],
}

const _: () = assert!(size_of::<HelloLayout>() == HELLO_BYTES);
const _: () = assert!(size_of::<ReplyLayout>() == REPLY_BYTES);

/// Checks magic and version in the first bytes of either message.
pub(super) fn check_version(head: &[u8]) -> Result<(), HandshakeError> {
    let Ok((magic, rest)) = <[u8; 4]>::read_from_prefix(head) else {
        return Err(HandshakeError::Closed);
    };
    if magic != MAGIC {
        return Err(HandshakeError::Garbage { first: magic });
    }
    let Ok((version, _)) = U16::read_from_prefix(rest) else {
        return Err(HandshakeError::Closed);
    };
    match version.get() {
        VERSION => Ok(()),
        theirs => Err(HandshakeError::Version { ours: VERSION, theirs }),
    }
}

/// The first message: the caller says who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who and what for.
    pub connection: ConnectionId,
    /// Fresh randomness of the caller.
    pub nonce: [u8; 32],
}

impl Hello {
    /// The bytes on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let (role, class) = match self.connection.role {
            Role::Control => (0, CLASS_CONTROL),
            Role::Frames(class) => (1, class),
            Role::SharedMemory => (2, CLASS_CONTROL),
        };
        zerocopy::transmute!(HelloLayout {
            magic: MAGIC,
            version: U16::new(VERSION),
            role,
            class,
            vm: self.connection.vm.0,
            epoch: U32::new(self.connection.epoch.0),
            from: U16::new(self.connection.from.0),
            to: U16::new(self.connection.to.0),
            nonce: self.nonce,
        })
    }

    /// Reads the bytes of a hello.
    ///
    /// # Errors
    /// Wrong length, magic, version, role or class.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        check_version(bytes)?;
        let layout =
            HelloLayout::read_from_bytes(bytes).map_err(|_| HandshakeError::Malformed {
                field: "the length",
                value: u16::try_from(bytes.len()).unwrap_or(u16::MAX),
            })?;
        let role = match (layout.role, layout.class) {
            (0, CLASS_CONTROL) => Role::Control,
            (1, class @ 0..=3) => Role::Frames(class),
            (2, CLASS_CONTROL) => Role::SharedMemory,
            (role @ 0..=2, class) => {
                let value = u16::from(role) << 8 | u16::from(class);
                return Err(HandshakeError::Malformed { field: "the class", value });
            }
            (role, _) => {
                let value = u16::from(role);
                return Err(HandshakeError::Malformed { field: "the role", value });
            }
        };
        let connection = ConnectionId {
            role,
            vm: VmId(layout.vm),
            epoch: Epoch(layout.epoch.get()),
            from: SliceId(layout.from.get()),
            to: SliceId(layout.to.get()),
        };
        Ok(Self { connection, nonce: layout.nonce })
    }
}

/// What the listener says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The body is a nonce.
    Challenge,
    /// The body is the proof of the listener.
    Accept,
    /// Another version is spoken here.
    Version,
    /// The proof was wrong.
    ProofRefused,
    /// Another VM is served here.
    WrongVm,
    /// Another epoch is current here.
    WrongEpoch,
    /// The slice is not expected here.
    UnexpectedSlice,
    /// The purpose is not expected here.
    UnexpectedPurpose,
}

impl Status {
    const ALL: [Self; 8] = [
        Self::Challenge,
        Self::Accept,
        Self::Version,
        Self::ProofRefused,
        Self::WrongVm,
        Self::WrongEpoch,
        Self::UnexpectedSlice,
        Self::UnexpectedPurpose,
    ];

    pub(super) fn code(self) -> u8 {
        let place = Self::ALL.iter().position(|status| *status == self);
        place.and_then(|place| u8::try_from(place).ok()).expect("every status is listed")
    }

    /// The code that tells a proven caller about `error`.
    pub(super) fn of(error: &HandshakeError) -> Self {
        match error {
            HandshakeError::WrongVm { .. } => Self::WrongVm,
            HandshakeError::WrongEpoch { .. } => Self::WrongEpoch,
            HandshakeError::UnexpectedSlice { .. } => Self::UnexpectedSlice,
            _ => Self::UnexpectedPurpose,
        }
    }
}

/// A message of the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What it says.
    pub status: Status,
    /// A nonce, a proof, or zeros.
    pub body: [u8; 32],
}

impl Reply {
    /// The bytes on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        zerocopy::transmute!(ReplyLayout {
            magic: MAGIC,
            version: U16::new(VERSION),
            status: self.status.code(),
            zero: 0,
            body: self.body,
        })
    }

    /// Reads the bytes of a reply.
    ///
    /// # Errors
    /// Wrong length, magic, version or status.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        check_version(bytes)?;
        let layout =
            ReplyLayout::read_from_bytes(bytes).map_err(|_| HandshakeError::Malformed {
                field: "the length",
                value: u16::try_from(bytes.len()).unwrap_or(u16::MAX),
            })?;
        let status = Status::ALL.get(usize::from(layout.status)).copied();
        let malformed = HandshakeError::Malformed {
            field: "the status",
            value: u16::from(layout.status) << 8 | u16::from(layout.zero),
        };
        match status {
            Some(status) if layout.zero == 0 => Ok(Self { status, body: layout.body }),
            _ => Err(malformed),
        }
    }

    /// The refusal in it, from the side of the caller.
    pub(super) fn refusal(&self, connection: &ConnectionId) -> Option<HandshakeError> {
        match self.status {
            Status::Challenge | Status::Accept => None,
            // A reply of another version is caught by its head; this one contradicts itself.
            Status::Version => Some(HandshakeError::Version { ours: VERSION, theirs: VERSION }),
            Status::ProofRefused => Some(HandshakeError::ProofRefused),
            Status::WrongVm => Some(HandshakeError::WrongVm { theirs: None }),
            Status::WrongEpoch => Some(HandshakeError::WrongEpoch { theirs: None }),
            Status::UnexpectedSlice => {
                Some(HandshakeError::UnexpectedSlice { from: connection.from, to: connection.to })
            }
            Status::UnexpectedPurpose => Some(HandshakeError::UnexpectedPurpose),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn role() -> impl Strategy<Value = Role> {
        prop_oneof![Just(Role::Control), (0u8..3).prop_map(Role::Frames), Just(Role::SharedMemory)]
    }

    proptest! {
        #[test]
        fn hello_round_trips(
            role in role(), vm: [u8; 16], epoch: u32, from: u16, to: u16, nonce: [u8; 32],
        ) {
            let connection = ConnectionId {
                role, vm: VmId(vm), epoch: Epoch(epoch), from: SliceId(from), to: SliceId(to),
            };
            let hello = Hello { connection, nonce };

            prop_assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
        }

        #[test]
        fn reply_round_trips(place in 0usize..8, body: [u8; 32]) {
            let reply = Reply { status: Status::ALL[place], body };

            prop_assert_eq!(Reply::decode(&reply.encode()).unwrap(), reply);
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
            let _ = Hello::decode(&bytes);
            let _ = Reply::decode(&bytes);
        }

        #[test]
        fn decoded_hello_encodes_to_the_same_bytes(tail in prop::collection::vec(any::<u8>(), 58)) {
            let mut bytes = b"TESS\x01\x00".to_vec();
            bytes.extend(tail);

            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(&hello.encode()[..], &bytes[..]);
            }
        }
    }
}
