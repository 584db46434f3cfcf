//! Frames between a lab and the agent of a host: many commands over one byte stream.
//!
//! ```text
//!   u32 length of the rest | u8 kind | u32 command id | payload       (little-endian)
//! ```
//! The payload is raw bytes for output, JSON where it has structure: this is a test tool, and a frame
//! that a person can read in a dump is worth more than a few bytes.

use std::io::{self, ErrorKind, Read, Write};

use thiserror::Error;

use crate::command::{Command, ExitStatus, Stream};

/// Largest payload in bytes. Output is cut into pieces of at most [`CHUNK`].
pub const MAX_PAYLOAD: usize = 256 * 1024;
/// Size in bytes of the pieces that output is cut into.
pub const CHUNK: usize = 16 * 1024;
const HEADER: usize = 5;

const HELLO: u8 = 1;
const START: u8 = 2;
const SIGNAL: u8 = 3;
const OUT: u8 = 4;
const ERROR: u8 = 5;
const EXIT: u8 = 6;
const REFUSED: u8 = 7;

/// Identifies a command on one stream; chosen by the side that starts commands.
pub type CommandId = u32;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Agent to lab, once, first: ready for commands.
    Hello,
    /// Lab to agent: run this.
    Start(CommandId, Command),
    /// Lab to agent: send this signal to the command's process group.
    Signal(CommandId, i32),
    /// Agent to lab: output.
    Output(CommandId, Stream, Vec<u8>),
    /// Agent to lab: the command ended; nothing more follows for this id.
    Exit(CommandId, ExitStatus),
    /// Agent to lab: the command could not be started; nothing more follows for this id.
    Refused(CommandId, String),
}

/// A frame that cannot be read.
#[derive(Debug, Error)]
pub enum FrameError {
    /// The stream ended inside a frame or failed.
    #[error("read a frame from the agent stream")]
    Stream(#[source] io::Error),
    /// The length field is out of bounds.
    #[error("frame of {0} bytes, allowed are {HEADER} to {max}", max = HEADER + MAX_PAYLOAD)]
    Length(usize),
    /// A kind that does not exist.
    #[error("frame kind {0} is unknown")]
    Kind(u8),
    /// The payload is not what the kind demands.
    #[error("frame of kind {kind} has a malformed payload")]
    Payload {
        /// Kind of the frame.
        kind: u8,
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
}

impl Frame {
    /// The frame as bytes, length first.
    pub fn encode(&self) -> Vec<u8> {
        let json = |value: serde_json::Result<Vec<u8>>| value.expect("plain data serialises");
        let (kind, id, payload) = match self {
            Self::Hello => (HELLO, 0, Vec::new()),
            Self::Start(id, command) => (START, *id, json(serde_json::to_vec(command))),
            Self::Signal(id, signal) => (SIGNAL, *id, json(serde_json::to_vec(signal))),
            Self::Output(id, Stream::Out, bytes) => (OUT, *id, bytes.clone()),
            Self::Output(id, Stream::Error, bytes) => (ERROR, *id, bytes.clone()),
            Self::Exit(id, status) => (EXIT, *id, json(serde_json::to_vec(status))),
            Self::Refused(id, reason) => (REFUSED, *id, json(serde_json::to_vec(reason))),
        };
        let length = u32::try_from(HEADER + payload.len()).unwrap_or(u32::MAX);
        let mut frame = Vec::with_capacity(4 + HEADER + payload.len());
        frame.extend_from_slice(&length.to_le_bytes());
        frame.push(kind);
        frame.extend_from_slice(&id.to_le_bytes());
        frame.extend_from_slice(&payload);
        frame
    }

    /// Parses a frame without its length field.
    ///
    /// # Errors
    /// [`FrameError`] when the bytes are too short, too long, of an unknown kind or malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let Some((&[kind, a, b, c, d], payload)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(FrameError::Length(bytes.len()));
        };
        if payload.len() > MAX_PAYLOAD {
            return Err(FrameError::Length(bytes.len()));
        }
        let id = u32::from_le_bytes([a, b, c, d]);
        let malformed = |source| FrameError::Payload { kind, source };
        Ok(match kind {
            HELLO => Self::Hello,
            START => Self::Start(id, serde_json::from_slice(payload).map_err(malformed)?),
            SIGNAL => Self::Signal(id, serde_json::from_slice(payload).map_err(malformed)?),
            OUT => Self::Output(id, Stream::Out, payload.to_vec()),
            ERROR => Self::Output(id, Stream::Error, payload.to_vec()),
            EXIT => Self::Exit(id, serde_json::from_slice(payload).map_err(malformed)?),
            REFUSED => Self::Refused(id, serde_json::from_slice(payload).map_err(malformed)?),
            _ => return Err(FrameError::Kind(kind)),
        })
    }

    /// Reads one frame; `None` at the end of the stream.
    ///
    /// # Errors
    /// [`FrameError`] when the stream fails, ends inside a frame, or carries no valid frame.
    pub fn read(stream: &mut impl Read) -> Result<Option<Self>, FrameError> {
        let mut length = [0; 4];
        match stream.read_exact(&mut length) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            other => other.map_err(FrameError::Stream)?,
        }
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if !(HEADER..=HEADER + MAX_PAYLOAD).contains(&length) {
            return Err(FrameError::Length(length));
        }
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).map_err(FrameError::Stream)?;
        Self::decode(&bytes).map(Some)
    }

    /// Writes the frame whole.
    ///
    /// # Errors
    /// When the stream fails.
    pub fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        stream.write_all(&self.encode())?;
        stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_frame() -> impl Strategy<Value = Frame> {
        let words = proptest::collection::vec(".{0,12}", 0..4);
        let command = (words, proptest::option::of(".{0,9}")).prop_map(|(arguments, folder)| {
            Command { arguments, environment: vec![("A".into(), "b".into())], folder }
        });
        prop_oneof![
            Just(Frame::Hello),
            (any::<u32>(), command).prop_map(|(id, command)| Frame::Start(id, command)),
            (any::<u32>(), any::<i32>()).prop_map(|(id, signal)| Frame::Signal(id, signal)),
            (any::<u32>(), proptest::collection::vec(any::<u8>(), 0..300))
                .prop_map(|(id, bytes)| Frame::Output(id, Stream::Error, bytes)),
            (any::<u32>(), any::<i32>())
                .prop_map(|(id, code)| Frame::Exit(id, ExitStatus::Code(code))),
            (any::<u32>(), ".{0,40}").prop_map(|(id, reason)| Frame::Refused(id, reason)),
        ]
    }

    proptest! {
        #[test]
        fn frame_written_and_read_is_the_same(frame in any_frame()) {
            let bytes = frame.encode();

            let read = Frame::read(&mut bytes.as_slice()).unwrap();

            prop_assert_eq!(read, Some(frame));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(Frame::decode(&bytes));
            drop(Frame::read(&mut bytes.as_slice()));
        }
    }

    #[test]
    fn oversized_length_is_refused_before_allocation() {
        let bytes = u32::MAX.to_le_bytes();

        let error = Frame::read(&mut bytes.as_slice()).unwrap_err();

        assert!(matches!(error, FrameError::Length(_)), "{error}");
    }

    #[test]
    fn truncated_frame_is_an_error_and_not_an_end() {
        let mut bytes = Frame::Signal(7, 9).encode();
        bytes.pop();

        assert!(Frame::read(&mut bytes.as_slice()).is_err());
    }
}
