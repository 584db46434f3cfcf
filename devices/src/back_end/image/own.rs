//! Which files an image may name without being trusted with others: its own frozen states.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most images that may lie over each other, the first and the last one among them.
pub const IMAGES_MAX: usize = 64;

/// Bytes of the name of a clone.
const CLONE_BYTES_MAX: usize = 32;

/// Whether a file is a frozen state of this image, by its name: in the same folder, `IMAGE.` and something more.
pub(super) fn is_own(image: &Path, file: &Path) -> bool {
    let (Some(image_name), Some(name)) = (image.file_name(), file.file_name()) else {
        return false;
    };
    let more = name.as_bytes().strip_prefix(image_name.as_bytes());
    let begins = more.is_some_and(|more| more.len() > 1 && more[0] == b'.');
    begins && folder(image) == folder(file)
}

/// What the name of a clone's image has between that of the image and its own.
const CLONE: &str = ".clone-";

/// The image of a clone, beside that which it is a clone of. Nothing: a clone cannot have this name.
pub(super) fn clone_of(image: &Path, name: &str) -> Option<PathBuf> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let fits = (1..=CLONE_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed);
    let mut path = image.as_os_str().to_owned();
    path.push(CLONE);
    path.push(name);
    fits.then(|| path.into())
}

/// The image that this one is a clone of, by its name.
pub(super) fn origin(image: &Path) -> Option<PathBuf> {
    let name = image.file_name()?.to_str()?;
    let (origin, clone) = name.rsplit_once(CLONE)?;
    let origin = image.with_file_name(origin);
    (clone_of(&origin, clone)? == image && !name.starts_with(CLONE)).then_some(origin)
}

/// Whether an image may name a file without being trusted with others: it is a frozen state of it, or of what it is a clone of.
pub(super) fn may_name(image: &Path, file: &Path) -> bool {
    is_own(image, file) || origin(image).is_some_and(|origin| may_name(&origin, file))
}

fn folder(path: &Path) -> &Path {
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    if folder.as_os_str() == OsStr::new(".") { Path::new("") } else { folder }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clone_may_name_states_of_what_it_is_a_clone_of() {
        let image = Path::new("/a/disk");
        let clone = clone_of(image, "b_2").unwrap();
        assert_eq!(clone, Path::new("/a/disk.clone-b_2"));
        let second = clone_of(&clone, "c").unwrap();
        assert_eq!((origin(&clone), origin(&second)), (Some(image.into()), Some(clone.clone())));
        for of in [&clone, &second] {
            assert!(may_name(of, Path::new("/a/disk.c5")));
            assert!(may_name(of, Path::new("/a/disk.clone-b_2.c6")));
            assert!(!may_name(of, Path::new("/a/other.c5")) && !may_name(of, image));
        }
        assert!(!may_name(image, Path::new("/b/disk.c5")));
        for name in ["", "a.b", "../a", "a/b", &"a".repeat(33)] {
            assert_eq!(clone_of(image, name), None, "{name}");
        }
        for none in ["/a/disk", "/a/.clone-x", "/a/disk.clone-", "/a/disk.clone-x.c5"] {
            assert_eq!(origin(Path::new(none)), None, "{none}");
        }
    }

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
