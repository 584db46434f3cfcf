//! The bytes of a manifest.
//!
//! ```text
//!   head (24 bytes) | contents (CBOR) | BLAKE3 of all before | code of all before, by the key of the VM
//! ```

use crate::contents::Contents;
use crate::digest::Digest;
use crate::error::CheckpointError;
use crate::key::Key;
use crate::layout::{FEATURES, FORMAT_VERSION, Refusal, known, u16_at, u32_at, u64_at, wide};
use migrate::SavedState;
use migrate::saved::{decode, encode};
use std::path::Path;

const MAGIC: &[u8; 8] = b"TESSMANI";
const HEAD: usize = 24;
const DIGEST: usize = 32;
/// Bytes of a manifest at most.
pub(crate) const MANIFEST_BYTES_MAX: usize = HEAD + Contents::MAX_BYTES + 1024 + 2 * DIGEST;

/// A manifest that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// What it says.
    pub contents: Contents,
    /// What names it: BLAKE3 of all its bytes but the last 32, or 64 if it is authenticated.
    pub digest: Digest,
    /// Whether it has the code of somebody who knows the VM's secret.
    pub authenticated: bool,
}

/// The bytes of a manifest, and its digest.
///
/// # Errors
/// The contents do not fit together, or are too long.
pub fn encode_manifest(
    contents: &Contents,
    key: Option<&Key>,
) -> Result<(Vec<u8>, Digest), migrate::SavedError> {
    Ok(seal(&encode(contents)?, key))
}

/// A manifest with these contents, whatever they are.
pub(crate) fn seal(contents: &[u8], key: Option<&Key>) -> (Vec<u8>, Digest) {
    let mut bytes = Vec::with_capacity(HEAD + contents.len() + 2 * DIGEST);
    bytes.extend(MAGIC);
    bytes.extend(FORMAT_VERSION.to_le_bytes());
    bytes.extend([u8::from(key.is_some()), 0]);
    bytes.extend(FEATURES.to_le_bytes());
    bytes.extend(wide(contents.len()).to_le_bytes());
    bytes.extend(contents);
    let digest = Digest::of(&bytes);
    let code = key.map(|key| key.authenticate(&bytes));
    bytes.extend(digest.0);
    bytes.extend(code.iter().flat_map(|code| code.0));
    (bytes, digest)
}

/// The manifest in these bytes, authenticated if there is a key. The path is for messages.
///
/// # Errors
/// Another version, damage, another key, fields that do not fit together; with a key, a manifest without a code.
pub fn decode_manifest(
    bytes: &[u8],
    path: &Path,
    key: Option<&Key>,
) -> Result<Manifest, CheckpointError> {
    let damaged = |why: &str| CheckpointError::damaged(path, why);
    if bytes.len() > MANIFEST_BYTES_MAX {
        return Err(damaged("it is longer than a manifest can be"));
    }
    if bytes.len() < HEAD || &bytes[0..8] != MAGIC {
        return Err(damaged("it does not begin as a manifest"));
    }
    known(u16_at(bytes, 8), u32_at(bytes, 12)).map_err(|refusal| at(path, &refusal))?;
    let codes = match bytes[10] {
        0 => 0,
        1 => 1,
        kind => return Err(unknown_authentication(path, kind)),
    };
    let length = usize::try_from(u64_at(bytes, 16)).ok();
    let end = length.and_then(|length| length.checked_add(HEAD));
    let whole = end.and_then(|end| end.checked_add((1 + codes) * DIGEST));
    let (Some(end), true) = (end, whole == Some(bytes.len()) && bytes[11] == 0) else {
        return Err(damaged("its length"));
    };
    let (covered, digests) = bytes.split_at(end);
    let digest = Digest::of(covered);
    if digests[..DIGEST] != digest.0 {
        return Err(damaged("its digest"));
    }
    match (key, <[u8; DIGEST]>::try_from(&digests[DIGEST..])) {
        (None, _) => {}
        (Some(key), Ok(code)) if key.fits(covered, Digest(code)) => {}
        (Some(_), Ok(_)) => return Err(CheckpointError::NotAuthentic { path: path.to_path_buf() }),
        (Some(_), Err(_)) => {
            return Err(CheckpointError::NotAuthenticated { path: path.to_path_buf() });
        }
    }
    let contents = decode(&covered[HEAD..]);
    let contents = contents
        .map_err(|source| CheckpointError::Manifest { path: path.to_path_buf(), source })?;
    Ok(Manifest { contents, digest, authenticated: codes == 1 })
}

fn unknown_authentication(path: &Path, kind: u8) -> CheckpointError {
    let path = path.to_path_buf();
    CheckpointError::Unknown { path, what: "authentication", found: kind.into(), known: 1 }
}

/// A refusal, with the file that it is of.
pub(crate) fn at(path: &Path, refusal: &Refusal) -> CheckpointError {
    match *refusal {
        Refusal::Damaged(why) => CheckpointError::damaged(path, why),
        Refusal::Unknown { what, found, known } => {
            CheckpointError::Unknown { path: path.to_path_buf(), what, found, known }
        }
    }
}
