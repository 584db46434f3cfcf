//! Which images lie over which, in the folder of an image, and what follows from that for states that are released.
//!
//! ```text
//!   nothing over it                     --> removed
//!   one state over it, of this image    --> that is merged into it, and it takes its name
//!   the image itself over it            --> later, when the next state lies between
//!   several, as what was abandoned      --> it stays; of many that were abandoned the oldest is removed
//! ```
//! What a file lies over it says itself, in its head. **A head is no proof**: what is in a raw disk its guest has written. So a head can keep a
//! state from being merged or removed, and nothing else; of a raw image none of its own files is read, for they lie over nothing.
//!
//! **A file that may not be read** lies over each state of the image whose name it begins with: it may be a clone, or what another user has
//! abandoned. Others are counted (`unread`), and taken for what they mostly are: disks of other users in the same folder.

use super::super::ImageFormat;
use super::super::own::is_own;
use super::super::record::RECORD_SUFFIX;
use super::head::Head;
use super::marks::RELEASED;
use super::{NEXT, NEXT_DIGITS, is_name};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// So many that were abandoned are kept whatever lies below them.
pub(super) const ABANDONED_MAX: usize = 4;

/// One file that may lie over another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Over {
    /// Nothing: it may not be read.
    pub(super) head: Option<Head>,
    /// Nobody may write it: its user is Tessera.
    pub(super) is_protected: bool,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This file goes: nobody needs it.
    Remove(PathBuf),
    /// What is in `above` goes into `below`, which takes its name.
    Merge { above: PathBuf, below: PathBuf },
}

/// What is in the folder of an image and may lie over one of its states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Images {
    pub(super) of: BTreeMap<PathBuf, Over>,
    /// Files of others that may not be read.
    pub(super) unread: u32,
}

/// All qcow2 files in the folder of an image, with those that others made there.
pub(super) fn images(image: &Path, format: ImageFormat) -> io::Result<Images> {
    let mut images = Images::default();
    for path in files(image)? {
        let own = path == image || is_own(image, &path);
        if own && (format == ImageFormat::Raw || is_mark(image, &path)) {
            continue;
        }
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        match options.open(&path) {
            // It has just gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && own => {
                drop(images.of.insert(path, Over { head: None, is_protected: false }));
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => images.unread += 1,
            opened => images.of.extend(over(&opened?)?.map(|over| (path, over))),
        }
    }
    Ok(images)
}

/// Whether it says something about an image, or a state.
fn is_mark(image: &Path, path: &Path) -> bool {
    name_of(image, path).is_some_and(|name| {
        RECORD_SUFFIX.strip_prefix('.') == Some(name) || name.ends_with(RELEASED)
    })
}

fn over(file: &File) -> io::Result<Option<Over>> {
    let is_protected = file.metadata()?.permissions().readonly();
    match Head::read(file) {
        Ok(head) => Ok(head.map(|head| Over { head: Some(head), is_protected })),
        // It is no image, and so lies over nothing.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

/// All ordinary files in the folder of an image.
fn files(image: &Path) -> io::Result<Vec<PathBuf>> {
    let folder = image.parent().unwrap_or_else(|| Path::new(""));
    let read = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut files = Vec::new();
    for entry in fs::read_dir(read)? {
        let entry = entry?;
        let is_file = match entry.file_type() {
            // It has just gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            kind => kind?.is_file(),
        };
        files.extend(is_file.then(|| folder.join(entry.file_name())));
    }
    files.sort();
    Ok(files)
}

/// States of an image that are released and there.
pub(super) fn released(image: &Path) -> io::Result<Vec<PathBuf>> {
    let state_of = |mark: PathBuf| {
        let state = mark.file_name()?.to_str()?.strip_suffix(RELEASED)?;
        let state = mark.with_file_name(state);
        name_of(image, &state).is_some_and(is_name).then_some(state)
    };
    Ok(files(image)?.into_iter().filter_map(state_of).collect())
}

/// What a freeze or revert of this image that was interrupted has left. Nobody else has such names, and who makes such a file keeps names from
/// being changed.
pub(super) fn left_over(image: &Path) -> io::Result<Vec<PathBuf>> {
    let is_left = |path: &PathBuf| {
        let drawn = name_of(image, path).and_then(|name| name.strip_prefix(NEXT));
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        drawn.is_some_and(|drawn| drawn.len() == NEXT_DIGITS && drawn.bytes().all(digit))
    };
    Ok(files(image)?.into_iter().filter(is_left).collect())
}

/// The name of a state, if the file can be one of this image.
fn name_of<'a>(image: &Path, state: &'a Path) -> Option<&'a str> {
    let (image_name, name) = (image.file_name()?.to_str()?, state.file_name()?.to_str()?);
    is_own(image, state).then(|| name.strip_prefix(image_name)?.strip_prefix('.')).flatten()
}

/// What can be done about states of this image that are released; nothing if it can only be done later.
pub(super) fn next(
    image: &Path,
    images: &BTreeMap<PathBuf, Over>,
    released: &[PathBuf],
) -> Option<Next> {
    released.iter().find_map(|state| next_for(image, images, state))
}

/// The same for one of them.
pub(super) fn next_for(
    image: &Path,
    images: &BTreeMap<PathBuf, Over>,
    state: &Path,
) -> Option<Next> {
    let over = images.iter().filter(|(path, over)| lies_over(path, over, state));
    let over: Vec<&PathBuf> = over.map(|(path, _)| path).collect();
    match over[..] {
        [] => Some(Next::Remove(state.to_owned())),
        [above] if is_state(image, above, images) => {
            let (below, over) = (images.get(state)?.head.as_ref()?, images.get(above)?);
            let fits = over.head.as_ref()?.fits_into(below);
            fits.then(|| Next::Merge { above: above.clone(), below: state.to_owned() })
        }
        _ => oldest(image, images, &over).map(Next::Remove),
    }
}

/// Whether one image names a state of an image. Without its folder, or with it.
fn lies_over(path: &Path, over: &Over, below: &Path) -> bool {
    let Some(head) = &over.head else { return path != below };
    let Some(name) = &head.below else { return false };
    if name.as_bytes().starts_with(b"json:") {
        // QEMU's way to say more than a name.
        return below.file_name().is_some_and(|below| has(name, below));
    }
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let named = folder.join(name);
    named.file_name() == below.file_name()
        && (named.parent() == below.parent() || is_same(&named, below))
}

fn has(text: &OsStr, part: &OsStr) -> bool {
    text.as_bytes().windows(part.len().max(1)).any(|window| window == part.as_bytes())
}

/// By whatever way it is named.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(one).is_some_and(|path| Some(path) == real(other))
}

/// Whether it is a frozen state of this image, which nobody writes.
fn is_state(image: &Path, path: &Path, images: &BTreeMap<PathBuf, Over>) -> bool {
    let named = name_of(image, path).is_some_and(is_name);
    named && images.get(path).is_some_and(|over| over.is_protected)
}

/// Of what was abandoned of this image, if that is more than is kept: the oldest, if it is one of those that lie over a state.
fn oldest(image: &Path, images: &BTreeMap<PathBuf, Over>, over: &[&PathBuf]) -> Option<PathBuf> {
    let mut abandoned: Vec<(u64, u64, &PathBuf)> = images
        .keys()
        .filter_map(|path| {
            let number = name_of(image, path)?.strip_prefix("abandoned-")?;
            let (generation, count) = number.split_once('-').unwrap_or((number, "1"));
            Some((generation.parse().ok()?, count.parse().ok()?, path))
        })
        .collect();
    abandoned.sort();
    let many = abandoned.len().saturating_sub(ABANDONED_MAX);
    let old = abandoned.into_iter().take(many).map(|(_, _, path)| path);
    old.into_iter().find(|path| over.contains(path)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(below: Option<&str>, is_protected: bool) -> Over {
        Over { head: Some(Head::for_test(below)), is_protected }
    }

    fn next_of(files: &[(&str, Option<&str>, bool)], released: &[&str]) -> Option<Next> {
        let folder = Path::new("/d");
        let images = files
            .iter()
            .map(|(name, below, protected)| (folder.join(name), over(*below, *protected)));
        let released: Vec<_> = released.iter().map(|name| folder.join(name)).collect();
        next(&folder.join("disk"), &images.collect(), &released)
    }

    fn merge(above: &str, below: &str) -> Option<Next> {
        let at = |name| Path::new("/d").join(name);
        Some(Next::Merge { above: at(above), below: at(below) })
    }

    #[test]
    fn state_between_states_is_merged_and_one_below_the_image_waits() {
        let chain = [
            ("disk", Some("disk.c2"), false),
            ("disk.c2", Some("disk.c1"), true),
            ("disk.c1", None, true),
        ];
        assert_eq!(next_of(&chain, &["disk.c1"]), merge("disk.c2", "disk.c1"));
        assert_eq!(next_of(&chain, &["disk.c2"]), None);
        assert_eq!(next_of(&chain, &["disk.c2", "disk.c1"]), merge("disk.c2", "disk.c1"));
        // Its head may say so with a folder.
        let chain = [
            ("disk", Some("./disk.c2"), false),
            ("disk.c2", Some("/d/disk.c1"), true),
            ("disk.c1", None, true),
        ];
        assert_eq!(next_of(&chain, &["disk.c1"]), merge("disk.c2", "disk.c1"));
    }

    #[test]
    fn state_that_others_lie_over_stays() {
        let chain = |other| {
            [
                ("disk", Some("disk.c2"), false),
                ("disk.c2", Some("disk.c1"), true),
                ("disk.c1", None, true),
                other,
            ]
        };
        for other in ["disk.abandoned-5", "disk.clone-a", "of a user"] {
            assert_eq!(
                next_of(&chain((other, Some("disk.c1"), false)), &["disk.c1"]),
                None,
                "{other}"
            );
            assert!(
                next_of(&chain((other, Some("disk.c2"), false)), &["disk.c1"]).is_some(),
                "{other}"
            );
        }
        // Somebody may write what lies over it.
        let chain = [
            ("disk", Some("disk.c2"), false),
            ("disk.c2", Some("disk.c1"), false),
            ("disk.c1", None, true),
        ];
        assert_eq!(next_of(&chain, &["disk.c1"]), None);
    }

    #[test]
    fn state_below_nothing_is_removed() {
        let branch = [
            ("disk", Some("disk.c1"), false),
            ("disk.c2", Some("disk.c1"), true),
            ("disk.c1", None, true),
        ];
        assert_eq!(next_of(&branch, &["disk.c2"]), Some(Next::Remove("/d/disk.c2".into())));
    }

    #[test]
    fn of_many_that_were_abandoned_the_oldest_gives_way() {
        let mut files = vec![("disk", Some("disk.c1"), false), ("disk.c1", None, true)];
        let abandoned = [
            "disk.abandoned-9",
            "disk.abandoned-10",
            "disk.abandoned-10-2",
            "disk.abandoned-11",
            "disk.abandoned-12",
        ];
        files.extend(abandoned[..4].iter().map(|name| (*name, Some("disk.c1"), false)));
        assert_eq!(next_of(&files, &["disk.c1"]), None);
        files.push((abandoned[4], Some("disk.c1"), false));
        assert_eq!(next_of(&files, &["disk.c1"]), Some(Next::Remove("/d/disk.abandoned-9".into())));
    }

    #[test]
    fn file_that_may_not_be_read_keeps_states_of_its_own_image_only() {
        let chain = [
            ("disk", Some("disk.c2"), false),
            ("disk.c2", Some("disk.c1"), true),
            ("disk.c1", None, true),
        ];
        let files = chain.iter().map(|(name, below, is)| (*name, over(*below, *is)));
        let files = files.map(|(name, over)| (Path::new("/d").join(name), over));
        let mut files: BTreeMap<_, _> = files.collect();
        let next_of = |files: &_| next(Path::new("/d/disk"), files, &["/d/disk.c1".into()]);
        assert_eq!(next_of(&files), merge("disk.c2", "disk.c1"));
        files.insert("/d/disk.clone-a".into(), Over { head: None, is_protected: false });
        assert_eq!(next_of(&files), None);
    }

    #[test]
    fn overlay_that_says_in_json_what_it_lies_over_keeps_it() {
        let json = r#"json:{"driver":"qcow2","file":{"driver":"file","filename":"/d/disk.c1"}}"#;
        let files = [("of a user", Some(json), false), ("disk.c1", None, true)];
        assert_eq!(next_of(&files, &["disk.c1"]), None);
    }
}
