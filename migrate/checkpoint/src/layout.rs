//! Head and trailer of a part, and the numbers of the format.
//!
//! Numbers are little endian. Bytes that mean nothing are zero, or the file is refused.

use wire::{SLICES_MAX, SliceId};

/// Version of the layout of parts and manifests.
pub const FORMAT_VERSION: u16 = 1;
/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Pages in a chunk at most.
pub const CHUNK_PAGES: usize = 512;
/// Bytes of pages in a chunk at most: 2 MiB.
pub const CHUNK_BYTES: usize = CHUNK_PAGES * PAGE_BYTES;
/// One past the last frame that can be: physical addresses have 52 bits at most (SDM vol. 3A, 4.1.4).
pub const FRAMES_END: u64 = 1 << 40;
/// Bytes of all sections of a part together at most: 1 GiB.
pub const SECTION_BYTES_MAX: u64 = 1 << 30;
/// Sections of a part at most.
pub const SECTIONS_MAX: usize = 64;
/// Bytes of a section's name at most.
pub const SECTION_NAME_MAX: usize = 32;
/// Checkpoints in a chain of increments at most, the full one included.
pub const CHAIN_MAX: usize = 64;

/// Bytes of an index at most: 512 MiB, which is 32 million runs of pages.
pub(crate) const INDEX_BYTES_MAX: u64 = 1 << 29;
/// Bytes of the head of a part, and of its trailer.
pub(crate) const HEAD_BYTES: usize = 64;
/// [`HEAD_BYTES`], as an offset.
pub(crate) const HEAD_END: u64 = 64;
/// What no bit of is known yet.
pub(crate) const FEATURES: u32 = 0;

const PART_MAGIC: &[u8; 8] = b"TESSPART";
const TAIL_MAGIC: &[u8; 8] = b"TESSTAIL";

/// Whose part it is, of which checkpoint. A checkpoint is named by VM, generation and cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartHead {
    /// Identity of the VM.
    pub vm: [u8; 16],
    /// Which life of the VM: 0, then a higher number after each restore: seconds since 1970 where a user restored it, the next number
    /// where its supervisor did.
    pub generation: u64,
    /// Number of the checkpoint, as in `IMAGE.cN`; later ones are higher. Not the number of a cut of all slices.
    pub cut: u64,
    /// The slice that writes the part.
    pub slice: SliceId,
}

/// Why a head is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Damaged(&'static str),
    Unknown { what: &'static str, found: u32, known: u32 },
}

/// Compares version and features with what is known here.
pub(crate) fn known(version: u16, features: u32) -> Result<(), Refusal> {
    let unknown = |what, found, known| Err(Refusal::Unknown { what, found, known });
    if version != FORMAT_VERSION {
        return unknown("format version", version.into(), FORMAT_VERSION.into());
    }
    if features != FEATURES {
        return unknown("features", features, FEATURES);
    }
    Ok(())
}

impl PartHead {
    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0..8].copy_from_slice(PART_MAGIC);
        bytes[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.slice.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&FEATURES.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.vm);
        bytes[32..40].copy_from_slice(&self.generation.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.cut.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<Self, Refusal> {
        if &bytes[0..8] != PART_MAGIC {
            return Err(Refusal::Damaged("it does not begin as a part of a checkpoint"));
        }
        known(u16_at(bytes, 8), u32_at(bytes, 12))?;
        if !sealed(bytes) {
            return Err(Refusal::Damaged("the checksum of its head"));
        }
        if bytes[48..60].iter().any(|byte| *byte != 0) {
            return Err(Refusal::Damaged("bytes of its head that mean nothing"));
        }
        let slice = SliceId(u16_at(bytes, 10));
        if slice.0 >= SLICES_MAX {
            return Err(Refusal::Damaged("the number of its slice"));
        }
        let mut vm = [0; 16];
        vm.copy_from_slice(&bytes[16..32]);
        Ok(Self { vm, generation: u64_at(bytes, 32), cut: u64_at(bytes, 40), slice })
    }
}

/// Where the index is; the last bytes of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// BLAKE3 of head and index.
    pub(crate) digest: [u8; 32],
}

impl Trailer {
    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0..8].copy_from_slice(TAIL_MAGIC);
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..56].copy_from_slice(&self.digest);
        seal(&mut bytes);
        bytes
    }

    /// Of a file that is so long.
    pub(crate) fn decode(bytes: &[u8; HEAD_BYTES], file: u64) -> Result<Self, &'static str> {
        if &bytes[0..8] != TAIL_MAGIC {
            return Err("it has no end");
        }
        if !sealed(bytes) || bytes[56..60] != [0; 4] {
            return Err("the checksum of its trailer");
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(&bytes[24..56]);
        let trailer = Self { offset: u64_at(bytes, 8), length: u64_at(bytes, 16), digest };
        let end = trailer.offset.checked_add(trailer.length);
        let fits = end.and_then(|end| end.checked_add(HEAD_END)) == Some(file);
        if !fits || trailer.offset < HEAD_END {
            return Err("the index is not where the trailer says");
        }
        if trailer.length > INDEX_BYTES_MAX {
            return Err("the index is longer than it may be");
        }
        Ok(trailer)
    }
}

/// Puts the checksum of the first 60 bytes into the last four.
fn seal(bytes: &mut [u8; HEAD_BYTES]) {
    let sum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&sum.to_le_bytes());
}

fn sealed(bytes: &[u8; HEAD_BYTES]) -> bool {
    u32_at(bytes, 60) == crc32c::crc32c(&bytes[..60])
}

/// The number at an offset that exists: callers have compared lengths.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// As [`u16_at`].
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

/// As [`u16_at`].
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// Bytes in memory, as an offset of a file.
pub(crate) fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("addresses have 64 bits at most")
}

/// A length that was compared with a bound, as one of memory.
pub(crate) fn narrow(bytes: u64) -> usize {
    usize::try_from(bytes).expect("this program is for 64 bits")
}
