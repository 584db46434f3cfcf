//! Bytes that changed, went, or came from another checkpoint.

use super::support::*;
use crate::{Checkpoint, CheckpointError, Key};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

fn key() -> Key {
    Key::of_secret(b"the secret of a virtual machine")
}

/// A full checkpoint and an increment of it.
fn chain(parent: &Folder, key: Option<&Key>) {
    let digest = write(&parent.join("full"), 1, None, key);
    write(&parent.join("next"), 2, base("full", digest), key);
}

/// Each byte of each file: with a key nothing else is accepted, and without one nothing else is read.
#[test]
fn every_flipped_byte_is_refused_or_does_no_harm() {
    let parent = Folder::new();
    let key = key();
    chain(&parent, Some(&key));
    let folder = parent.join("next");
    let right = read(&folder, Some(&key)).unwrap();
    for file in FILES {
        let path = folder.join(file);
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1 << (at % 8);
            fs::write(&path, &other).unwrap();
            let with = read(&folder, Some(&key));
            assert!(with.is_err(), "{file}: byte {at} of {}", bytes.len());
            if let Ok(read) = read(&folder, None) {
                assert_eq!(read, right, "{file}: byte {at}");
            }
        }
        fs::write(&path, &bytes).unwrap();
    }
    assert_eq!(read(&folder, Some(&key)).unwrap(), right);
}

/// Whatever is not the body of a chunk or a section is looked at before anybody sees the checkpoint.
#[test]
fn flipped_bytes_outside_of_bodies_are_refused_when_it_is_opened() {
    let parent = Folder::new();
    let folder = parent.join("one");
    write(&folder, 1, None, None);
    for file in FILES {
        let path = folder.join(file);
        let bytes = fs::read(&path).unwrap();
        let bodies =
            crate::assemble::parts_of(&bytes).map_or(0..0, |(bodies, _)| 64..64 + bodies.len());
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            fs::write(&path, &other).unwrap();
            assert_eq!(
                Checkpoint::open(&folder, None).is_ok(),
                bodies.contains(&at),
                "{file} {at}"
            );
        }
        fs::write(&path, &bytes).unwrap();
    }
}

#[test]
fn flipped_body_is_refused_by_each_way_of_reading() {
    let parent = Folder::new();
    let folder = parent.join("one");
    write(&folder, 1, None, None);
    // The first body is that of a section, the chunk follows it.
    let path = folder.join("part-3");
    let mut bytes = fs::read(&path).unwrap();
    bytes[64 + 1000] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let checkpoint = Checkpoint::open(&folder, None).unwrap();
    let damaged = |error| matches!(error, CheckpointError::Damaged { .. });
    let mut out = [0; 4096];
    assert!(damaged(checkpoint.page(25, &mut out).unwrap_err()));
    let mut seen = Vec::new();
    let sink = &mut |first: u64, _: &[u8]| {
        seen.push(first);
        Ok(())
    };
    assert!(damaged(checkpoint.read::<CheckpointError>(0..u64::MAX, sink).unwrap_err()));
    assert!(!seen.iter().any(|first| (24..32).contains(first)), "{seen:?}");
    assert!(damaged(checkpoint.verify(&mut |_, _| ()).unwrap_err()));
    assert!(checkpoint.section(wire::SliceId(3), "slice").is_ok());
    bytes[64] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let checkpoint = Checkpoint::open(&folder, None).unwrap();
    assert!(damaged(checkpoint.section(wire::SliceId(3), "slice").unwrap_err()));
}

#[test]
fn every_other_length_is_refused() {
    let parent = Folder::new();
    let folder = parent.join("one");
    write(&folder, 1, None, None);
    for file in FILES {
        let path = folder.join(file);
        let bytes = fs::read(&path).unwrap();
        for length in 0..bytes.len() {
            fs::write(&path, &bytes[..length]).unwrap();
            assert!(Checkpoint::open(&folder, None).is_err(), "{file} of {length} bytes");
        }
        for more in [1, 64, 5000] {
            fs::write(&path, [&bytes[..], &vec![0; more]].concat()).unwrap();
            assert!(Checkpoint::open(&folder, None).is_err(), "{file} with {more} bytes more");
        }
        fs::write(&path, &bytes).unwrap();
    }
    assert!(Checkpoint::open(&folder, None).is_ok());
}

fn refusal(folder: &Path) -> CheckpointError {
    Checkpoint::open(folder, None).unwrap_err()
}

#[test]
fn parts_of_other_checkpoints_are_refused() {
    let parent = Folder::new();
    let (one, other) = (parent.join("one"), parent.join("other"));
    write(&one, 1, None, None);
    write(&other, 2, None, None);
    let whole = fs::read(one.join("part-0")).unwrap();
    fs::copy(other.join("part-0"), one.join("part-0")).unwrap();
    let error = refusal(&one);
    assert!(error.to_string().contains("it is of cut 2 instead of 1"), "{error}");

    // Of another slice of the same checkpoint.
    fs::copy(one.join("part-3"), one.join("part-0")).unwrap();
    let error = refusal(&one);
    assert!(error.to_string().contains("it is of slice3 instead of slice0"), "{error}");

    fs::remove_file(one.join("part-0")).unwrap();
    assert!(matches!(refusal(&one), CheckpointError::Io { what: "open", .. }));
    fs::write(one.join("part-0"), whole).unwrap();
    assert!(Checkpoint::open(&one, None).is_ok());
}

/// The same cut in another generation, in another VM, and written once more.
#[test]
fn parts_of_other_lives_are_refused() {
    let parent = Folder::new();
    let folder = parent.join("one");
    write(&folder, 1, None, None);
    let cases = [
        (crate::PartHead { generation: 0, ..head(1, 0) }, "it is of generation 0 instead of 1"),
        (crate::PartHead { vm: [7; 16], ..head(1, 0) }, "it is of another VM"),
        (head(1, 0), "bytes instead of"),
    ];
    for (head, why) in cases {
        let elsewhere = Folder::new();
        let writer = crate::PartWriter::create(&elsewhere.0, &head, crate::Compression::None);
        writer.unwrap().finish().unwrap();
        fs::copy(elsewhere.join("part-0"), folder.join("part-0")).unwrap();
        let error = refusal(&folder);
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn links_and_other_things_in_place_of_files_are_refused() {
    let parent = Folder::new();
    let folder = parent.join("one");
    write(&folder, 1, None, None);
    for file in FILES {
        let (path, elsewhere) = (folder.join(file), parent.join(file));
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(matches!(refusal(&folder), CheckpointError::Io { what: "open", .. }), "{file}");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(matches!(refusal(&folder), CheckpointError::Damaged { .. }), "{file}");
        fs::remove_dir(&path).unwrap();
        fs::rename(&elsewhere, &path).unwrap();
    }
}

#[derive(Clone, Debug)]
enum Mutation {
    Flip(usize, u8),
    Cut(usize),
    Insert(usize, u8),
    Copy { from: usize, to: usize, length: usize },
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        4 => (any::<usize>(), 1..=255_u8).prop_map(|(at, by)| Mutation::Flip(at, by)),
        1 => any::<usize>().prop_map(Mutation::Cut),
        1 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        2 => (any::<usize>(), any::<usize>(), 1_usize..200)
            .prop_map(|(from, to, length)| Mutation::Copy { from, to, length }),
    ]
}

fn mutate(bytes: &mut Vec<u8>, mutation: &Mutation) {
    let long = bytes.len();
    match *mutation {
        _ if long == 0 => {}
        Mutation::Flip(at, by) => bytes[at % long] ^= by,
        Mutation::Cut(at) => bytes.truncate(at % long),
        Mutation::Insert(at, byte) => bytes.insert(at % long, byte),
        Mutation::Copy { from, to, length } => {
            let (from, to) = (from % long, to % long);
            let length = length.min(long - from).min(long - to);
            bytes.copy_within(from..from + length, to);
        }
    }
}

#[test]
fn ten_thousand_mutations_are_refused_or_do_no_harm() {
    let parent = Folder::new();
    let key = key();
    chain(&parent, Some(&key));
    let folders = [parent.join("full"), parent.join("next")];
    let right = read(&folders[1], Some(&key)).unwrap();
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(10_000) };
    let cases = (0..2_usize, 0..3_usize, prop::collection::vec(mutation(), 1..4));
    let outcome =
        prop::test_runner::TestRunner::new(config).run(&cases, |(folder, file, mutations)| {
            let path = folders[folder].join(FILES[file]);
            let bytes = fs::read(&path).unwrap();
            let mut other = bytes.clone();
            mutations.iter().for_each(|mutation| mutate(&mut other, mutation));
            fs::write(&path, &other).unwrap();
            let read = [read(&folders[1], Some(&key)), read(&folders[1], None)];
            fs::write(&path, &bytes).unwrap();
            for read in read.iter().flatten() {
                prop_assert_eq!(read, &right);
            }
            // A base's sections, and pages that its increment replaces, are not read.
            prop_assert!(folder == 0 || other == bytes || read[0].is_err());
            Ok(())
        });
    outcome.unwrap();
}
