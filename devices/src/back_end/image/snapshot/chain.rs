//! Images that lie over each other.

use super::overlay;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Most images that may lie over each other, the first and the last one among them.
pub const IMAGES_MAX: usize = 64;

/// Whether a file is a frozen state of this image, by its name: in the same folder, `IMAGE.` and something more.
pub(in super::super) fn is_own(image: &Path, file: &Path) -> bool {
    let (Some(image_name), Some(name)) = (image.file_name(), file.file_name()) else {
        return false;
    };
    let more = name.as_bytes().strip_prefix(image_name.as_bytes());
    let begins = more.is_some_and(|more| more.len() > 1 && more[0] == b'.');
    begins && folder(image) == folder(file)
}

fn folder(path: &Path) -> &Path {
    let folder = path.parent().unwrap_or(Path::new(""));
    if folder.as_os_str() == OsStr::new(".") { Path::new("") } else { folder }
}

/// Whether a file is at this path, by device and number.
pub(super) fn is_file(path: &Path, file: &File) -> bool {
    let there = fs::symlink_metadata(path).map(|it| (it.dev(), it.ino()));
    let ours = file.metadata().map(|it| (it.dev(), it.ino()));
    matches!((there, ours), (Ok(there), Ok(ours)) if there == ours)
}

/// The files of a qcow2 image at `path` and of its own states below it, from the top. No more than
/// there may be.
pub(super) fn images(path: &Path, top: &File) -> io::Result<Vec<PathBuf>> {
    let mut images = vec![path.to_owned()];
    let mut file = top.try_clone()?;
    while images.len() < IMAGES_MAX {
        let Some(below) = overlay::below(&file, path)? else { break };
        if !is_own(path, &below) {
            // One at least that was there before.
            images.push(below);
            break;
        }
        file = open(&below)?;
        images.push(below);
    }
    Ok(images)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_states_are_beside_the_image_and_begin_with_its_name() {
        let image = Path::new("/a/disk.qcow2");
        for own in ["/a/disk.qcow2.cp1", "/a/./disk.qcow2.b.c"] {
            assert!(is_own(image, Path::new(own)), "{own}");
        }
        for other in [
            "/a/disk.qcow2",
            "/a/disk.qcow2.",
            "/a/disk.qcow21",
            "/b/disk.qcow2.cp1",
            "/etc/passwd",
            "/",
            "",
        ] {
            assert!(!is_own(image, Path::new(other)), "{other}");
        }
        assert!(!is_own(image, Path::new("/a/disk.qcow2.x/../../shadow")));
        assert!(is_own(Path::new("disk"), Path::new("./disk.cp1")));
    }
}
