//! What slices tell each other about a checkpoint, and its bytes.
//!
//! ```text
//! head: 1 variant | 8 number of the checkpoint
//! behind it: what is asked for, what was written, or the text of a failure
//! ```

use super::cut::shortened;

/// The most bytes of what a slice is asked to write, and of what it says that it has written.
pub const CHECKPOINT_BYTES_MAX: usize = 4096;

/// What slices tell each other about a checkpoint. All of it has the number of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CheckpointMessage {
    /// To a slice: make ready to write this part, saved, at most [`CHECKPOINT_BYTES_MAX`] bytes.
    Prepare(u64, Vec<u8>),
    /// To the coordinator: it can begin.
    Prepared(u64),
    /// To the coordinator: the part is written and on the disk; what it is, saved, at most [`CHECKPOINT_BYTES_MAX`] bytes.
    Written(u64, Vec<u8>),
    /// To the coordinator: there is no part, and why; at most [`CAUSE_BYTES_MAX`](super::CAUSE_BYTES_MAX) bytes.
    Failed(u64, String),
    /// To a slice: the checkpoint is whole.
    Committed(u64),
    /// To a slice: there is no such checkpoint; the part goes.
    Discard(u64),
}

impl CheckpointMessage {
    /// The number of its checkpoint.
    #[must_use]
    pub fn number(&self) -> u64 {
        match self {
            Self::Prepare(number, _)
            | Self::Prepared(number)
            | Self::Written(number, _)
            | Self::Failed(number, _)
            | Self::Committed(number)
            | Self::Discard(number) => *number,
        }
    }

    /// Whether it goes from the coordinator to a slice.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        matches!(self, Self::Prepare(..) | Self::Committed(_) | Self::Discard(_))
    }
}

/// Variant, number, and what is behind the head. A text that is too long is cut.
pub(super) fn encode(message: &CheckpointMessage) -> (u8, u64, &[u8]) {
    let (variant, tail) = match message {
        CheckpointMessage::Prepare(_, request) => (0, &request[..]),
        CheckpointMessage::Prepared(_) => (1, &[][..]),
        CheckpointMessage::Written(_, summary) => (2, &summary[..]),
        CheckpointMessage::Failed(_, why) => (3, shortened(why).as_bytes()),
        CheckpointMessage::Committed(_) => (4, &[][..]),
        CheckpointMessage::Discard(_) => (5, &[][..]),
    };
    (variant, message.number(), tail)
}

/// The message, or the name of the field that cannot be.
pub(super) fn decode(
    variant: u8,
    number: u64,
    tail: &[u8],
) -> Result<CheckpointMessage, &'static str> {
    let bare = match variant {
        0 => return Ok(CheckpointMessage::Prepare(number, tail.to_vec())),
        2 => return Ok(CheckpointMessage::Written(number, tail.to_vec())),
        3 if tail.len() > super::CAUSE_BYTES_MAX => return Err("why"),
        3 => {
            let why = std::str::from_utf8(tail).map_err(|_| "why")?;
            return Ok(CheckpointMessage::Failed(number, why.to_owned()));
        }
        1 => CheckpointMessage::Prepared(number),
        4 => CheckpointMessage::Committed(number),
        5 => CheckpointMessage::Discard(number),
        _ => return Err("variant"),
    };
    if tail.is_empty() { Ok(bare) } else { Err("tail") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_of_encode_gives_the_message() {
        for message in [
            CheckpointMessage::Prepare(1, vec![1, 2]),
            CheckpointMessage::Prepared(u64::MAX),
            CheckpointMessage::Written(2, vec![3; CHECKPOINT_BYTES_MAX]),
            CheckpointMessage::Failed(3, "no room".into()),
            CheckpointMessage::Committed(4),
            CheckpointMessage::Discard(5),
        ] {
            let (variant, number, tail) = encode(&message);
            assert_eq!(decode(variant, number, tail), Ok(message));
        }
    }

    #[test]
    fn fields_that_cannot_be_are_refused() {
        let long = [b'a'; super::super::CAUSE_BYTES_MAX + 1];
        for (variant, tail, what) in [
            (6, &[][..], "variant"),
            (1, &[0], "tail"),
            (4, &[0], "tail"),
            (3, &[0xff], "why"),
            (3, &long, "why"),
        ] {
            assert_eq!(decode(variant, 1, tail), Err(what));
        }
    }
}
