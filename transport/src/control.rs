//! What bootstrap and companion say on the control connection before the transport exists.
//!
//! A message is a little-endian `u32` length and that many bytes of postcard. The connection is
//! authenticated by then; sizes are bounded all the same.

use crate::config::{CarrierKind, Config};
use crate::credential::Ticket;
use crate::handshake::{Channel, read_all, write_all};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::time::Instant;
use wire::SliceId;

/// The largest opaque configuration, answer or final blob, in bytes.
pub const BLOB_BYTES_MAX: usize = 1 << 20;
/// The most slices of one VM.
pub const MEMBERS_MAX: usize = 64;
/// The longest refusal or abort text, in bytes; longer ones are cut.
pub const TEXT_BYTES_MAX: usize = 1024;
const MESSAGE_BYTES_MAX: usize = BLOB_BYTES_MAX + 16 * 1024;

/// One slice of the VM and where it listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The slice.
    pub slice: SliceId,
    /// Where it listens; `None` for the bootstrap, which only calls.
    pub address: Option<SocketAddr>,
}

/// Why a control message could not be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The peer went away.
    #[error("the peer closed the control connection")]
    Closed,
    /// Nothing came in time.
    #[error("the peer said nothing in time on the control connection")]
    Timeout,
    /// The connection failed.
    #[error("the control connection failed")]
    Io(#[source] io::Error),
    /// A length beyond the bound.
    #[error(
        "the peer announced a control message of {length} bytes, {MESSAGE_BYTES_MAX} are allowed"
    )]
    Oversized {
        /// The announced length in bytes.
        length: u32,
    },
    /// Bytes that are no message.
    #[error("the peer sent a control message that cannot be read")]
    Malformed(#[source] postcard::Error),
    /// A value beyond its bound.
    #[error("the peer sent a control message with {what} out of bounds")]
    OutOfBounds {
        /// The value.
        what: &'static str,
    },
    /// A good message at the wrong time.
    #[error("the peer sent \"{got}\" where \"{want}\" was expected")]
    Unexpected {
        /// What came.
        got: &'static str,
        /// What belongs there.
        want: &'static str,
    },
}

impl From<io::Error> for ControlError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// What a companion is told about its VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assign {
    /// The companion's own slice.
    pub local: SliceId,
    /// All slices, the bootstrap included.
    pub members: Vec<Member>,
    /// Bounds and times for all.
    pub config: Config,
    /// Opaque to this crate.
    pub blob: Vec<u8>,
    /// For the slices that it has to call.
    pub tickets: Vec<Ticket>,
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// To a companion: be this slice.
    Assign(Assign),
    /// From a companion: agreed, and this is what I have.
    Agree(Vec<u8>),
    /// From a companion: no, and this is why.
    Refuse(String),
    /// To a companion: read your clock.
    Probe,
    /// From a companion: my clock.
    Clock(u64),
    /// To a companion: all agreed; connect to the others.
    Commit(Vec<u8>),
    /// To a companion: it will not be.
    Abort(String),
    /// From a companion: connected to all others on the carrier that is tried; or why that cannot be.
    Ready(Option<String>),
    /// To a companion: everybody is connected, and this carries the frames.
    Go(CarrierKind),
    /// To a companion: some slice cannot use this carrier; try the next one of the list.
    Next,
    /// To a newcomer that is ready, before it is to go: how the VM stands that it joins.
    State(Vec<u8>),
    /// To a companion: all agreed; do what takes long, and then agree once more, or refuse.
    Prepare,
}

impl Control {
    /// A word for messages to people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Assign(_) => "assign",
            Self::Agree(_) => "agree",
            Self::Refuse(_) => "refuse",
            Self::Probe => "probe",
            Self::Clock(_) => "clock",
            Self::Commit(_) => "commit",
            Self::Abort(_) => "abort",
            Self::Ready(_) => "ready",
            Self::State(_) => "state",
            Self::Go(_) => "go",
            Self::Next => "next",
            Self::Prepare => "prepare",
        }
    }

    /// Reads the bytes after the length.
    ///
    /// # Errors
    /// They are no message, or a value in it is out of bounds.
    pub fn decode(bytes: &[u8]) -> Result<Self, ControlError> {
        let message: Self = postcard::from_bytes(bytes).map_err(ControlError::Malformed)?;
        let (what, good) = match &message {
            Self::Assign(assign) => {
                check_members(&assign.members)?;
                assign.config.validate().map_err(|_| bounds("the transport configuration"))?;
                if assign.tickets.len() > MEMBERS_MAX {
                    return Err(bounds("the number of tickets"));
                }
                ("the configuration blob", assign.blob.len() <= BLOB_BYTES_MAX)
            }
            Self::Agree(blob) | Self::Commit(blob) | Self::State(blob) => {
                ("the blob", blob.len() <= BLOB_BYTES_MAX)
            }
            Self::Refuse(text) | Self::Abort(text) => ("the text", text.len() <= TEXT_BYTES_MAX),
            Self::Ready(text) => {
                ("the text", text.as_ref().is_none_or(|text| text.len() <= TEXT_BYTES_MAX))
            }
            Self::Probe | Self::Clock(_) | Self::Go(_) | Self::Next | Self::Prepare => {
                ("nothing", true)
            }
        };
        if good { Ok(message) } else { Err(bounds(what)) }
    }

    /// The bytes with their length.
    fn encode(&self) -> Result<Vec<u8>, ControlError> {
        let body = postcard::to_stdvec(self).map_err(ControlError::Malformed)?;
        let length = u32::try_from(body.len()).map_err(|_| bounds("the length"))?;
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(body);
        Ok(bytes)
    }

    /// Sends the message until `deadline`.
    pub(crate) fn send(
        &self,
        channel: &mut impl Channel,
        deadline: Instant,
    ) -> Result<(), ControlError> {
        Ok(write_all(channel, &self.encode()?, deadline)?)
    }

    /// Receives a message until `deadline`.
    pub(crate) fn receive(
        channel: &mut impl Channel,
        deadline: Instant,
    ) -> Result<Self, ControlError> {
        let mut length = [0; 4];
        read_all(channel, &mut length, deadline)?;
        let length = u32::from_le_bytes(length);
        let size = usize::try_from(length).unwrap_or(usize::MAX);
        if size > MESSAGE_BYTES_MAX {
            return Err(ControlError::Oversized { length });
        }
        let mut bytes = vec![0; size];
        read_all(channel, &mut bytes, deadline)?;
        Self::decode(&bytes)
    }
}

fn bounds(what: &'static str) -> ControlError {
    ControlError::OutOfBounds { what }
}

/// Checks a membership: bounded, every slice once, the bootstrap among them, every other slice with
/// an address of its own.
pub(crate) fn check_members(members: &[Member]) -> Result<(), ControlError> {
    if members.len() > MEMBERS_MAX {
        return Err(bounds("the number of slices"));
    }
    for (place, member) in members.iter().enumerate() {
        let rest = &members[place + 1..];
        if rest.iter().any(|other| other.slice == member.slice) {
            return Err(bounds("a slice that is named twice"));
        }
        if member.slice == SliceId(0) {
            continue;
        }
        if member.address.is_none() {
            return Err(bounds("a companion without an address"));
        }
        if rest.iter().any(|other| other.address == member.address) {
            return Err(bounds("an address of two slices"));
        }
    }
    if !members.iter().any(|member| member.slice == SliceId(0)) {
        return Err(bounds("a membership without the bootstrap"));
    }
    Ok(())
}

/// Cuts a text to its bound, at a character.
pub(crate) fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn assign() -> Control {
        let address = Some("10.9.0.2:7100".parse().unwrap());
        Control::Assign(Assign {
            local: SliceId(1),
            members: vec![
                Member { slice: SliceId(0), address: None },
                Member { slice: SliceId(1), address },
            ],
            config: Config::default(),
            blob: vec![1, 2, 3],
            tickets: vec![Ticket { to: SliceId(1), sealed: [4; 32] }],
        })
    }

    #[test]
    fn assignment_round_trips() {
        let bytes = assign().encode().unwrap();

        assert_eq!(Control::decode(&bytes[4..]).unwrap(), assign());
    }

    #[test]
    fn membership_with_a_slice_twice_is_refused() {
        let Control::Assign(mut message) = assign() else { panic!("built as an assignment") };
        message.members.push(Member { slice: SliceId(1), address: None });

        assert!(matches!(check_members(&message.members), Err(ControlError::OutOfBounds { .. })));
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        let text = "ü".repeat(TEXT_BYTES_MAX);

        assert_eq!(cut(&text).len(), TEXT_BYTES_MAX);
        assert_eq!(cut(&format!("x{text}")).len(), TEXT_BYTES_MAX - 1);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = Control::decode(&bytes);
        }

        #[test]
        fn changed_assignment_never_panics(place: prop::sample::Index, value: u8) {
            let mut bytes = assign().encode().unwrap();
            let at = 4 + place.index(bytes.len() - 4);
            bytes[at] = value;

            let _ = Control::decode(&bytes[4..]);
        }
    }
}
