//! The objects that the guest's nginx serves: sizes by name, content that anybody can make again.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::http;

/// An object below the guest's `/var/www`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its name, which says its size.
    pub name: &'static str,
    /// Its size in bytes.
    pub bytes: usize,
}

/// All objects, the smallest first.
pub const OBJECTS: [Object; 7] = [
    Object { name: "1k", bytes: 1 << 10 },
    Object { name: "4k", bytes: 4 << 10 },
    Object { name: "16k", bytes: 16 << 10 },
    Object { name: "64k", bytes: 64 << 10 },
    Object { name: "256k", bytes: 256 << 10 },
    Object { name: "1m", bytes: 1 << 20 },
    Object { name: "2m", bytes: 2 << 20 },
];

impl Object {
    /// Its content: a sequence that differs from object to object and does not repeat, so that a page
    /// in the wrong place, or of another object, changes the digest.
    pub fn content(&self) -> Vec<u8> {
        // SplitMix64 (Steele, Lea, Flood 2014), seeded with the size.
        let mut state = self.bytes as u64;
        let words = std::iter::repeat_with(move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)).to_le_bytes()
        });
        words.flatten().take(self.bytes).collect()
    }

    /// SHA-256 of its content in hexadecimal.
    pub fn sha256(&self) -> String {
        http::hexadecimal(&Sha256::digest(self.content()))
    }
}

/// Writes all objects into a folder.
pub(crate) fn write(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    for object in OBJECTS {
        let path = folder.join(object.name);
        fs::write(&path, object.content()).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn objects_have_their_size_and_no_page_twice() {
        let mut pages = HashSet::new();
        for object in OBJECTS {
            let content = object.content();
            assert_eq!(content.len(), object.bytes);
            for page in content.chunks(1024) {
                assert!(pages.insert(page.to_vec()), "{} repeats something", object.name);
            }
        }
    }
}
