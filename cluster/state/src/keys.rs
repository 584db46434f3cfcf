//! Names, and where the objects are.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::numbers::Generation;

/// As of host names in DNS.
const NAME_BYTES_MAX: usize = 63;

/// A name of a VM, a host, an operation: small letters, digits and `-`, which neither begins nor ends it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// What is no name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no name: 1 to {NAME_BYTES_MAX} small letters, digits and '-', which neither begins nor ends it"
)]
pub struct NameError(String);

impl Name {
    /// Checks the text.
    ///
    /// # Errors
    /// Where it is no name.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let good = !text.is_empty()
            && text.len() <= NAME_BYTES_MAX
            && text.bytes().all(allowed)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if good { Ok(Self(text.to_owned())) } else { Err(NameError(text.to_owned())) }
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// 128 random bits as 32 small hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Uid(String);

/// What is no [`Uid`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not 32 small hexadecimal digits")]
pub struct UidError(String);

impl Uid {
    /// Of these bits.
    #[must_use]
    pub fn new(bits: u128) -> Self {
        Self(format!("{bits:032x}"))
    }

    /// Its digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Uid {
    type Error = UidError;

    fn try_from(text: String) -> Result<Self, UidError> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == 32 && text.bytes().all(digit) {
            Ok(Self(text))
        } else {
            Err(UidError(text))
        }
    }
}

impl From<Uid> for String {
    fn from(uid: Uid) -> Self {
        uid.0
    }
}

impl Display for Uid {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(crate) fn secret(uid: &Uid) -> String {
    format!("secrets/{uid}")
}

pub(crate) fn request(id: &Uid) -> String {
    format!("asked/{id}")
}

pub(crate) fn vm(name: &Name) -> String {
    format!("vms/{name}")
}

/// Numbers have so many digits that keys are in their order.
pub(crate) fn assignment(vm: &Name, generation: Generation) -> String {
    format!("assignments/{vm}/{:020}", generation.0)
}

pub(crate) fn host(name: &Name) -> String {
    format!("hosts/{name}")
}

pub(crate) fn slice(vm: &Name, number: u16) -> String {
    format!("slices/{vm}/{number:05}")
}

pub(crate) fn operation(id: &Name) -> String {
    format!("operations/{id}")
}

pub(crate) fn checkpoint(vm: &Name, id: &Name) -> String {
    format!("checkpoints/{vm}/{id}")
}
