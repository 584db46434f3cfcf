//! What a VM can go on from.

use serde::{Deserialize, Serialize};

use crate::form::Object;
use crate::keys::{self, Name};
use crate::numbers::Generation;

/// A checkpoint that is complete. Of the newest one of a VM `released` changes, and nothing else ever.
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
    /// Where it is, from the hosts' folders of checkpoints.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// When it was written, in seconds since 1970.
    pub at: u64,
    /// The number by which slices know it: disks keep a state for it.
    pub cut: u64,
    /// Numbers of those that were deleted since it was written: the VM is told of them when the next one is.
    pub released: Vec<u64>,
}

/// A VM is told of so many at a time.
pub const RELEASED_MAX: usize = 64;

impl Object for Checkpoint {
    const KIND: &'static str = "checkpoint";

    fn key(&self) -> String {
        keys::checkpoint(&self.vm, &self.id)
    }

    fn check(&self) -> Result<(), String> {
        let digest =
            self.manifest.len() == 64 && self.manifest.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !digest {
            return Err("its digest is none".to_owned());
        }
        if self.path.is_empty() || self.path.contains('/') {
            return Err("its folder is not beside the others".to_owned());
        }
        if self.released.len() > RELEASED_MAX {
            return Err(format!("more than {RELEASED_MAX} that were deleted"));
        }
        Ok(())
    }
}
