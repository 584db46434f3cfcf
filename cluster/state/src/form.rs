//! The form of an object in a store: JSON, so that people can read it, with its kind and its version.
//!
//! ```text
//!   {"kind": "vm", "version": 1, "object": {...}}
//! ```
//! What is not known is refused: an older orchestrator does not drop what a newer one has written.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A form has at most so many bytes, which a store takes.
pub const FORM_BYTES_MAX: usize = 128 * 1024;

/// Why bytes are no object.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormError {
    /// More than [`FORM_BYTES_MAX`].
    #[error("a {kind} of {bytes} bytes; {FORM_BYTES_MAX} are allowed")]
    TooLarge {
        /// What it should be.
        kind: &'static str,
        /// Its size.
        bytes: usize,
    },
    /// Something else is there.
    #[error("a {found} where a {expected} should be")]
    Kind {
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// Another version has written it.
    #[error("a {kind} of version {found}; this program knows {known}")]
    Version {
        /// What it is.
        kind: &'static str,
        /// Its version.
        found: u32,
        /// What is known.
        known: u32,
    },
    /// It is not JSON, or a field is wrong, missing or unknown.
    #[error("a {kind} that cannot be read: {why}")]
    Malformed {
        /// What it should be.
        kind: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Its fields do not agree.
    #[error("a {kind} that cannot be: {why}")]
    Invalid {
        /// What it is.
        kind: &'static str,
        /// What does not agree.
        why: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head<'a> {
    kind: String,
    version: u32,
    #[serde(borrow)]
    object: &'a serde_json::value::RawValue,
}

#[derive(Serialize)]
struct Envelope<'a, T> {
    kind: &'static str,
    version: u32,
    object: &'a T,
}

/// What a store has.
pub trait Object: Serialize + DeserializeOwned {
    /// The word for it.
    const KIND: &'static str;
    /// The version of its form that this program writes and reads.
    const VERSION: u32 = 1;

    /// Where it is.
    fn key(&self) -> String;

    /// Whether its fields agree; why not, in words.
    ///
    /// # Errors
    /// Where not.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Its form.
    ///
    /// # Errors
    /// Where it is too large, or its fields do not agree.
    fn to_form(&self) -> Result<Vec<u8>, FormError> {
        let kind = Self::KIND;
        self.check().map_err(|why| FormError::Invalid { kind, why })?;
        let envelope = Envelope { kind, version: Self::VERSION, object: self };
        let malformed =
            |error: serde_json::Error| FormError::Malformed { kind, why: error.to_string() };
        let bytes = serde_json::to_vec(&envelope).map_err(malformed)?;
        if bytes.len() > FORM_BYTES_MAX {
            return Err(FormError::TooLarge { kind, bytes: bytes.len() });
        }
        Ok(bytes)
    }

    /// The object of a form.
    ///
    /// # Errors
    /// Where it is of another kind or version, or has anything that is not known.
    fn from_form(bytes: &[u8]) -> Result<Self, FormError> {
        let kind = Self::KIND;
        if bytes.len() > FORM_BYTES_MAX {
            return Err(FormError::TooLarge { kind, bytes: bytes.len() });
        }
        let malformed =
            |error: serde_json::Error| FormError::Malformed { kind, why: error.to_string() };
        let head: Head<'_> = serde_json::from_slice(bytes).map_err(malformed)?;
        if head.kind != kind {
            return Err(FormError::Kind { expected: kind, found: head.kind });
        }
        if head.version != Self::VERSION {
            let (found, known) = (head.version, Self::VERSION);
            return Err(FormError::Version { kind, found, known });
        }
        let object: Self = serde_json::from_str(head.object.get()).map_err(malformed)?;
        object.check().map_err(|why| FormError::Invalid { kind, why })?;
        Ok(object)
    }
}
