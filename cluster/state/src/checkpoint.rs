//! What a VM can go on from.

use serde::{Deserialize, Serialize};

use crate::form::Object;
use crate::keys::{self, Name};
use crate::numbers::Generation;

/// A checkpoint that is complete. It never changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Its name.
    pub id: Name,
    /// Of which VM.
    pub vm: Name,
    /// Of which assignment: who may go on from it follows that.
    pub generation: Generation,
    /// The digest of its manifest, in hexadecimal.
    pub manifest: String,
    /// Where it is.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

impl Object for Checkpoint {
    const KIND: &'static str = "checkpoint";

    fn key(&self) -> String {
        keys::checkpoint(&self.vm, &self.id)
    }

    fn check(&self) -> Result<(), String> {
        let digest =
            self.manifest.len() == 64 && self.manifest.bytes().all(|byte| byte.is_ascii_hexdigit());
        if digest { Ok(()) } else { Err("its digest is none".to_owned()) }
    }
}
