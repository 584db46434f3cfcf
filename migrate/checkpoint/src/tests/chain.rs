//! Increments, and what they need of their bases.

use super::support::*;
use crate::files::MANIFEST;
use crate::folder::take_manifest;
use crate::{
    Authenticity, CHAIN_MAX, Checkpoint, CheckpointError, Compression, Digest, Key, PartHead,
    PartWriter, Point, Points, State, delete, export, list, retire,
};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

fn why(error: &CheckpointError) -> &str {
    match error {
        CheckpointError::Base { why, .. } => why,
        other => panic!("{other}"),
    }
}

#[test]
fn base_that_is_missing_damaged_or_another_is_refused() {
    let parent = Folder::new();
    let full = parent.join("full");
    let digest = write(&full, 1, None, None);
    let next = parent.join("next");
    write(&next, 2, base("full", digest), None);
    assert!(Checkpoint::open(&next, None).is_ok());

    fs::rename(&full, parent.join("elsewhere")).unwrap();
    let error = Checkpoint::open(&next, None).unwrap_err();
    assert!(why(&error).contains("full is no checkpoint: it has no manifest"), "{error}");
    write(&full, 1, None, None);
    // The same parts were written, so it is the same checkpoint.
    assert!(Checkpoint::open(&next, None).is_ok());
    delete(&parent.join("elsewhere")).unwrap();

    fs::remove_file(full.join("manifest")).unwrap();
    let parts = Checkpoint::open(&next, None).unwrap_err();
    assert!(why(&parts).contains("no manifest"), "{parts}");
    let mut other = contents(1, None, Vec::new());
    other.created_unix_ms += 1;
    fs::remove_dir_all(&full).unwrap();
    other.parts = write_parts(&full, 1);
    Checkpoint::commit(&full, &other, None).unwrap();
    let error = Checkpoint::open(&next, None).unwrap_err();
    assert_eq!(why(&error), "it is not the one that the increment is of");
}

#[test]
fn increment_of_something_else_is_not_committed() {
    let parent = Folder::new();
    let digest = write(&parent.join("full"), 5, None, None);
    let commit = |name: &str, change: &dyn Fn(&mut crate::Contents), cut| {
        let folder = parent.join(name);
        let mut contents = contents(cut, base("full", digest), write_parts(&folder, cut));
        change(&mut contents);
        let error = Checkpoint::commit(&folder, &contents, None).unwrap_err();
        assert!(!folder.join("manifest").exists());
        error
    };
    let error = commit("older", &|_| (), 4);
    assert_eq!(why(&error), "it is not older than the increment");
    let error = commit("same", &|_| (), 5);
    assert_eq!(why(&error), "it is not older than the increment");
    let error = commit("memory", &|contents| contents.frames[0].end += 1, 6);
    assert_eq!(why(&error), "its VM has other memory");
    let error = commit("digest", &|contents| contents.base = base("full", Digest([0; 32])), 6);
    assert_eq!(why(&error), "it is not the one that the increment is of");
    let error = commit("none", &|contents| contents.base = base("nowhere", digest), 6);
    assert!(why(&error).contains("no manifest"));
    for (number, name) in ["../full", "", ".", "..", "a/b", ".hidden", "a\0"].iter().enumerate() {
        let change = |contents: &mut crate::Contents| contents.base = base(name, digest);
        let error = commit(&format!("name-{number}"), &change, 7);
        assert!(matches!(error, CheckpointError::Contents(_)), "{name}: {error}");
    }
}

#[test]
fn chain_has_a_bound() {
    let parent = Folder::new();
    let mut below = None;
    for cut in 1..=u64::try_from(CHAIN_MAX).unwrap() + 1 {
        let name = format!("cut-{cut}");
        let folder = parent.join(&name);
        let part = PartWriter::create(&folder, &head(cut, 0), Compression::None).unwrap();
        let contents = contents(cut, below.take(), vec![part.finish().unwrap()]);
        let done = Checkpoint::commit(&folder, &contents, None);
        if cut > u64::try_from(CHAIN_MAX).unwrap() {
            let error = done.unwrap_err();
            assert_eq!(
                why(&error),
                "more than 64 checkpoints in a chain: write a full one, or make one of its base (tessera checkpoint export)"
            );
        } else {
            below = base(&name, done.unwrap());
            assert!(Checkpoint::open(&folder, None).is_ok());
        }
    }
}

/// Bytes of a base's part that the increment does not replace are read as carefully as its own.
#[test]
fn damage_in_a_base_is_seen() {
    let parent = Folder::new();
    let digest = write(&parent.join("full"), 1, None, None);
    let next = parent.join("next");
    let part = PartWriter::create(&next, &head(2, 0), Compression::None).unwrap();
    let contents = contents(2, base("full", digest), vec![part.finish().unwrap()]);
    Checkpoint::commit(&next, &contents, None).unwrap();
    let path = parent.join("full").join("part-3");
    let mut bytes = fs::read(&path).unwrap();
    bytes[64 + 1000] ^= 1;
    fs::write(&path, bytes).unwrap();
    let checkpoint = Checkpoint::open(&next, None).unwrap();
    assert!(pages_of(&checkpoint).is_err());
    assert!(checkpoint.verify(&mut |_, _| ()).is_err());
    assert!(export(&next, &parent.join("merged"), None, &mut |_, _| ()).is_err());
    assert!(!parent.join("merged").exists());
}

#[test]
fn base_is_deleted_after_its_increments() {
    let parent = Folder::new();
    let full = parent.join("full");
    let digest = write(&full, 1, None, None);
    let next = parent.join("next");
    write(&next, 2, base("full", digest), None);
    let error = delete(&full).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::HasIncrement { increment, .. } if increment == "next"),
        "{error}"
    );
    assert!(Checkpoint::open(&next, None).is_ok());

    // What an increment is of cannot be seen once its manifest is damaged.
    let manifest = fs::read(next.join("manifest")).unwrap();
    fs::write(next.join("manifest"), &manifest[1..]).unwrap();
    let error = delete(&full).unwrap_err();
    assert!(error.to_string().contains("next may be an increment of it"), "{error}");
    assert!(matches!(list(&parent.0).unwrap()[1].state, State::Damaged(_)));
    delete(&next).unwrap();
    delete(&full).unwrap();
    assert_eq!(list(&parent.0).unwrap(), []);
}

/// Deletes a checkpoint when another one is written but for the name of its manifest.
#[derive(Debug)]
struct Deletes(PathBuf);

impl Points for Deletes {
    fn reach(&self, point: Point) {
        if point == Point::ManifestSynced {
            delete(&self.0).unwrap();
        }
    }
}

#[test]
fn increment_whose_base_is_deleted_while_it_is_committed_is_none() {
    let parent = Folder::new();
    let full = parent.join("full");
    let digest = write(&full, 1, None, None);
    let next = parent.join("next");
    let contents = contents(2, base("full", digest), write_parts(&next, 2));
    let error =
        Checkpoint::commit_with_points(&next, &contents, None, &Deletes(full.clone())).unwrap_err();
    assert!(matches!(&error, CheckpointError::Base { .. }), "{error}");
    assert!(!full.exists() && !next.join("manifest").exists());
    delete(&next).unwrap();
}

/// The other order: its manifest is there when that of the base has just been taken.
#[test]
fn base_is_one_again_when_an_increment_is_found_behind_its_manifest() {
    let parent = Folder::new();
    let full = parent.join("full");
    let digest = write(&full, 1, None, None);
    let names = [MANIFEST.to_owned()];
    let found = || {
        assert!(Checkpoint::open(&full, None).is_err(), "nobody finds it");
        Err(CheckpointError::Exists { folder: full.clone() })
    };
    assert!(matches!(take_manifest(&full, &names, found), Err(CheckpointError::Exists { .. })));
    write(&parent.join("next"), 2, base("full", digest), None);
    assert!(Checkpoint::open(&parent.join("next"), None).is_ok());
    take_manifest(&full, &names, || Ok(())).unwrap();
    assert!(matches!(list(&parent.0).unwrap()[0].state, State::Unfinished));
    assert_eq!(fs::read_dir(&full).unwrap().count(), 2, "its parts");
}

/// Whatever has left it so.
#[test]
fn checkpoint_with_a_manifest_of_both_names_is_deleted_at_once() {
    let parent = Folder::new();
    let full = parent.join("full");
    write(&full, 1, None, None);
    fs::write(full.join("manifest.new"), "").unwrap();
    delete(&full).unwrap();
    assert!(!full.exists());
}

/// Its increments open it by the link.
#[test]
fn base_behind_a_link_is_not_deleted() {
    let (parent, elsewhere) = (Folder::new(), Folder::new());
    let [full, next] = ["full", "next"].map(|name| parent.join(name));
    for real in [parent.join("renamed"), elsewhere.join("full")] {
        let digest = write(&full, 1, None, None);
        write(&next, 2, base("full", digest), None);
        fs::create_dir(&real).unwrap();
        for entry in fs::read_dir(&full).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), real.join(entry.file_name())).unwrap();
        }
        fs::remove_dir_all(&full).unwrap();
        symlink(&real, &full).unwrap();
        assert!(Checkpoint::open(&next, None).is_ok());
        for how in [&delete as &dyn Fn(&Path) -> _, &|path: &Path| retire(path).map(drop)] {
            let error: CheckpointError = how(&full).unwrap_err();
            assert!(
                matches!(&error, CheckpointError::HasIncrement { increment, .. } if increment == "next"),
                "{error}"
            );
        }
        assert!(Checkpoint::open(&next, None).is_ok());
        delete(&next).unwrap();
        delete(&full).unwrap();
        assert!(!real.exists());
        fs::remove_file(&full).unwrap();
    }
}

/// Nobody is to delete by hand what a full disk has stopped.
#[test]
fn failed_export_leaves_nothing_beside_one_that_cannot_be_read() {
    let parent = Folder::new();
    let [full, later, merged] = ["full", "later", "merged"].map(|name| parent.join(name));
    write(&full, 1, None, None);
    write(&later, 2, None, None);
    damage(&later);
    let path = full.join("part-3");
    let mut bytes = fs::read(&path).unwrap();
    bytes[64 + 1000] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(export(&full, &merged, None, &mut |_, _| ()).is_err());
    assert!(!merged.exists());
}

fn damage(folder: &Path) {
    fs::write(folder.join("manifest"), "").unwrap();
}

#[test]
fn damaged_manifest_holds_up_only_what_it_may_be_an_increment_of() {
    let parent = Folder::new();
    let [full, next, other] = ["full", "next", "other"].map(|name| parent.join(name));
    let digest = write(&full, 1, None, None);
    write(&next, 2, base("full", digest), None);
    let elsewhere = PartHead { vm: *b"another VM's id.", ..head(3, 0) };
    PartWriter::create(&other, &elsewhere, Compression::None).unwrap().finish().unwrap();
    [&full, &next, &other].into_iter().for_each(|folder| damage(folder));

    let error = delete(&full).unwrap_err();
    assert!(error.to_string().contains("delete or move that first"), "{error}");
    // A part of an attempt before says nothing of when the checkpoint is from.
    fs::copy(full.join("part-3"), next.join("part-9")).unwrap();
    let error = delete(&full).unwrap_err();
    assert!(error.to_string().contains("next may be an increment of it"), "{error}");
    fs::remove_file(next.join("part-9")).unwrap();
    // What is earlier is no increment of it, and neither is what is of another VM.
    delete(&next).unwrap();
    delete(&full).unwrap();
    delete(&other).unwrap();
}

#[test]
fn damaged_checkpoint_is_listed_with_the_cause() {
    let parent = Folder::new();
    write(&parent.join("full"), 1, None, None);
    fs::remove_file(parent.join("full").join("part-3")).unwrap();
    let listed = list(&parent.0).unwrap();
    let State::Damaged(why) = &listed[0].state else { panic!("{listed:?}") };
    assert!(why.ends_with("part-3: No such file or directory (os error 2)"), "{why}");
    // A link is not followed, whoever asks.
    symlink("part-3", parent.join("full").join("part-3")).unwrap();
    let listed = list(&parent.0).unwrap();
    assert!(matches!(listed[0].state, State::Unreadable(_)), "{listed:?}");
}

#[test]
fn key_is_asked_of_the_whole_chain() {
    let parent = Folder::new();
    let (key, other) = (Key::of_secret(b"a secret of this VM"), Key::of_secret(b"of another VM"));
    let open = Checkpoint::open;
    let digest = write(&parent.join("full"), 1, None, Some(&key));
    let next = parent.join("next");
    write(&next, 2, base("full", digest), Some(&key));
    let right = read(&next, Some(&key)).unwrap();
    assert_eq!(open(&next, Some(&key)).unwrap().authenticity(), Authenticity::Checked);
    assert_eq!(open(&next, None).unwrap().authenticity(), Authenticity::NotChecked);
    assert!(matches!(open(&next, Some(&other)), Err(CheckpointError::NotAuthentic { .. })));

    let error = export(&next, &parent.join("merged"), None, &mut |_, _| ()).unwrap_err();
    assert!(matches!(error, CheckpointError::NeedsSecret { .. }), "{error}");
    export(&next, &parent.join("merged"), Some(&key), &mut |_, _| ()).unwrap();
    assert_eq!(
        open(&parent.join("merged"), Some(&key)).unwrap().authenticity(),
        Authenticity::Checked
    );
    assert_ne!(read(&parent.join("merged"), Some(&key)).unwrap(), right, "it has other parts");
    let pages = |name: &str| pages_of(&open(&parent.join(name), Some(&key)).unwrap()).unwrap();
    assert_eq!(pages("merged"), pages("next"));

    // The same manifest without its code, as somebody writes it who does not know the secret.
    let full = parent.join("full");
    let contents = open(&full, None).unwrap().contents().clone();
    fs::remove_file(full.join("manifest")).unwrap();
    Checkpoint::commit(&full, &contents, None).unwrap();
    assert!(matches!(open(&full, Some(&key)), Err(CheckpointError::NotAuthenticated { .. })));
    assert_eq!(open(&full, None).unwrap().authenticity(), Authenticity::Nobody);
    assert!(matches!(open(&next, Some(&key)), Err(CheckpointError::Base { .. })));
}

#[test]
fn keys_are_not_printed() {
    assert_eq!(format!("{:?}", Key::of_secret(b"abc")), "Key(..)");
}
