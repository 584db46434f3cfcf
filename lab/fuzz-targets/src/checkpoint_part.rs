//! Parts of checkpoints: no panic on any bytes; of a part that is accepted, each frame has one place, all its memory is read,
//! and each way of reading says the same.

use checkpoint::{
    Checkpoint, CheckpointError, Contents, FRAMES_END, PAGE_BYTES, Part, PartHead, assemble,
};
use std::collections::BTreeMap;
use std::iter::once;
use std::path::Path;
use wire::SliceId;

/// A chunk of some bytes may have 2 MiB of pages.
const PAGES_MAX: u64 = 2048;
const SINGLE_MAX: usize = 16;

fn open(bytes: Vec<u8>) -> Option<Part> {
    Part::open(Box::new(bytes), Path::new("part")).ok()
}

fn contents() -> Contents {
    Contents {
        vm: [1; 16],
        generation: 1,
        cut: 1,
        created_unix_ms: 0,
        base: None,
        frames: once(0..FRAMES_END).collect(),
        parts: Vec::new(),
        spec: String::new(),
        extra: BTreeMap::new(),
        producer: "fuzz".into(),
    }
}

fn read(checkpoint: &Checkpoint) -> Result<BTreeMap<u64, [u8; PAGE_BYTES]>, CheckpointError> {
    let mut pages = BTreeMap::new();
    checkpoint.read::<CheckpointError>(0..FRAMES_END, &mut |first, bytes| {
        for (frame, page) in (first..).zip(bytes.as_chunks().0) {
            assert!(pages.insert(frame, *page).is_none(), "a frame comes once");
        }
        Ok(())
    })?;
    Ok(pages)
}

fn use_part(part: Part) {
    let (pages, zeros) = part.pages();
    let slice = part.head().slice;
    let whole = part.verify(&mut |_| ()).is_ok();
    let checkpoint = assemble::checkpoint(contents(), vec![part]).expect("all frames are memory");
    for (name, length) in checkpoint.sections(slice).expect("it has a part") {
        match checkpoint.section(slice, &name) {
            Ok(bytes) => assert_eq!(bytes.len() as u64, length),
            Err(error) => assert!(!whole, "{error}"),
        }
    }
    let present: u64 =
        checkpoint.present(0..FRAMES_END).iter().map(|frames| frames.end - frames.start).sum();
    assert_eq!(present, pages);
    assert!(pages + zeros <= FRAMES_END);
    let Ok(read) = read(&checkpoint) else {
        assert!(!whole, "what is whole is read");
        return;
    };
    assert_eq!(read.len() as u64, pages);
    for (frame, page) in read.iter().take(SINGLE_MAX) {
        let mut out = [0; PAGE_BYTES];
        assert!(checkpoint.page(*frame, &mut out).expect("it was read before"));
        assert_eq!(out, *page);
    }
}

pub(crate) fn run(input: &[u8]) {
    // As it is: head, trailer, digests. Then as length of the bodies, bodies and index, under digests that fit.
    if let Some(part) = open(input.to_vec()) {
        assert_eq!(part.length(), input.len() as u64);
    }
    let [low, high, rest @ ..] = input else { return };
    let bodies = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (bodies, index) = rest.split_at(bodies);
    let head = PartHead { vm: [1; 16], generation: 1, cut: 1, slice: SliceId(0) };
    if let Some(part) = open(assemble::part(&head, bodies, index))
        && part.pages().0 <= PAGES_MAX
    {
        use_part(part);
    }
}
