//! Writes a full checkpoint and an increment of it, small ones, into a new folder: the files of `golden/vN` for a new version N
//! of the format. Files that are there stay as they are for ever.

use std::collections::BTreeMap;
use std::path::Path;
use tessera_checkpoint::{
    Base, Checkpoint, CheckpointError, Compression, Contents, Digest, Key, PAGE_BYTES, PartHead,
    PartSummary, PartWriter,
};
use wire::SliceId;

const VM: [u8; 16] = *b"golden test file";

/// `src/tests/golden.rs` has the same.
fn page(cut: u64, frame: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_BYTES];
    for (number, word) in (0_u64..).zip(bytes.as_chunks_mut::<8>().0) {
        *word = ((cut << 48 | frame << 16) + number % 16).to_le_bytes();
    }
    bytes
}

fn part(
    folder: &Path,
    cut: u64,
    slice: u16,
    frames: &[u64],
    zeros: &[u64],
) -> Result<PartSummary, CheckpointError> {
    let head = PartHead { vm: VM, generation: 3, cut, slice: SliceId(slice) };
    let compression = if slice == 0 { Compression::Zstd } else { Compression::None };
    let mut writer = PartWriter::create(folder, &head, compression)?;
    for frame in frames {
        writer.pages(*frame, &page(cut, *frame))?;
    }
    for frame in zeros {
        writer.zeros(*frame..frame + 1)?;
    }
    writer.section("slice", format!("form of slice {slice} at cut {cut}").as_bytes())?;
    writer.finish()
}

fn commit(
    folder: &Path,
    cut: u64,
    base: Option<Base>,
    parts: Vec<PartSummary>,
) -> Result<Digest, CheckpointError> {
    let contents = Contents {
        vm: VM,
        generation: 3,
        cut,
        created_unix_ms: 1_790_000_000_000,
        base,
        frames: vec![0..16, 32..40],
        parts,
        spec: r#"{"golden":true}"#.into(),
        extra: BTreeMap::from([("clock".into(), vec![1, 2, 3])]),
        producer: concat!("tessera ", env!("CARGO_PKG_VERSION")).into(),
    };
    Checkpoint::commit(
        folder,
        &contents,
        Some(&Key::of_secret(b"golden secret of a virtual machine")),
    )
}

fn main() -> Result<(), CheckpointError> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let (full, increment) = (Path::new(&folder).join("full"), Path::new(&folder).join("increment"));
    let parts =
        vec![part(&full, 7, 0, &[0, 1, 2, 33], &[3, 4])?, part(&full, 7, 1, &[5, 33], &[])?];
    let digest = commit(&full, 7, None, parts)?;
    let base = Some(Base { folder: "full".into(), digest });
    let parts = vec![part(&increment, 8, 0, &[1], &[2])?, part(&increment, 8, 1, &[6], &[7])?];
    commit(&increment, 8, base, parts)?;
    Ok(())
}
