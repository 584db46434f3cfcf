//! What the head of a qcow2 file says, read without opening it as an image.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;

const MAGIC: &[u8; 4] = b"QFI\xfb";
/// Of version 2; what a later one has behind it is read if it is there.
const HEAD_BYTES: usize = 72;
const LONGEST_HEAD: usize = 104;
/// By the format.
const NAME_BYTES_MAX: u32 = 1023;
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;

/// The head of a qcow2 file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// What it names as the image below it. Paths are bytes.
    pub(super) below: Option<OsString>,
    cluster_bits: u32,
    /// Bytes of the disk in it.
    bytes: u64,
    /// Its clusters are only its own, and it has nothing that not every program knows.
    pub(super) is_plain: bool,
}

impl Head {
    /// None: it is no qcow2 file. What is in it may be anybody's, as that of a raw disk is its guest's.
    ///
    /// # Errors
    /// It cannot be read; `InvalidData`: what is in it is no head of a qcow2 image.
    pub(super) fn read(file: &File) -> io::Result<Option<Self>> {
        let mut bytes = [0; LONGEST_HEAD];
        let length = read_at(file, &mut bytes, 0)?;
        if length < HEAD_BYTES || !bytes.starts_with(MAGIC) {
            return Ok(None);
        }
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let double = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let (version, cluster_bits, name_bytes) = (word(4), word(20), word(16));
        if !CLUSTER_BITS.contains(&cluster_bits) || name_bytes > NAME_BYTES_MAX {
            return Err(invalid());
        }
        let below = match (double(8), name_bytes) {
            (0, _) | (_, 0) => None,
            (at, count) => Some(name_at(file, at, count)?),
        };
        // No snapshots within, and of what cannot be ignored nothing but the mark of one that was not closed.
        let (snapshots, incompatible) = (word(60), if version < 3 { 0 } else { double(72) });
        let is_plain = snapshots == 0 && incompatible & !1 == 0;
        Ok(Some(Self { below, cluster_bits, bytes: double(24), is_plain }))
    }

    /// Whether what is in this one can be in that one: it may grow, and never shrinks.
    pub(super) fn fits_into(&self, below: &Self) -> bool {
        let smaller = below.cluster_bytes() <= self.cluster_bytes();
        below.is_plain && self.is_plain && smaller && below.bytes <= self.bytes
    }

    pub(super) fn cluster_bytes(&self) -> usize {
        1 << self.cluster_bits
    }
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a head of a qcow2 image")
}

/// The name of the image below.
fn name_at(file: &File, at: u64, count: u32) -> io::Result<OsString> {
    let mut name = vec![0; usize::try_from(count).unwrap_or(0)];
    // No file has a byte there, and reading there is refused.
    if i64::try_from(at.saturating_add(count.into())).is_err() {
        return Err(invalid());
    }
    let read = read_at(file, &mut name, at)?;
    name.truncate(read);
    // As QEMU does, which it ends there.
    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(read));
    // As imago takes it off, and QEMU.
    let plain = name.strip_prefix(b"file:").map(|name| OsStr::from_bytes(name).to_owned());
    Ok(plain.unwrap_or_else(|| OsString::from_vec(name)))
}

fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut length = 0;
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], at.saturating_add(length as u64)) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
impl Head {
    pub(super) fn for_test(below: Option<&str>) -> Self {
        Self { below: below.map(Into::into), cluster_bits: 16, bytes: 0, is_plain: true }
    }
}
