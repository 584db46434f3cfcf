//! What was written is what is read, whoever wrote it and however scattered it is.

use super::support::*;
use crate::{Checkpoint, CheckpointError, Compression, PAGE_BYTES, PartWriter};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::iter::once;
use std::ops::Range;
use std::path::Path;
use std::thread;
use wire::SliceId;

/// What slices say of a frame: which of them (bits), and the contents.
type Said = BTreeMap<u64, (u8, u8)>;

fn frames() -> Vec<u64> {
    memory().into_iter().flatten().collect()
}

fn said() -> impl Strategy<Value = Said> {
    let one = prop::option::of((1_u8..8, prop_oneof![Just(0_u8), Just(5), 0..=255_u8]));
    prop::collection::vec(one, frames().len()).prop_map(|all| {
        let pairs = frames().into_iter().zip(all);
        pairs.filter_map(|(frame, said)| Some((frame, said?))).collect()
    })
}

fn write_said(folder: &Path, cut: u64, said: &Said, order: u64) -> Vec<crate::PartSummary> {
    let part = |slice: u8| {
        let compression = if slice == 1 { Compression::None } else { Compression::Zstd };
        let head = head(cut, slice.into());
        let mut writer = PartWriter::create(folder, &head, compression).unwrap();
        let own = said.iter().filter(|(_, (slices, _))| slices >> slice & 1 == 1);
        let mut own: Vec<_> = own.map(|(frame, (_, content))| (*frame, *content)).collect();
        own.sort_by_key(|(frame, _)| {
            blake3::hash(&(frame / 3 + order).to_le_bytes()).as_bytes()[0]
        });
        for (frame, content) in own {
            if content == 0 && frame % 2 == 0 {
                writer.zeros(frame..frame + 1).unwrap();
            } else {
                writer.pages(frame, &page(content)).unwrap();
            }
        }
        writer.finish().unwrap()
    };
    (0..3).map(part).collect()
}

fn compare(checkpoint: &Checkpoint, model: &BTreeMap<u64, u8>) {
    let with: BTreeMap<u64, u8> =
        model.iter().filter(|(_, content)| **content != 0).map(|(f, c)| (*f, *c)).collect();
    let pages = pages_of(checkpoint).unwrap();
    assert!(pages.iter().map(|(f, p)| (*f, p[0])).eq(with.clone()));
    assert!(pages.values().all(|bytes| *bytes == page(bytes[0])));
    assert!(checkpoint.present(0..u64::MAX).into_iter().flatten().eq(with.keys().copied()));
    for frame in frames() {
        let mut out = [9; PAGE_BYTES];
        let content = with.get(&frame).copied();
        assert_eq!(checkpoint.page(frame, &mut out).unwrap(), content.is_some());
        assert_eq!(out.to_vec(), page(content.unwrap_or(0)), "{frame}");
    }
    checkpoint.verify(&mut |_, _| ()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn chain_reads_as_one_memory(
        layers in prop::collection::vec(said(), 1..4),
        order: u64,
        part in (0_u64..0x110, 0_u64..0x110),
    ) {
        let parent = Folder::new();
        let (mut model, mut below) = (BTreeMap::new(), None);
        for (cut, said) in (1..).zip(&layers) {
            let name = format!("cut-{cut}");
            let parts = write_said(&parent.join(&name), cut, said, order);
            let contents = contents(cut, below.take(), parts);
            let digest = Checkpoint::commit(&parent.join(&name), &contents, None).unwrap();
            below = base(&name, digest);
            model.extend(said.iter().map(|(frame, (_, content))| (*frame, *content)));
            let checkpoint = Checkpoint::open(&parent.join(&name), None).unwrap();
            compare(&checkpoint, &model);
            let range: Range<u64> = part.0..part.1;
            let mut seen = Vec::new();
            checkpoint.read::<CheckpointError>(range.clone(), &mut |first, bytes| {
                seen.extend(first..first + u64::try_from(bytes.len() / PAGE_BYTES).unwrap());
                Ok(())
            }).unwrap();
            seen.sort_unstable();
            let wanted = model.iter().filter(|(frame, content)| range.contains(*frame) && **content != 0);
            prop_assert!(seen.into_iter().eq(wanted.map(|(frame, _)| *frame)));
            // Piece by piece, as it is loaded while a guest runs.
            let mut pieces = BTreeMap::new();
            for at in (0..0x110).step_by(16) {
                let some = model.range(at..at + 16).any(|(_, content)| *content != 0);
                prop_assert_eq!(checkpoint.has(at..at + 16), some);
                checkpoint.read_piece::<CheckpointError>(at..at + 16, &mut |first, bytes| {
                    let pages = bytes.chunks_exact(PAGE_BYTES).map(|page| page[0]);
                    pieces.extend((first..).zip(pages));
                    Ok(())
                }).unwrap();
            }
            let wanted = model.iter().filter(|(frame, content)| **frame < 0x110 && **content != 0);
            prop_assert!(pieces.into_iter().eq(wanted.map(|(frame, content)| (*frame, *content))));
            let last = checkpoint.statistics().layers.remove(0);
            let several = said.values().filter(|(slices, _)| slices.count_ones() > 1).count();
            prop_assert_eq!(last.shared, u64::try_from(several).unwrap());
            let copies: u32 = said.values().map(|(slices, _)| slices.count_ones()).sum();
            prop_assert_eq!(last.pages + last.zero_pages, u64::from(copies));
        }
        let newest = parent.join(&format!("cut-{}", layers.len()));
        let merged = parent.join("merged");
        let mut last = (0, 0);
        crate::export(&newest, &merged, None, &mut |done, all| last = (done, all)).unwrap();
        prop_assert_eq!(last.0, last.1);
        let merged = Checkpoint::open(&merged, None).unwrap();
        compare(&merged, &model);
        let statistics = merged.statistics();
        prop_assert_eq!(statistics.layers.len(), 1);
        prop_assert_eq!(statistics.layers[0].shared, 0);
        let with = model.values().filter(|content| **content != 0).count();
        prop_assert_eq!(statistics.layers[0].pages, u64::try_from(with).unwrap());
    }
}

/// More pages than a chunk has, every other frame, so that chunks have many runs.
#[test]
fn many_scattered_pages_come_back() {
    let parent = Folder::new();
    let folder = parent.join("one");
    for (slice, compression) in [(0, Compression::Zstd), (1, Compression::None)] {
        let mut writer = PartWriter::create(&folder, &head(1, slice), compression).unwrap();
        for number in 0..1300 {
            writer.pages(number * 4 + u64::from(slice) * 2, &noise(number / 2)).unwrap();
        }
        let summary = writer.finish().unwrap();
        assert_eq!((summary.pages, summary.zero_pages), (1300, 0));
    }
    let mut parts = Vec::new();
    for slice in [0, 1] {
        let path = folder.join(format!("part-{slice}"));
        let file = std::fs::File::open(&path).unwrap();
        let part = crate::Part::open(Box::new(file), &path).unwrap();
        assert_eq!(part.index.chunks.len(), 3, "512 pages, 512 and the rest");
        parts.push(part);
    }
    let contents =
        crate::Contents { frames: once(0..5200).collect(), ..contents(1, None, Vec::new()) };
    let checkpoint = crate::assemble::checkpoint(contents, parts).unwrap();
    let pages = pages_of(&checkpoint).unwrap();
    let expected = (0..2600).map(|number: u64| (number * 2, noise(number / 4)));
    assert!(pages.into_iter().eq(expected));
    assert_eq!(checkpoint.present(10..17), [10..11, 12..13, 14..15, 16..17]);
}

#[test]
fn sections_come_back_and_others_are_refused() {
    let parent = Folder::new();
    let folder = parent.join("one");
    let long: Vec<u8> = (0..700).flat_map(noise).collect();
    let mut writer = PartWriter::create(&folder, &head(1, 2), Compression::Zstd).unwrap();
    writer.section("empty", b"").unwrap();
    writer.section("long", &long).unwrap();
    let summary = writer.finish().unwrap();
    Checkpoint::commit(&folder, &contents(1, None, vec![summary]), None).unwrap();
    let checkpoint = Checkpoint::open(&folder, None).unwrap();
    assert_eq!(checkpoint.section(SliceId(2), "long").unwrap(), long);
    assert_eq!(checkpoint.section(SliceId(2), "empty").unwrap(), b"");
    let lengths = [("empty".into(), 0), ("long".into(), 700 * 4096)];
    assert_eq!(checkpoint.sections(SliceId(2)).unwrap(), lengths);
    for (slice, name) in [(2, "lon"), (1, "long")] {
        let error = checkpoint.section(SliceId(slice), name).unwrap_err();
        assert!(matches!(error, CheckpointError::NoSection { .. }), "{error}");
    }
}

#[test]
fn threads_share_a_reader_and_pass_a_writer_on() {
    fn may<T: Send>() {}
    fn may_share<T: Sync>() {}
    may::<PartWriter>();
    may_share::<Checkpoint>();
    let parent = Folder::new();
    let folder = parent.join("one");
    write(&folder, 1, None, None);
    let checkpoint = Checkpoint::open(&folder, None).unwrap();
    let alone = pages_of(&checkpoint).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (frame, page) in &alone {
                    let mut out = [0; PAGE_BYTES];
                    assert!(checkpoint.page(*frame, &mut out).unwrap());
                    assert_eq!(out[..], page[..]);
                }
            });
        }
    });
}

/// Zeros between pages, before them and after them, given together.
#[test]
fn zeros_among_pages_are_noted() {
    let parent = Folder::new();
    let contents_of = [0, 0, 5, 0, 6, 7, 0, 0];
    let bytes: Vec<u8> = contents_of.into_iter().flat_map(page).collect();
    let mut writer = PartWriter::create(&parent.0, &head(1, 0), Compression::None).unwrap();
    writer.pages(8, &bytes).unwrap();
    let summary = writer.finish().unwrap();
    assert_eq!((summary.pages, summary.zero_pages), (3, 5));
    Checkpoint::commit(&parent.0, &contents(1, None, vec![summary]), None).unwrap();
    let checkpoint = Checkpoint::open(&parent.0, None).unwrap();
    let wanted = [(10, page(5)), (12, page(6)), (13, page(7))];
    assert_eq!(pages_of(&checkpoint).unwrap(), BTreeMap::from(wanted));
    assert_eq!(checkpoint.layers[0].parts[0].index.zeros, [8..10, 11..12, 14..16]);
}
