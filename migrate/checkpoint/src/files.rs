//! Files and folders of a checkpoint, opened with suspicion and made to last.

use crate::error::CheckpointError;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use wire::SliceId;

/// The file that makes a folder a checkpoint.
pub(crate) const MANIFEST: &str = "manifest";
/// What it is called until it is complete.
pub(crate) const MANIFEST_TEMPORARY: &str = "manifest.new";

/// The file of a slice's part.
pub(crate) fn part_name(slice: SliceId) -> String {
    format!("part-{}", slice.0)
}

/// Whether a file of this name is a part's.
pub(crate) fn is_part_name(name: &str) -> bool {
    let number = name.strip_prefix("part-").and_then(|number| number.parse().ok());
    number.is_some_and(|number| part_name(SliceId(number)) == name)
}

/// The empty file that tells the cut of a checkpoint of which nothing else is left.
pub(crate) fn retired_name(cut: u64) -> String {
    format!("retired-{cut}")
}

/// The cut that a file of this name tells.
pub(crate) fn retired_cut(name: &str) -> Option<u64> {
    let cut = name.strip_prefix("retired-")?.parse().ok()?;
    (retired_name(cut) == name).then_some(cut)
}

/// Makes the folder, unless it is there. Only its owner may look into it.
pub(crate) fn make_folder(folder: &Path) -> Result<(), CheckpointError> {
    match make_new_folder(folder) {
        // Another slice has made it.
        Err(CheckpointError::Exists { .. }) if folder.is_dir() => Ok(()),
        done => done,
    }
}

/// Makes the folder. Only its owner may look into it.
pub(crate) fn make_new_folder(folder: &Path) -> Result<(), CheckpointError> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => sync_folder(&parent(folder)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Err(CheckpointError::Exists { folder: folder.to_path_buf() })
        }
        Err(error) => Err(CheckpointError::io("make the folder", folder)(error)),
    }
}

/// A new file that only its owner may read.
pub(crate) fn create(path: &Path) -> Result<File, CheckpointError> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(path);
    file.map_err(CheckpointError::io("create", path))
}

/// An ordinary file, and no link to one, to read.
pub(crate) fn open(path: &Path) -> Result<File, CheckpointError> {
    let mut options = OpenOptions::new();
    // A FIFO would wait for its writer.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = options
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(CheckpointError::io("open", path))?;
    if !file.metadata().map_err(CheckpointError::io("look at", path))?.is_file() {
        return Err(CheckpointError::damaged(path, "it is no ordinary file"));
    }
    Ok(file)
}

/// Has the names in a folder last.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), CheckpointError> {
    let synced = File::open(folder).and_then(|file| file.sync_all());
    synced.map_err(CheckpointError::io("write to stable storage the folder", folder))
}

/// The folder that a folder is in.
pub(crate) fn parent(folder: &Path) -> PathBuf {
    match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        Some(_) => PathBuf::from("."),
        None => PathBuf::from("/"),
    }
}

/// A folder by its real name, so that its parent and its own name are known.
pub(crate) fn real(folder: &Path) -> Result<PathBuf, CheckpointError> {
    let real = fs::canonicalize(folder).map_err(CheckpointError::io("open", folder))?;
    if !real.is_dir() {
        return Err(CheckpointError::NoCheckpoint { folder: real, why: "it is a file".into() });
    }
    Ok(real)
}

/// The last part of a folder's real name.
pub(crate) fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether a name can be that of a file in a folder, and nothing else.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c != '/' && !c.is_control();
    (1..=255).contains(&name.len()) && !name.starts_with('.') && name.chars().all(plain)
}
