//! Marks that a state is not needed any more: an empty file `IMAGE.NAME.released` beside it. Whoever deletes a checkpoint makes them;
//! who merges or removes the state takes its mark away. A state with a mark is never gone on from again, so nothing new comes to lie over it.

use super::super::record::sync_folder;
use super::{SnapshotError, beside, is_name};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What the name of a mark has more than that of its state.
pub(super) const RELEASED: &str = ".released";

/// The mark of a state.
pub(super) fn mark_of(state: &Path) -> PathBuf {
    beside(state, RELEASED)
}

/// Whether a state is not needed any more.
#[must_use]
pub fn is_released(state: &Path) -> bool {
    fs::symlink_metadata(mark_of(state)).is_ok()
}

/// No checkpoint needs this state of the image any more. False: there is no such state here.
///
/// # Errors
/// It cannot be marked.
pub fn release(image: &Path, name: &str) -> Result<bool, SnapshotError> {
    if !is_name(name) {
        return Err(SnapshotError::Name(name.to_owned()));
    }
    let state = beside(image, &format!(".{name}"));
    if let Err(error) = fs::symlink_metadata(&state) {
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        let failed = SnapshotError::of("look at", &state)(error);
        return if is_missing { Ok(false) } else { Err(failed) };
    }
    let mark = mark_of(&state);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o644).custom_flags(libc::O_NOFOLLOW);
    options.open(&mark).map_err(SnapshotError::of("make", &mark))?;
    sync_folder(&mark).map_err(SnapshotError::of("flush the folder of", &mark))?;
    Ok(true)
}

/// Takes the mark of a state away that is not there any more.
pub(super) fn forget(state: &Path) -> Result<(), SnapshotError> {
    let mark = mark_of(state);
    // A file with something in it is none of ours.
    if fs::symlink_metadata(&mark).is_ok_and(|about| !about.is_file() || about.len() > 0) {
        return Ok(());
    }
    match fs::remove_file(&mark) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(SnapshotError::of("remove", &mark)),
    }
}
