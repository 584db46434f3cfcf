//! Files that an earlier program has written, which are read for ever. `examples/golden.rs` has written them.

use super::support::*;
use crate::{Authenticity, Checkpoint, FORMAT_VERSION, Key, PAGE_BYTES};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use wire::SliceId;

/// What the example writes into the page of a frame at a cut.
fn golden_page(cut: u64, frame: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_BYTES];
    for (number, word) in (0_u64..).zip(bytes.as_chunks_mut::<8>().0) {
        *word = ((cut << 48 | frame << 16) + number % 16).to_le_bytes();
    }
    bytes
}

fn golden(version: u16, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/v{version}/{name}"))
}

fn key() -> Key {
    Key::of_secret(b"golden secret of a virtual machine")
}

#[test]
fn full_checkpoint_of_version_1_is_read() {
    let checkpoint = Checkpoint::open(&golden(1, "full"), Some(&key())).unwrap();
    assert_eq!(checkpoint.authenticity(), Authenticity::Checked);
    let contents = checkpoint.contents();
    assert_eq!((contents.vm, contents.generation, contents.cut), (*b"golden test file", 3, 7));
    assert_eq!(contents.frames, [0..16, 32..40]);
    assert_eq!((contents.base.as_ref(), contents.spec.as_str()), (None, r#"{"golden":true}"#));
    assert_eq!(contents.extra, BTreeMap::from([("clock".into(), vec![1, 2, 3])]));
    let frames = [0, 1, 2, 5, 33];
    let wanted = frames.map(|frame| (frame, golden_page(7, frame)));
    assert_eq!(pages_of(&checkpoint).unwrap(), BTreeMap::from(wanted));
    assert_eq!(checkpoint.section(SliceId(0), "slice").unwrap(), b"form of slice 0 at cut 7");
    assert_eq!(checkpoint.section(SliceId(1), "slice").unwrap(), b"form of slice 1 at cut 7");
    checkpoint.verify(&mut |_, _| ()).unwrap();
}

#[test]
fn increment_of_version_1_is_read() {
    let checkpoint = Checkpoint::open(&golden(1, "increment"), Some(&key())).unwrap();
    assert_eq!(checkpoint.contents().cut, 8);
    let wanted = [(0, 7), (1, 8), (5, 7), (6, 8), (33, 7)];
    let wanted = wanted.map(|(frame, cut)| (frame, golden_page(cut, frame)));
    assert_eq!(pages_of(&checkpoint).unwrap(), BTreeMap::from(wanted));
    assert_eq!(checkpoint.section(SliceId(1), "slice").unwrap(), b"form of slice 1 at cut 8");
    checkpoint.verify(&mut |_, _| ()).unwrap();
}

/// Whoever changes the format makes files of the new version too.
#[test]
fn what_is_written_today_has_golden_files() {
    for name in ["full", "increment"] {
        let folder = golden(FORMAT_VERSION, name);
        let manifest = std::fs::read(folder.join("manifest")).unwrap();
        assert_eq!(crate::layout::u16_at(&manifest, 8), FORMAT_VERSION);
        Checkpoint::open(&folder, Some(&key())).unwrap();
    }
}
