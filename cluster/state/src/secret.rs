//! What the slices of a VM prove to each other that they know. An object of its own: nobody who is shown a VM is shown it.

use std::fmt::{self, Debug, Formatter};

use serde::{Deserialize, Serialize};

use crate::form::Object;
use crate::keys::{self, Uid};

/// As agents want it.
const DIGITS: usize = 64;

/// The secret of a VM. It has no [`Debug`] form that shows it.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// Of which VM.
    pub vm: Uid,
    /// 32 bytes in small hexadecimal digits.
    pub digits: String,
}

impl Debug for Secret {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("vm", &self.vm).finish_non_exhaustive()
    }
}

impl Object for Secret {
    const KIND: &'static str = "secret";

    fn key(&self) -> String {
        keys::secret(&self.vm)
    }

    fn check(&self) -> Result<(), String> {
        let digits =
            self.digits.len() == DIGITS && self.digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        // The text says nothing about it.
        if digits { Ok(()) } else { Err("its secret is none".to_owned()) }
    }
}
