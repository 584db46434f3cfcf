//! What is there when writing stops between two steps.

use super::support::*;
use crate::{
    Base, Checkpoint, CheckpointError, Compression, Key, PartWriter, Point, Points, State, cut_in,
    delete, delete_with, export, list, retire,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Keeps what is in a folder at each point, as an end of the process there would leave it.
#[derive(Clone, Debug)]
struct Camera {
    folder: PathBuf,
    album: PathBuf,
    taken: Arc<Mutex<Vec<Point>>>,
}

impl Points for Camera {
    fn reach(&self, point: Point) {
        let mut taken = self.taken.lock().unwrap();
        copy(&self.folder, &self.album.join(taken.len().to_string()));
        taken.push(point);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn only_the_last_step_makes_a_checkpoint() {
    let (parent, album) = (Folder::new(), Folder::new());
    let folder = parent.join("one");
    let camera = Camera { folder: folder.clone(), album: album.0.clone(), taken: Arc::default() };
    let write = |slice| {
        let points = Box::new(camera.clone());
        let head = head(1, slice);
        let mut writer =
            PartWriter::with_points(&folder, &head, Compression::None, points).unwrap();
        writer.pages(0, &page(slice.to_le_bytes()[0] + 1)).unwrap();
        writer.section("slice", b"form").unwrap();
        writer.finish().unwrap()
    };
    let parts = vec![write(0), write(1)];
    let contents = contents(1, None, parts);
    Checkpoint::commit_with_points(&folder, &contents, None, &camera).unwrap();

    let taken = camera.taken.lock().unwrap().clone();
    let of_a_part = &Point::ALL[..4];
    assert_eq!(taken, [of_a_part, of_a_part, &Point::ALL[4..]].concat());
    for (number, point) in taken.iter().enumerate() {
        let left = album.join(&number.to_string());
        let listed = list(&album.0).unwrap();
        let state = &listed.iter().find(|listed| listed.name == number.to_string()).unwrap().state;
        if *point == Point::Renamed {
            assert!(matches!(state, State::Complete(_)), "{point:?}: {state:?}");
            assert!(Checkpoint::open(&left, None).is_ok());
        } else {
            assert_eq!(*state, State::Unfinished, "{point:?}");
            let error = Checkpoint::open(&left, None).unwrap_err();
            assert!(matches!(error, CheckpointError::Unfinished { .. }), "{point:?}: {error}");
        }
        delete(&left).unwrap();
        assert!(!left.exists());
    }
}

/// What a power cut may leave of a part that nobody has waited for, with a manifest: never seen as whole.
#[test]
fn part_without_its_end_cannot_be_committed() {
    let parent = Folder::new();
    let folder = parent.join("one");
    let parts = write_parts(&folder, 1);
    let path = folder.join("part-3");
    let bytes = fs::read(&path).unwrap();
    let mut zeros = bytes.clone();
    zeros[200..].fill(0);
    for left in [&bytes[..0], &bytes[..64], &bytes[..bytes.len() - 1], &zeros[..]] {
        fs::write(&path, left).unwrap();
        let contents = contents(1, None, parts.clone());
        let error = Checkpoint::commit(&folder, &contents, None).unwrap_err();
        assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}");
        assert!(!folder.join("manifest").exists() && !folder.join("manifest.new").exists());
    }
    fs::write(&path, &bytes).unwrap();
    Checkpoint::commit(&folder, &contents(1, None, parts), None).unwrap();
}

#[test]
fn deletion_that_was_interrupted_leaves_no_checkpoint() {
    let parent = Folder::new();
    let folder = parent.join("one");
    write(&folder, 1, None, None);
    // As after its first step.
    fs::remove_file(folder.join("manifest")).unwrap();
    assert_eq!(list(&parent.0).unwrap()[0].state, State::Unfinished);
    delete(&folder).unwrap();
    assert_eq!(list(&parent.0).unwrap(), []);
}

/// Whoever deletes is killed before it has told the number, at any step.
#[test]
fn retired_checkpoint_tells_its_cut_until_its_folder_is_deleted() {
    let parent = Folder::new();
    let folder = parent.join("one");
    for left in [&["manifest", "part-0"][..], &["part-0"], &[]] {
        write(&folder, 7, None, None);
        fs::write(folder.join("retired-7"), "").unwrap();
        ["manifest", "part-0"].iter().filter(|name| !left.contains(name)).for_each(|name| {
            fs::remove_file(folder.join(name)).unwrap();
        });
        assert_eq!(retire(&folder).unwrap(), Some(7));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert_eq!((cut_in(&folder), retire(&folder).unwrap()), (Some(7), Some(7)));
        assert_eq!(list(&parent.0).unwrap()[0].state, State::Unfinished);
        delete(&folder).unwrap();
        assert!(!folder.exists());
    }
    write(&folder, 8, None, None);
    assert_eq!(retire(&folder).unwrap(), Some(8));
    assert!(matches!(Checkpoint::open(&folder, None), Err(CheckpointError::Unfinished { .. })));
    // Beside one that may be an increment of anything.
    let other = parent.join("two");
    write(&other, 1, None, None);
    fs::write(other.join("manifest"), b"damaged").unwrap();
    fs::write(other.join("part-0"), b"damaged").unwrap();
    assert_eq!(retire(&folder).unwrap(), Some(8));
    delete(&folder).unwrap();
    write(&folder, 8, None, None);
    assert!(matches!(retire(&folder), Err(CheckpointError::HasIncrement { .. })));
    fs::remove_dir_all(&other).unwrap();
    assert_eq!(retire(&folder).unwrap(), Some(8));
    // One of which nothing tells its cut goes as a whole.
    delete(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("part-0"), b"half a head").unwrap();
    assert_eq!(retire(&folder).unwrap(), None);
    assert!(!folder.exists());
}

/// Slices keep the states of disks by their cut, and an export has the same one.
#[test]
fn cut_that_another_checkpoint_needs_is_not_told() {
    let parent = Folder::new();
    let (folder, other) = (parent.join("one"), parent.join("two"));
    for is_begun_only in [false, true] {
        write(&folder, 7, None, None);
        export(&folder, &other, None, &mut |_, _| ()).unwrap();
        if is_begun_only {
            fs::remove_file(other.join("manifest")).unwrap();
            fs::remove_file(other.join("part-3")).unwrap();
        }
        assert_eq!(retire(&folder).unwrap(), None);
        assert!(!folder.exists());
        delete(&other).unwrap();
    }
    // The same cut of another life.
    write(&folder, 7, None, None);
    let elsewhere = crate::PartHead { generation: 2, ..head(7, 0) };
    PartWriter::create(&other, &elsewhere, Compression::None).unwrap().finish().unwrap();
    assert_eq!(retire(&folder).unwrap(), Some(7));
}

/// It is none when that is done, and its parts are there: they may be many.
#[test]
fn what_is_done_behind_a_deletion_does_not_wait_for_its_parts() {
    let parent = Folder::new();
    let folder = parent.join("one");
    write(&folder, 1, None, None);
    // No file, which is found out when it is its turn.
    fs::create_dir(folder.join("part-1")).unwrap();
    let mut seen = None;
    let done = delete_with(&folder, || seen = Some((list(&parent.0).unwrap(), cut_in(&folder))));
    assert!(matches!(done, Err(CheckpointError::Io { .. })), "{done:?}");
    let (listed, cut) = seen.unwrap();
    assert_eq!((&listed[0].state, cut), (&State::Unfinished, Some(1)));

    // Where it is refused nothing is done.
    let [full, next] = ["full", "next"].map(|name| parent.join(name));
    let digest = write(&full, 1, None, None);
    write(&next, 2, base("full", digest), None);
    assert!(delete_with(&full, || panic!("it is not gone")).is_err());
}

#[test]
fn what_was_deleted_since_it_was_opened_is_not_exported() {
    let parent = Folder::new();
    let (folder, target) = (parent.join("one"), parent.join("two"));
    write(&folder, 1, None, None);
    let source = Checkpoint::open(&folder, None).unwrap();
    delete(&folder).unwrap();
    let refused = export::copy(&source, &target, None, &mut |_, _| {});
    assert!(refused.is_err(), "{refused:?}");
    assert!(!target.join("manifest").exists());
    assert_eq!(cut_in(&target), Some(1), "whoever deletes sees it");
}

#[test]
fn sections_of_an_increment_are_read_when_its_base_is_gone() {
    let parent = Folder::new();
    let (folder, base) = (parent.join("two"), parent.join("one"));
    let digest = write(&base, 1, None, None);
    write(&folder, 2, Some(Base { folder: "one".into(), digest }), None);
    let name = {
        let checkpoint = Checkpoint::open(&folder, None).unwrap();
        let sections = checkpoint.sections(checkpoint.contents().parts[0].slice).unwrap();
        sections[0].0.clone()
    };
    fs::remove_dir_all(&base).unwrap();
    assert!(Checkpoint::open(&folder, None).is_err());
    let (contents, sections) = Checkpoint::own_sections(&folder, None, &name).unwrap();
    assert_eq!((contents.cut, sections.len()), (2, 2));
    assert!(Checkpoint::own_sections(&folder, None, "none").is_err());
    assert!(Checkpoint::own_sections(&folder, Some(&Key::of_secret(b"a secret")), &name).is_err());
}
