//! Images that lie over each other.

use super::super::own::{IMAGES_MAX, may_name};
use super::{SnapshotError, overlay};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// So often a chain is read of which a file has no name just then.
const TRIES: u32 = 4;
const AGAIN: Duration = Duration::from_millis(10);

/// Whether a file is at this path, by device and number.
pub(super) fn is_file(path: &Path, file: &File) -> bool {
    let there = fs::symlink_metadata(path).map(|it| (it.dev(), it.ino()));
    let ours = file.metadata().map(|it| (it.dev(), it.ino()));
    matches!((there, ours), (Ok(there), Ok(ours)) if there == ours)
}

/// The files of a qcow2 image at `path` and of its own states below it, from the top. No more than
/// there may be.
pub(super) fn images(path: &Path, top: &File) -> io::Result<Vec<PathBuf>> {
    let mut tries = TRIES;
    loop {
        match images_once(path, top) {
            // States may be merged while one looks at them.
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries > 1 => tries -= 1,
            images => return images,
        }
        thread::sleep(AGAIN);
    }
}

fn images_once(path: &Path, top: &File) -> io::Result<Vec<PathBuf>> {
    let mut images = vec![path.to_owned()];
    let mut file = top.try_clone()?;
    while images.len() < IMAGES_MAX {
        let Some(below) = overlay::below(&file, path)? else { break };
        if !may_name(path, &below) {
            // One at least that was there before.
            images.push(below);
            break;
        }
        file = open(&below)?;
        images.push(below);
    }
    Ok(images)
}

/// Whether one more image may lie over a state.
pub(super) fn has_room(path: &Path, kept: &Path) -> Result<File, SnapshotError> {
    let below = File::open(kept).map_err(SnapshotError::of("open", kept))?;
    let images = images(path, &below).map_err(SnapshotError::of("read", kept))?;
    if images.len() >= IMAGES_MAX {
        return Err(SnapshotError::Deep { path: kept.to_owned(), images: images.len() });
    }
    Ok(below)
}

/// The lowest of an image and its own states below it, as it is open: however many states are made and merged, that file stays below.
///
/// # Errors
/// A file of it cannot be read.
pub fn root(path: &Path, top: &File) -> io::Result<File> {
    let mut lowest = top.try_clone()?;
    for below in images(path, top)?.into_iter().skip(1) {
        if may_name(path, &below) {
            lowest = open(&below)?;
        }
    }
    Ok(lowest)
}

/// The image at `path`, if it is this file or was made of it by freezing.
///
/// # Errors
/// A file of it cannot be read.
pub fn follow(path: &Path, file: &File) -> io::Result<Option<File>> {
    let there = open(path)?;
    let same = |one: &File, other: &File| -> io::Result<bool> {
        let (one, other) = (one.metadata()?, other.metadata()?);
        Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
    };
    let follows =
        same(&there, file)? || images(path, &there)?.iter().any(|image| is_file(image, file));
    Ok(follows.then_some(there))
}

/// A FIFO must not block.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}
