//! Why bytes are not a message.

use thiserror::Error;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Shorter than the head, or than the head says.
    #[error("decode a coherence message: {have} bytes where {need} are needed")]
    Length {
        /// Bytes there are.
        have: usize,
        /// Bytes there should be.
        need: usize,
    },
    /// A kind that this version does not know.
    #[error("decode a coherence message: unknown kind {0}")]
    Kind(u8),
    /// A field outside its range.
    #[error("decode a coherence message of kind {kind}: field {field} is out of range")]
    Field {
        /// The kind.
        kind: u8,
        /// The field.
        field: &'static str,
    },
}
