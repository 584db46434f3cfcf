//! Names of objects, as `vms/web-1`: parts with slashes between them.

use std::borrow::Borrow;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use thiserror::Error;

/// A key has at most so many bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// What is no key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// More than [`KEY_BYTES_MAX`].
    #[error("a key of {0} bytes; {KEY_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// Nothing, or nothing between two slashes.
    #[error("{0:?} has an empty part")]
    EmptyPart(String),
    /// Something else than a letter, a digit, or one of `.`, `_`, `-`.
    #[error("{key:?} has {letter:?}; letters, digits, '.', '_' and '-' are allowed")]
    Letter {
        /// What was given.
        key: String,
        /// What is wrong with it.
        letter: char,
    },
}

/// The name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Checks the text.
    ///
    /// # Errors
    /// Where it is no key.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        if text.len() > KEY_BYTES_MAX {
            return Err(KeyError::TooLong(text.len()));
        }
        if text.split('/').any(str::is_empty) {
            return Err(KeyError::EmptyPart(text.to_owned()));
        }
        let allowed = |letter: char| {
            letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-' | '/')
        };
        if let Some(letter) = text.chars().find(|letter| !allowed(*letter)) {
            return Err(KeyError::Letter { key: text.to_owned(), letter });
        }
        Ok(Self(text.into()))
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// They are ordered as their text is.
impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the names of some objects begin with: whole parts, as `vms/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(Arc<str>);

impl Prefix {
    /// All objects.
    #[must_use]
    pub fn all() -> Self {
        Self("".into())
    }

    /// All objects below a key: `vms` has `vms/web-1`, and neither `vms` nor `vms2/x`.
    #[must_use]
    pub fn below(key: &Key) -> Self {
        Self(format!("{key}/").into())
    }

    /// Whether the key begins so.
    #[must_use]
    pub fn has(&self, key: &Key) -> bool {
        key.0.starts_with(&*self.0)
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for Prefix {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked() {
        for good in ["vms/web-1", "a", "A.b_c-9/x/y"] {
            assert_eq!(Key::new(good).unwrap().as_str(), good);
        }
        for wrong in ["", "/", "a/", "/a", "a//b", "a b", "ä", "a\0", "a:b"] {
            assert!(Key::new(wrong).is_err(), "{wrong:?}");
        }
        assert!(Key::new(&"k".repeat(KEY_BYTES_MAX)).is_ok());
        let long = KeyError::TooLong(KEY_BYTES_MAX + 1);
        assert_eq!(Key::new(&"k".repeat(KEY_BYTES_MAX + 1)), Err(long));
    }

    #[test]
    fn prefix_ends_with_a_part() {
        let prefix = Prefix::below(&Key::new("vms").unwrap());

        assert!(prefix.has(&Key::new("vms/a").unwrap()));
        assert!(!prefix.has(&Key::new("vms").unwrap()));
        assert!(!prefix.has(&Key::new("vms2/a").unwrap()));
        assert!(Prefix::all().has(&Key::new("anything").unwrap()));
    }
}
