//! What a manifest says: which parts there are, and what the checkpoint is of.

use crate::digest::Digest;
use crate::files::{is_plain_name, part_name};
use crate::layout::{FRAMES_END, HEAD_END};
use migrate::SavedState;
use migrate::saved::Invalid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use wire::{SLICES_MAX, SliceId};

/// Ranges of a VM's memory. Holes are where devices are: there are few.
const RANGES_MAX: usize = 1024;
/// Bytes of the VM's description.
const SPEC_BYTES_MAX: usize = 1 << 20;
/// Blobs, bytes of their names, and of all of them together.
const BLOBS_MAX: usize = 256;
const BLOB_NAME_MAX: usize = 64;
const BLOB_BYTES_MAX: usize = 16 << 20;
const PRODUCER_MAX: usize = 64;
/// Bytes of one more part, range or blob, with the names of their fields.
const ENTRY_BYTES: usize = 384;

/// What [`crate::PartWriter::finish`] says of a part. It travels between hosts: check it before use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartSummary {
    /// The slice that has written it.
    pub slice: SliceId,
    /// The name of its file, `part-N`.
    pub file: String,
    /// The length of its file.
    pub bytes: u64,
    /// BLAKE3 of its head and index.
    pub digest: Digest,
    /// Pages with contents.
    pub pages: u64,
    /// Pages known to be zero.
    pub zero_pages: u64,
}

impl PartSummary {
    /// Whether the fields can be.
    ///
    /// # Errors
    /// The first that cannot.
    pub fn check(&self) -> Result<(), Invalid> {
        Invalid::unless(self.slice.0 < SLICES_MAX, "slice", "there is no such slice")?;
        Invalid::unless(self.file == part_name(self.slice), "file", "not the name of its part")?;
        Invalid::unless(self.bytes >= 2 * HEAD_END, "bytes", "too few for a part")?;
        let fits = self.pages <= FRAMES_END && self.zero_pages <= FRAMES_END;
        Invalid::unless(fits, "pages", "more than a VM has")
    }
}

/// The checkpoint that an increment is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// The name of its folder, which is in the same folder as that of the increment.
    pub folder: String,
    /// [`crate::Checkpoint::digest`] of it.
    pub digest: Digest,
}

/// What a checkpoint is of, and what it consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contents {
    /// Identity of the VM.
    pub vm: [u8; 16],
    /// Which life of the VM: 0, then a higher number after each restore: seconds since 1970 where a user restored it, the next number
    /// where its supervisor did.
    pub generation: u64,
    /// Number of the checkpoint, as in `IMAGE.cN`; later ones are higher. Not the number of a cut of all slices.
    pub cut: u64,
    /// When, in milliseconds since 1970 (UTC).
    pub created_unix_ms: u64,
    /// What it is an increment of; nothing if it is full.
    pub base: Option<Base>,
    /// All memory of the VM: ranges of frames from the lowest on, which do not meet.
    pub frames: Vec<Range<u64>>,
    /// One for each slice, from the lowest on.
    pub parts: Vec<PartSummary>,
    /// The description of the VM, which is nobody's business here.
    pub spec: String,
    /// Bytes with names, as of disks and clocks, which are nobody's business here either.
    #[serde(with = "blobs")]
    pub extra: BTreeMap<String, Vec<u8>>,
    /// Name and version of the program.
    pub producer: String,
}

impl SavedState for Contents {
    const NAME: &'static str = "checkpoint";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = BLOB_BYTES_MAX
        + SPEC_BYTES_MAX
        + (BLOBS_MAX + RANGES_MAX + SLICES_MAX as usize + 8) * ENTRY_BYTES;

    fn check(&self) -> Result<(), Invalid> {
        self.check_frames()?;
        let slices = 1..=usize::from(SLICES_MAX);
        Invalid::unless(slices.contains(&self.parts.len()), "parts", "none, or too many")?;
        self.parts.iter().try_for_each(PartSummary::check)?;
        let rises = self.parts.is_sorted_by(|one, next| one.slice < next.slice);
        Invalid::unless(rises, "parts", "not in the order of their slices")?;
        if let Some(Base { folder, .. }) = &self.base {
            Invalid::unless(is_plain_name(folder), "base", "not the name of a folder")?;
        }
        Invalid::unless(self.spec.len() <= SPEC_BYTES_MAX, "spec", "too long")?;
        let plain = !self.producer.chars().any(char::is_control);
        let named = (1..=PRODUCER_MAX).contains(&self.producer.len()) && plain;
        Invalid::unless(named, "producer", "not a name and a version")?;
        Invalid::unless(self.extra.len() <= BLOBS_MAX, "extra", "too many blobs")?;
        let named = |name: &String| (1..=BLOB_NAME_MAX).contains(&name.len());
        Invalid::unless(self.extra.keys().all(named), "extra", "a name is empty or too long")?;
        let bytes: usize = self.extra.values().map(Vec::len).sum();
        Invalid::unless(bytes <= BLOB_BYTES_MAX, "extra", "too many bytes")
    }
}

impl Contents {
    fn check_frames(&self) -> Result<(), Invalid> {
        let ranges = &self.frames;
        let few = (1..=RANGES_MAX).contains(&ranges.len());
        Invalid::unless(few, "frames", "no memory, or too many ranges")?;
        let real = |range: &Range<u64>| !range.is_empty() && range.end <= FRAMES_END;
        Invalid::unless(ranges.iter().all(real), "frames", "a range that cannot be")?;
        let apart = ranges.is_sorted_by(|one, next| one.end < next.start);
        Invalid::unless(apart, "frames", "ranges meet, or are not in order")
    }

    /// Whether all of these frames are memory of the VM.
    pub(crate) fn has(&self, frames: &Range<u64>) -> bool {
        let next = self.frames.partition_point(|range| range.end <= frames.start);
        let range = self.frames.get(next);
        range.is_some_and(|range| range.start <= frames.start && frames.end <= range.end)
    }
}

/// Blobs as strings of bytes: as lists of numbers they would be twice as long.
mod blobs {
    use serde::de::{Error, MapAccess, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;
    use std::fmt;

    struct Bytes<T>(T);

    impl<T: AsRef<[u8]>> Serialize for Bytes<T> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(self.0.as_ref())
        }
    }

    struct BytesVisitor;

    impl Visitor<'_> for BytesVisitor {
        type Value = Bytes<Vec<u8>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
            Ok(Bytes(bytes.to_vec()))
        }

        fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Self::Value, E> {
            Ok(Bytes(bytes))
        }
    }

    impl<'de> Deserialize<'de> for Bytes<Vec<u8>> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_byte_buf(BytesVisitor)
        }
    }

    struct BlobsVisitor;

    impl<'de> Visitor<'de> for BlobsVisitor {
        type Value = BTreeMap<String, Vec<u8>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("blobs by their names")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut blobs = BTreeMap::new();
            while let Some((name, Bytes(bytes))) = map.next_entry::<String, Bytes<Vec<u8>>>()? {
                if blobs.insert(name, bytes).is_some() {
                    return Err(A::Error::custom("two blobs of one name"));
                }
            }
            Ok(blobs)
        }
    }

    pub(super) fn serialize<S: Serializer>(
        blobs: &BTreeMap<String, Vec<u8>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(blobs.iter().map(|(name, bytes)| (name, Bytes(bytes))))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, Vec<u8>>, D::Error> {
        deserializer.deserialize_map(BlobsVisitor)
    }
}
