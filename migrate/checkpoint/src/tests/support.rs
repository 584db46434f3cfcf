//! A folder for each test, and checkpoints of few pages.

use crate::digest::Digest;
use crate::{
    Base, Checkpoint, CheckpointError, Compression, Contents, Key, PAGE_BYTES, PartHead,
    PartSummary, PartWriter,
};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use wire::SliceId;

pub(super) const VM: [u8; 16] = *b"sixteen bytes vm";

/// A folder that goes when the test ends.
#[derive(Debug)]
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tessera-checkpoint-{}-{number}", std::process::id());
        // Thousands of files are written again and again: in memory, if there is a file system there.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Contents of a page that say which they are; those of 0 are zero.
pub(super) fn page(content: u8) -> Vec<u8> {
    (0..PAGE_BYTES).map(|at| if at % 64 == 0 { content } else { content / 2 }).collect()
}

/// Bytes that no compression makes shorter.
pub(super) fn noise(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_BYTES];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

pub(super) fn head(cut: u64, slice: u16) -> PartHead {
    PartHead { vm: VM, generation: 1, cut, slice: SliceId(slice) }
}

/// Memory of 56 frames with a hole.
pub(super) fn memory() -> Vec<Range<u64>> {
    vec![0..40, 0x100..0x110]
}

pub(super) fn contents(cut: u64, base: Option<Base>, parts: Vec<PartSummary>) -> Contents {
    Contents {
        vm: VM,
        generation: 1,
        cut,
        created_unix_ms: 1_790_000_000_000,
        base,
        frames: memory(),
        parts,
        spec: r#"{"slices":2}"#.into(),
        extra: BTreeMap::from([("clock".into(), vec![1, 2, 3]), ("disks".into(), vec![0; 100])]),
        producer: "tessera 0.1.0".into(),
    }
}

/// Two parts: pages that both have, pages of one, pages of zeros, and a section each.
pub(super) fn write_parts(folder: &Path, cut: u64) -> Vec<PartSummary> {
    let part = |slice: u16, compression| {
        let mut writer = PartWriter::create(folder, &head(cut, slice), compression).unwrap();
        let own = u64::from(slice) * 8;
        writer
            .pages(own, &[page(2 + u8::try_from(cut).unwrap()), noise(own + cut)].concat())
            .unwrap();
        writer.section("slice", format!("form of slice {slice} at cut {cut}").as_bytes()).unwrap();
        writer.pages(0x105, &page(77)).unwrap();
        writer.zeros(own + 2..own + 4).unwrap();
        writer.pages(own + 4, &page(0)).unwrap();
        writer.finish().unwrap()
    };
    vec![part(0, Compression::Zstd), part(3, Compression::None)]
}

/// Writes a checkpoint of two parts and commits it.
pub(super) fn write(folder: &Path, cut: u64, base: Option<Base>, key: Option<&Key>) -> Digest {
    let parts = write_parts(folder, cut);
    Checkpoint::commit(folder, &contents(cut, base, parts), key).unwrap()
}

/// An increment of a checkpoint beside it.
pub(super) fn base(name: &str, digest: Digest) -> Option<Base> {
    Some(Base { folder: name.into(), digest })
}

/// Everything that a checkpoint says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Everything {
    contents: Contents,
    pages: BTreeMap<u64, Vec<u8>>,
    sections: Vec<(SliceId, String, Vec<u8>)>,
}

pub(super) fn pages_of(checkpoint: &Checkpoint) -> Result<BTreeMap<u64, Vec<u8>>, CheckpointError> {
    let mut pages = BTreeMap::new();
    checkpoint.read::<CheckpointError>(0..u64::MAX, &mut |first, bytes| {
        for (frame, page) in (first..).zip(bytes.chunks(PAGE_BYTES)) {
            assert!(pages.insert(frame, page.to_vec()).is_none(), "frame {frame} came twice");
        }
        Ok(())
    })?;
    Ok(pages)
}

pub(super) fn read(folder: &Path, key: Option<&Key>) -> Result<Everything, CheckpointError> {
    let checkpoint = Checkpoint::open(folder, key)?;
    let pages = pages_of(&checkpoint)?;
    let mut sections = Vec::new();
    for part in &checkpoint.contents().parts {
        for (name, _) in checkpoint.sections(part.slice)? {
            let bytes = checkpoint.section(part.slice, &name)?;
            sections.push((part.slice, name, bytes));
        }
    }
    Ok(Everything { contents: checkpoint.contents().clone(), pages, sections })
}

/// Files of a checkpoint.
pub(super) const FILES: [&str; 3] = ["manifest", "part-0", "part-3"];
