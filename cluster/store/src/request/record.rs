//! What is kept of a request, under `requests/ID`.
//!
//! | bytes | |
//! |---|---|
//! | 0 | version, 1 |
//! | 1 | 1: done, 2: void |
//! | 2..10 | seconds since 1970 when it was written, little-endian |
//! | 10..26 | digest of what was asked for |
//! | 26.. | the answer; nothing if void |

use std::fmt::{self, Display, Formatter};

use crate::entry::Value;
use crate::error::StoreError;
use crate::key::{Key, Prefix};

/// An answer that is kept has at most so many bytes.
pub const ANSWER_BYTES_MAX: usize = 4096;

const VERSION: u8 = 1;
const DONE: u8 = 1;
const VOID: u8 = 2;
const HEAD: usize = 26;

/// The name of what somebody wants done once: a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub [u8; 16]);

impl RequestId {
    /// Where its record is.
    #[must_use]
    pub fn key(self) -> Key {
        // Letters of hexadecimal numbers are allowed in keys, and there are 41 of them.
        Key::new(&format!("requests/{self}")).unwrap_or_else(|error| unreachable!("{error}"))
    }
}

impl Display for RequestId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What all records are below.
#[must_use]
pub fn prefix() -> Prefix {
    Prefix::below(&Key::new("requests").unwrap_or_else(|error| unreachable!("{error}")))
}

/// A digest of what is asked for: the same id with something else is a mistake of whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Content([u8; 16]);

impl Content {
    /// Of the bytes that say what is asked for.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut short = [0; 16];
        short.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
        Self(short)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// None if void.
    pub(crate) answer: Option<Value>,
    pub(crate) content: Content,
    /// Seconds since 1970.
    pub(crate) written: u64,
}

impl Record {
    pub(crate) fn encode(&self) -> Value {
        let kind = if self.answer.is_some() { DONE } else { VOID };
        let mut bytes = vec![VERSION, kind];
        bytes.extend(self.written.to_le_bytes());
        bytes.extend(self.content.0);
        bytes.extend(self.answer.iter().flat_map(|answer| answer.iter()));
        bytes.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let corrupt = |why: &str| StoreError::Corrupt(format!("a record of a request {why}"));
        let Some((head, answer)) = bytes.split_first_chunk::<HEAD>() else {
            return Err(corrupt("is too short"));
        };
        if head[0] != VERSION {
            return Err(corrupt(&format!("of version {}", head[0])));
        }
        let answer = match head[1] {
            DONE if answer.len() <= ANSWER_BYTES_MAX => Some(answer.into()),
            VOID if answer.is_empty() => None,
            _ => return Err(corrupt("that is neither done nor void")),
        };
        let mut written = [0; 8];
        written.copy_from_slice(&head[2..10]);
        let mut content = [0; 16];
        content.copy_from_slice(&head[10..]);
        Ok(Self { answer, content: Content(content), written: u64::from_le_bytes(written) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn id_is_a_key() {
        let id = RequestId([0xab; 16]);
        assert_eq!(id.key().as_str(), format!("requests/{}", "ab".repeat(16)));
        assert!(prefix().has(&id.key()));
    }

    proptest! {
        #[test]
        fn records_come_back(
            answer in prop::option::of(prop::collection::vec(any::<u8>(), 0..50)),
            content: [u8; 16],
            written: u64,
        ) {
            let answer = answer.map(Value::from);
            let record = Record { answer, content: Content(content), written };
            prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
        }

        #[test]
        fn other_bytes_are_refused_or_come_back(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(record) = Record::decode(&bytes) {
                prop_assert_eq!(&*record.encode(), &bytes[..]);
            }
        }
    }
}
