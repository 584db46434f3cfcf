//! Which files an image may name without being trusted with others: its own frozen states.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Most images that may lie over each other, the first and the last one among them.
pub const IMAGES_MAX: usize = 64;

/// Whether a file is a frozen state of this image, by its name: in the same folder, `IMAGE.` and something more.
pub(super) fn is_own(image: &Path, file: &Path) -> bool {
    let (Some(image_name), Some(name)) = (image.file_name(), file.file_name()) else {
        return false;
    };
    let more = name.as_bytes().strip_prefix(image_name.as_bytes());
    let begins = more.is_some_and(|more| more.len() > 1 && more[0] == b'.');
    begins && folder(image) == folder(file)
}

fn folder(path: &Path) -> &Path {
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    if folder.as_os_str() == OsStr::new(".") { Path::new("") } else { folder }
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
