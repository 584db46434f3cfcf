//! Byte strings in saved states (RFC 8949, major type 2). serde by itself makes a list of numbers of them, up to two
//! bytes for each.

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};
use std::fmt;

/// Writes a byte string.
pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(bytes)
}

/// Reads a byte string. What it claims to be long is not allocated before it is there.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    from.deserialize_byte_buf(ByteString)
}

struct ByteString;

impl Visitor<'_> for ByteString {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte string")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use crate::saved::ConsoleInputState;
    use migrate::SavedError;
    use migrate::saved::{decode, encode};

    /// The bytes of a state with `ls` in it, up to the string.
    fn head() -> Vec<u8> {
        let state = ConsoleInputState { waiting: b"ls".to_vec() };
        let bytes = encode(&state).unwrap();
        bytes[..bytes.len() - 3].to_vec()
    }

    #[test]
    fn bytes_are_written_as_a_string_of_bytes() {
        let whole = [head(), b"\x42ls".to_vec()].concat();
        assert_eq!(decode::<ConsoleInputState>(&whole).unwrap().waiting, b"ls");
    }

    #[test]
    fn lengths_that_lie_and_lists_of_numbers_are_refused() {
        let endless = [&[0x5b][..], &(1_u64 << 62).to_be_bytes(), b"ls"].concat();
        for string in [&b"\x43ls"[..], b"\x41ls", b"\x82\x18\x6c\x18\x73", b"\x62ls", &endless] {
            let bytes = [&head()[..], string].concat();
            let error = decode::<ConsoleInputState>(&bytes).unwrap_err();
            assert!(matches!(error, SavedError::Malformed { .. }), "{error}");
        }
    }
}
