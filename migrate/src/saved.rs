//! Saved state: what a part of a VM must keep to go on in another process.
//!
//! ```text
//!   part at rest --save--> State --encode--> bytes --decode, check--> State --restore--> the same part elsewhere
//! ```
//! A state names its fields (CBOR maps, RFC 8949): it does not depend on how a structure lies in memory. It has a
//! version, a bound on its size, and a check of its own. Nothing that fails one of these reaches a part.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Nesting of a state: structures, lists and options inside each other.
const DEPTH_MAX: usize = 32;

/// Bytes that name and version of a state take at most, beyond its body.
const HEAD_MAX: usize = 128;

/// The state of one part. Implement it on a plain structure with `#[serde(deny_unknown_fields)]`, beside the part.
pub trait SavedState: Serialize + DeserializeOwned {
    /// What the part is called in a checkpoint and in messages. Short, and never changed.
    const NAME: &'static str;
    /// Grows whenever fields change their meaning, come or go.
    const VERSION: u16;
    /// Most bytes of the encoded fields.
    const MAX_BYTES: usize;

    /// Whether the fields fit together, without knowledge of the part that they are for: lengths agree, numbers are in
    /// their ranges.
    ///
    /// # Errors
    /// The first thing that cannot be.
    fn check(&self) -> Result<(), Invalid>;
}

/// A part whose state can be saved while it is at rest.
pub trait Saved {
    /// Its state.
    type State: SavedState;

    /// The state now. The part does not change.
    fn save(&self) -> Self::State;

    /// Takes over a state that was checked. Only a part that has just been made, with the same configuration, is asked.
    ///
    /// # Errors
    /// The state is of a part with another configuration; nothing has changed then.
    fn restore(&mut self, state: Self::State) -> Result<(), Invalid>;
}

/// Fields that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {why}")]
pub struct Invalid {
    /// The field, by its name in the structure.
    pub field: &'static str,
    /// What is wrong with it.
    pub why: String,
}

impl Invalid {
    /// A field that is refused, and why.
    pub fn new(field: &'static str, why: impl Into<String>) -> Self {
        Self { field, why: why.into() }
    }

    /// Refuses a field unless a condition holds.
    ///
    /// # Errors
    /// The condition does not hold.
    pub fn unless(holds: bool, field: &'static str, why: &str) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self::new(field, why)) }
    }
}

/// Why bytes are no state of this part, or a state cannot be written.
#[derive(Debug, Error)]
pub enum SavedError {
    /// There are more bytes than any such state has.
    #[error("saved state of {name}: {bytes} bytes, at most {max} are possible")]
    TooLong {
        /// The part.
        name: &'static str,
        /// Bytes that there are.
        bytes: usize,
        /// Bytes that there may be.
        max: usize,
    },
    /// The bytes are of something else.
    #[error("saved state of {wanted}: found that of {found:?}")]
    OtherPart {
        /// The part that was asked for.
        wanted: &'static str,
        /// The name in the bytes.
        found: String,
    },
    /// Another version of this program has written it.
    #[error("saved state of {name}: version {found}, this program reads version {known}")]
    OtherVersion {
        /// The part.
        name: &'static str,
        /// Version in the bytes.
        found: u16,
        /// Version that is known.
        known: u16,
    },
    /// The bytes are not CBOR, or not of these fields.
    #[error("saved state of {name}: {why}")]
    Malformed {
        /// The part.
        name: &'static str,
        /// What the decoder says.
        why: String,
    },
    /// The fields do not fit together.
    #[error("saved state of {name}: {source}")]
    Invalid {
        /// The part.
        name: &'static str,
        /// The field, and why.
        source: Invalid,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    name: String,
    version: u16,
    state: T,
}

/// Only what says whether the rest can be read.
#[derive(Deserialize)]
struct Head {
    name: String,
    version: u16,
}

/// The bytes of a state.
///
/// # Errors
/// The fields do not fit together, or are longer than they may be: what cannot be read back is not written.
pub fn encode<T: SavedState>(state: &T) -> Result<Vec<u8>, SavedError> {
    let name = T::NAME;
    state.check().map_err(|source| SavedError::Invalid { name, source })?;
    let mut bytes = Vec::new();
    let envelope = Envelope { name: name.to_owned(), version: T::VERSION, state };
    ciborium::into_writer(&envelope, &mut bytes)
        .map_err(|error| SavedError::Malformed { name, why: error.to_string() })?;
    bounded::<T>(bytes.len())?;
    Ok(bytes)
}

/// The state in these bytes, checked.
///
/// # Errors
/// The bytes are too many, of another part or version, malformed, or their fields do not fit together.
pub fn decode<T: SavedState>(bytes: &[u8]) -> Result<T, SavedError> {
    let name = T::NAME;
    bounded::<T>(bytes.len())?;
    let head: Head = parse(name, bytes)?;
    if head.name != name {
        return Err(SavedError::OtherPart { wanted: name, found: head.name });
    }
    if head.version != T::VERSION {
        return Err(SavedError::OtherVersion { name, found: head.version, known: T::VERSION });
    }
    let envelope: Envelope<T> = parse(name, bytes)?;
    envelope.state.check().map_err(|source| SavedError::Invalid { name, source })?;
    Ok(envelope.state)
}

fn bounded<T: SavedState>(bytes: usize) -> Result<(), SavedError> {
    let max = T::MAX_BYTES + HEAD_MAX;
    if bytes > max {
        return Err(SavedError::TooLong { name: T::NAME, bytes, max });
    }
    Ok(())
}

fn parse<V: DeserializeOwned>(name: &'static str, mut bytes: &[u8]) -> Result<V, SavedError> {
    let malformed = |why: String| SavedError::Malformed { name, why };
    let value = ciborium::de::from_reader_with_recursion_limit(&mut bytes, DEPTH_MAX)
        .map_err(|error| malformed(error.to_string()))?;
    if !bytes.is_empty() {
        return Err(malformed(format!("{} bytes follow", bytes.len())));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Lamp {
        lit: bool,
        colours: Vec<u16>,
    }

    impl SavedState for Lamp {
        const NAME: &'static str = "lamp";
        const VERSION: u16 = 2;
        const MAX_BYTES: usize = 64;

        fn check(&self) -> Result<(), Invalid> {
            Invalid::unless(self.colours.len() <= 8, "colours", "more than 8")
        }
    }

    fn lamp() -> Lamp {
        Lamp { lit: true, colours: vec![1, 500] }
    }

    fn refused(value: &impl Serialize) -> SavedError {
        let mut bytes = Vec::new();
        ciborium::into_writer(value, &mut bytes).unwrap();
        decode::<Lamp>(&bytes).unwrap_err()
    }

    fn envelope<T>(name: &str, version: u16, state: T) -> Envelope<T> {
        Envelope { name: name.to_owned(), version, state }
    }

    #[test]
    fn other_parts_versions_and_fields_are_refused() {
        let other = refused(&envelope("lantern", 2, lamp()));
        assert!(matches!(other, SavedError::OtherPart { wanted: "lamp", .. }), "{other}");
        let newer = refused(&envelope("lamp", 3, lamp()));
        assert!(matches!(newer, SavedError::OtherVersion { found: 3, known: 2, .. }), "{newer}");
        let lacking = refused(&envelope("lamp", 2, ("lit", true)));
        assert!(matches!(lacking, SavedError::Malformed { .. }), "{lacking}");
        let many = Lamp { lit: false, colours: vec![0; 9] };
        let unfit = refused(&envelope("lamp", 2, many.clone()));
        assert!(matches!(unfit, SavedError::Invalid { .. }), "{unfit}");
        assert!(matches!(encode(&many), Err(SavedError::Invalid { .. })));
    }

    #[test]
    fn length_is_bounded_before_anything_is_parsed() {
        let error = decode::<Lamp>(&[0; 64 + HEAD_MAX + 1]).unwrap_err();
        assert!(matches!(error, SavedError::TooLong { max: 192, .. }), "{error}");
    }

    #[test]
    fn list_that_claims_more_than_there_is_allocates_nothing_for_it() {
        // { "name": "lamp", "version": 2, "state": { "lit": true, "colours": [2^62 items...
        let mut bytes =
            b"\xa3\x64name\x64lamp\x67version\x02\x65state\xa2\x63lit\xf5\x67colours\x9b".to_vec();
        bytes.extend((1_u64 << 62).to_be_bytes());
        let error = decode::<Lamp>(&bytes).unwrap_err();
        assert!(matches!(error, SavedError::Malformed { .. }), "{error}");
    }

    proptest! {
        #[test]
        fn what_was_saved_is_read_back(lit: bool, colours in prop::collection::vec(any::<u16>(), 0..8)) {
            let lamp = Lamp { lit, colours };
            prop_assert_eq!(decode::<Lamp>(&encode(&lamp).unwrap()).unwrap(), lamp);
        }

        #[test]
        fn bytes_of_nobody_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            prop_assert!(decode::<Lamp>(&bytes).is_err());
        }

        /// One byte that was changed gives another lamp or an error, never a panic.
        #[test]
        fn damaged_bytes_do_no_harm(at in 0usize..40, to: u8) {
            let mut bytes = encode(&lamp()).unwrap();
            let at = at % bytes.len();
            bytes[at] = to;
            if let Ok(read) = decode::<Lamp>(&bytes) {
                read.check().unwrap();
            }
        }
    }
}
