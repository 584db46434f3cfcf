//! The key that authenticates manifests.

use crate::digest::Digest;
use std::fmt;
use zeroize::Zeroize;

/// Says to BLAKE3 what the key is for. Another text would be another key.
const CONTEXT: &str = "tessera 2026-11-26 manifest of a checkpoint";

/// Authenticates the manifest of a checkpoint, and by the digests in it all the rest. Never printed; its memory is overwritten
/// when it ends.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// The key that belongs to the secret of a VM.
    #[must_use]
    pub fn of_secret(secret: &[u8]) -> Self {
        Self(blake3::derive_key(CONTEXT, secret))
    }

    /// The code of these bytes.
    pub(crate) fn authenticate(&self, bytes: &[u8]) -> Digest {
        Digest(*blake3::keyed_hash(&self.0, bytes).as_bytes())
    }

    /// Whether this is the code of these bytes. Takes as long however many bytes of the code fit.
    pub(crate) fn fits(&self, bytes: &[u8], code: Digest) -> bool {
        blake3::keyed_hash(&self.0, bytes) == blake3::Hash::from_bytes(code.0)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}
