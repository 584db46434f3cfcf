//! The per-VM shared secret: where it comes from and what it signs.

use crate::key::{SliceKey, is_slice_key, slice_key};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::SliceId;

/// The shortest secret, in bytes.
pub(crate) const SECRET_BYTES_MIN: usize = 16;
/// The longest secret file that is read, in bytes.
const SECRET_BYTES_MAX: usize = 4096;
/// Why a secret is refused.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be opened or read.
    #[error("cannot read the secret file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// It is a directory, a device or the like.
    #[error("the secret file {} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Others than the owner may read or change it.
    #[error(
        "the secret file {} has mode {mode:03o}: take the rights of group and others away (chmod 600)",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Too few bytes to be a secret.
    #[error("the secret has {length} bytes, at least {SECRET_BYTES_MIN} are needed")]
    Short {
        /// Its length in bytes.
        length: usize,
    },
    /// The key of a slice where the secret is needed.
    #[error(
        "the secret file {} holds the key of one slice; the bootstrap needs the secret of the VM",
        path.display()
    )]
    OnlyAKey {
        /// The file.
        path: PathBuf,
    },
    /// It begins as the key of a slice.
    #[error(
        "the key of a slice in {} is damaged; make it anew (tessera slice-key)",
        path.display()
    )]
    MalformedKey {
        /// The file.
        path: PathBuf,
    },
    /// More bytes than any sensible secret.
    #[error("the secret is longer than {SECRET_BYTES_MAX} bytes")]
    Long,
}

/// A secret that all slices of one VM know. Cheap to clone, never printed.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Takes the file, byte for byte, without one newline at its end: the same secret written by an editor,
    /// `echo` or `printf` is the same.
    ///
    /// # Errors
    /// The file is missing, not a regular file, open to others (`mode & 0o077`), shorter than 16
    /// or longer than 4096 bytes, or holds only the key of a slice.
    pub fn load(path: &Path) -> Result<Self, SecretError> {
        let bytes = read(path)?;
        if is_slice_key(&bytes) {
            return Err(SecretError::OnlyAKey { path: path.to_path_buf() });
        }
        Self::from_bytes(&bytes)
    }

    /// Takes the bytes as they are.
    ///
    /// # Errors
    /// Fewer than 16 or more than 4096 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SecretError> {
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(SecretError::Short { length: bytes.len() });
        }
        if bytes.len() > SECRET_BYTES_MAX {
            return Err(SecretError::Long);
        }
        Ok(Self(bytes.into()))
    }

    /// The bytes, for keys of other things.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key with which a companion proves that it is that slice, and no other.
    #[must_use]
    pub fn slice_key(&self, slice: SliceId) -> SliceKey {
        slice_key(&self.0, slice)
    }

    /// What somebody derives from the bytes of the secret, as a key for another purpose. Nothing else is to be done with them.
    pub fn derive<T>(&self, derive: impl FnOnce(&[u8]) -> T) -> T {
        derive(&self.0)
    }
}

/// Reads a file that is a secret, or a key: without one newline at its end.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, SecretError> {
    let read_error = |source| SecretError::Read { path: path.to_path_buf(), source };
    // The type is checked before opening, for a FIFO would block, and the mode after, on what was really
    // opened.
    if !std::fs::metadata(path).map_err(read_error)?.is_file() {
        return Err(SecretError::NotAFile { path: path.to_path_buf() });
    }
    let file = File::open(path).map_err(read_error)?;
    let mode = file.metadata().map_err(read_error)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(SecretError::Exposed { path: path.to_path_buf(), mode });
    }
    let mut bytes = Vec::new();
    let limit = u64::try_from(SECRET_BYTES_MAX).expect("a small constant") + 2;
    file.take(limit).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credential::Credential;
    use std::fs;

    fn file(name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("tessera-secret-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn private_file_is_loaded() {
        let path = file("good", &[7; 32], 0o600);

        let secret = Secret::load(&path);

        fs::remove_file(&path).unwrap();
        assert_eq!(secret.unwrap().0, Secret::from_bytes(&[7; 32]).unwrap().0);
    }

    #[test]
    fn one_newline_at_the_end_does_not_count() {
        let loaded = |name: &str, bytes: &[u8]| {
            let path = file(name, bytes, 0o600);
            let secret = Secret::load(&path);
            fs::remove_file(&path).unwrap();
            secret.unwrap().0
        };
        let plain = loaded("plain", b"0123456789abcdef");

        assert_eq!(loaded("line", b"0123456789abcdef\n"), plain);
        assert_ne!(loaded("lines", b"0123456789abcdef\n\n"), plain);
        assert_ne!(loaded("within", b"0123456789abcde\nf"), plain);
    }

    #[test]
    fn file_open_to_others_is_refused() {
        let path = file("open", &[7; 32], 0o640);

        let error = Secret::load(&path).unwrap_err();

        fs::remove_file(&path).unwrap();
        assert!(matches!(error, SecretError::Exposed { mode: 0o640, .. }), "{error}");
    }

    #[test]
    fn short_and_missing_files_are_refused() {
        let path = file("short", &[7; 15], 0o600);

        let short = Secret::load(&path).unwrap_err();
        fs::remove_file(&path).unwrap();
        let missing = Secret::load(&path).unwrap_err();
        let folder = Secret::load(&std::env::temp_dir()).unwrap_err();

        assert!(matches!(short, SecretError::Short { length: 15 }), "{short}");
        assert!(matches!(missing, SecretError::Read { .. }), "{missing}");
        assert!(matches!(folder, SecretError::NotAFile { .. }), "{folder}");
    }

    #[test]
    fn key_of_a_slice_is_told_from_a_secret() {
        let key = Secret::from_bytes(&[7; 32]).unwrap().slice_key(SliceId(3)).file_text();
        let load = |name: &str, text: &str| {
            let path = file(name, text.as_bytes(), 0o600);
            let both = (Secret::load(&path), Credential::load(&path));
            fs::remove_file(&path).unwrap();
            both
        };
        let (secret, credential) = load("key", &key);
        assert!(matches!(secret, Err(SecretError::OnlyAKey { .. })), "{secret:?}");
        assert!(matches!(credential, Ok(Credential::Slice(own)) if own.slice() == SliceId(3)));
        let (_, damaged) = load("damaged", &key[..40]);
        assert!(matches!(damaged, Err(SecretError::MalformedKey { .. })), "{damaged:?}");
        let (_, plain) = load("words", "tessera-slice-keys are long");
        assert!(matches!(plain, Ok(Credential::Secret(_))), "{plain:?}");
    }

    #[test]
    fn long_secret_is_refused() {
        assert!(matches!(Secret::from_bytes(&[1; 4097]), Err(SecretError::Long)));
    }
}
