//! Parts and manifests of somebody who knows the format, so that all digests fit.

use super::support::*;
use crate::assemble;
use crate::index::Index;
use crate::{CheckpointError, Part, decode_manifest};
use migrate::saved::encode;
use proptest::prelude::*;
use std::fs;
use std::iter::once;
use std::ops::Range;
use std::path::Path;

/// Bodies and index of a small part.
fn small(file: &str) -> (Vec<u8>, Vec<u8>) {
    let parent = Folder::new();
    write_parts(&parent.0, 1);
    let bytes = fs::read(parent.join(file)).unwrap();
    let (bodies, index) = assemble::parts_of(&bytes).unwrap();
    (bodies.to_vec(), index.to_vec())
}

fn open(bodies: &[u8], index: &[u8]) -> Result<Part, CheckpointError> {
    Part::open(Box::new(assemble::part(&head(1, 0), bodies, index)), Path::new("part"))
}

/// What an index must be, whoever made it.
fn in_order(index: &Index, bodies: usize) {
    let mut frames: Vec<Range<u64>> = index.frames().collect();
    frames.sort_by_key(|frames| frames.start);
    assert!(frames.iter().all(|frames| !frames.is_empty() && frames.end <= crate::FRAMES_END));
    assert!(frames.windows(2).all(|pair| pair[0].end <= pair[1].start), "{frames:?}");
    let count: u64 = frames.iter().map(|frames| frames.end - frames.start).sum();
    assert_eq!(count, index.pages + index.zero_pages);
    let chunks: usize = index.chunks.iter().map(|chunk| chunk.length as usize).sum();
    let sections: u64 = index.sections.iter().map(|section| section.length).sum();
    assert_eq!(chunks + usize::try_from(sections).unwrap(), bodies);
}

fn used(bodies: &[u8], index: &[u8]) {
    let Ok(part) = open(bodies, index) else { return };
    in_order(&part.index, bodies.len());
    let whole = part.verify(&mut |_| ()).is_ok();
    let memory = crate::Contents {
        frames: once(0..crate::FRAMES_END).collect(),
        ..contents(1, None, Vec::new())
    };
    let checkpoint = assemble::checkpoint(memory, vec![part]).unwrap();
    let pages = pages_of(&checkpoint);
    assert!(pages.is_ok() || !whole);
    if let Ok(pages) = pages {
        let present = checkpoint.present(0..u64::MAX);
        let count: u64 = present.iter().map(|frames| frames.end - frames.start).sum();
        assert_eq!(count, u64::try_from(pages.len()).unwrap());
    }
}

#[test]
fn every_flipped_bit_of_a_sealed_index_does_no_harm() {
    for file in ["part-0", "part-3"] {
        let (bodies, index) = small(file);
        assert!(open(&bodies, &index).is_ok());
        for bit in 0..index.len() * 8 {
            let mut other = index.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            used(&bodies, &other);
        }
        for length in 0..index.len() {
            assert!(open(&bodies, &index[..length]).is_err());
        }
    }
}

fn refused(change: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>)) -> String {
    let (mut bodies, mut index) = small("part-3");
    change(&mut bodies, &mut index);
    open(&bodies, &index).unwrap_err().to_string()
}

/// Offsets in the index of a part with one chunk, two runs of pages, one range of zeros and one section.
const CHUNK: usize = 32;
const RUNS: usize = CHUNK + 64;
const ZEROS: usize = RUNS + 2 * 12;
const SECTION: usize = ZEROS + 16;

#[test]
fn each_rule_of_an_index_is_kept() {
    let (bodies, index) = small("part-3");
    assert_eq!(index.len(), SECTION + 96);
    assert!(open(&bodies, &index).is_ok());
    let set = |at: usize, bytes: &'static [u8]| {
        refused(|_, index| index[at..at + bytes.len()].copy_from_slice(bytes))
    };
    let cases = [
        (set(0, &[2]), "the length of the index"),
        (set(3, &[255]), "the length of the index"),
        (set(16, &[9]), "the numbers of its pages"),
        (set(CHUNK, &[1]), "bodies overlap"),
        (set(CHUNK + 8, &[1]), "the length of a chunk"),
        (set(CHUNK + 12, &[0, 0]), "the length of a chunk"),
        (set(CHUNK + 14, &[2]), "how a chunk is compressed"),
        (set(CHUNK + 15, &[1]), "of a chunk that mean nothing"),
        (set(CHUNK + 16, &[1]), "the runs of the chunks"),
        (set(CHUNK + 16, &[255; 4]), "the runs of a chunk"),
        (set(RUNS + 8, &[0]), "a run of pages"),
        (set(RUNS + 8, &[3]), "a run of pages"),
        (set(RUNS + 7, &[1]), "a run of pages"),
        (set(RUNS + 12, &[24, 0]), "a frame is in it twice"),
        (set(RUNS + 12, &[26, 0]), "a frame is zero and has contents"),
        (set(ZEROS + 8, &[0]), "the frames that are zero"),
        (set(ZEROS + 7, &[1]), "the frames that are zero"),
        (set(SECTION, &[0]), "the name of a section"),
        (set(SECTION, b"A"), "the name of a section"),
        (set(SECTION + 20, b"x"), "the name of a section"),
        (set(SECTION + 32, &[2]), "a section of kind 2"),
        (set(SECTION + 34, &[1]), "of a section that mean nothing"),
        (set(SECTION + 52, &[255]), "the length of a section"),
        (set(SECTION + 48, &[1]), "bodies overlap"),
        (refused(|bodies, _| bodies.push(0)), "bodies overlap"),
    ];
    for (number, (said, why)) in cases.iter().enumerate() {
        assert!(said.contains(why), "case {number}: {said}");
    }
}

/// A chunk that says less than it holds, and one that holds less than it says.
#[test]
fn chunk_is_never_longer_than_it_says() {
    let frames = |pages: usize| {
        let mut index = vec![0; 32 + 64 + 12];
        index[0] = 1;
        index[4] = 1;
        index[16] = u8::try_from(pages).unwrap();
        index[32] = 64;
        index[32 + 12] = u8::try_from(pages).unwrap();
        index[32 + 14] = 1;
        index[32 + 16] = 1;
        index[96 + 8] = u8::try_from(pages).unwrap();
        index
    };
    for (held, said, fits) in [(3, 3, true), (3, 2, false), (3, 4, false), (200, 1, false)] {
        let pages = vec![5; held * 4096];
        let body = zstd::bulk::compress(&pages, 1).unwrap();
        let mut index = frames(said);
        index[40..44].copy_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
        index[32 + 20..32 + 24].copy_from_slice(&crc32c::crc32c(&pages).to_le_bytes());
        let part = open(&body, &index).unwrap();
        assert_eq!(part.verify(&mut |_| ()).is_ok(), fits, "{held} pages, said to be {said}");
    }
}

#[test]
fn contents_that_do_not_fit_together_are_refused() {
    let parent = Folder::new();
    let contents = contents(1, base("other", crate::Digest([1; 32])), write_parts(&parent.0, 1));
    let bytes = encode(&contents).unwrap();
    let path = Path::new("manifest");
    assert_eq!(
        decode_manifest(&assemble::manifest(&bytes, None), path, None).unwrap().contents,
        contents
    );
    for bit in 0..bytes.len() * 8 {
        let mut other = bytes.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        if let Ok(manifest) = decode_manifest(&assemble::manifest(&other, None), path, None) {
            migrate::SavedState::check(&manifest.contents).unwrap();
        }
    }
    for length in 0..bytes.len() {
        let short = assemble::manifest(&bytes[..length], None);
        assert!(decode_manifest(&short, path, None).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn sealed_indexes_of_anything_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        short: bool,
    ) {
        thread_local! {
            static SMALL: (Vec<u8>, Vec<u8>) = small("part-0");
        }
        SMALL.with(|(bodies, index)| {
            let mut other = index.clone();
            for (at, to) in changes {
                // Most numbers are small.
                let at = at.index(other.len());
                other[at] = if short { to % 8 } else { to };
            }
            used(bodies, &other);
        });
    }

    #[test]
    fn bytes_of_nobody_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Part::open(Box::new(bytes.clone()), Path::new("part")).is_err());
        prop_assert!(decode_manifest(&bytes, Path::new("manifest"), None).is_err());
        let sealed = assemble::manifest(&bytes, None);
        prop_assert!(decode_manifest(&sealed, Path::new("manifest"), None).is_err());
    }
}
