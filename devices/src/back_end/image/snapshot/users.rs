//! Which images lie over which, in the folder of an image, and what follows from that for states that are released.
//!
//! ```text
//!   nothing over it                     --> removed
//!   one state over it, of this image    --> that is merged into it, and it takes its name
//!   the image itself over it            --> later, when the next state lies between
//!   several, as what was abandoned      --> it stays; of many that were abandoned the oldest is removed
//! ```

use super::super::own::is_own;
use super::head::Head;
use super::is_name;
use super::marks::{RELEASED, is_released};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// So many that were abandoned are kept whatever lies below them.
pub(super) const ABANDONED_MAX: usize = 4;

/// One file that may lie over another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Over {
    pub(super) head: Head,
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

/// All qcow2 files in the folder of an image, with those that others made there.
pub(super) fn images(image: &Path) -> io::Result<BTreeMap<PathBuf, Over>> {
    let folder = image.parent().unwrap_or_else(|| Path::new(""));
    let read = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut images = BTreeMap::new();
    for entry in fs::read_dir(read)? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        if !entry.file_type()?.is_file() {
            continue;
        }
        let file = match options.open(&path) {
            // It has just gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let is_protected = file.metadata()?.permissions().readonly();
        match Head::read(&file) {
            Ok(Some(head)) => drop(images.insert(path, Over { head, is_protected })),
            Ok(None) => {}
            // It is no image, and so lies over nothing.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
            Err(error) => return Err(error),
        }
    }
    Ok(images)
}

/// States of an image that are released and there.
pub(super) fn released(image: &Path) -> io::Result<Vec<PathBuf>> {
    let folder = image.parent().unwrap_or_else(|| Path::new(""));
    let read = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut states = Vec::new();
    for entry in fs::read_dir(read)? {
        let name = entry?.file_name();
        let state = name.to_str().and_then(|name| name.strip_suffix(RELEASED));
        let state = state.map(|state| folder.join(state));
        states.extend(state.filter(|state| name_of(image, state).is_some_and(is_name)));
    }
    states.sort();
    Ok(states)
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
            let (below, over) = (images.get(state)?, images.get(above)?);
            let smaller = below.head.cluster_bytes() <= over.head.cluster_bytes();
            let fits = below.head.is_plain && over.head.is_plain && smaller;
            fits.then(|| Next::Merge { above: above.clone(), below: state.to_owned() })
        }
        _ => oldest(image, images, &over).map(Next::Remove),
    }
}

/// Whether one image names another one. Without its folder, or with it.
fn lies_over(path: &Path, over: &Over, below: &Path) -> bool {
    let Some(name) = &over.head.below else { return false };
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let named = folder.join(name);
    named.file_name() == below.file_name()
        && (named.parent() == below.parent() || is_same(&named, below))
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

/// Whether this is what a freeze or revert that was interrupted has left of this image.
pub(super) fn is_left_over(image: &Path, path: &Path) -> bool {
    is_own(image, path) && path.extension().is_some_and(|more| more == "next") && !is_released(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(below: Option<&str>, is_protected: bool) -> Over {
        Over { head: Head::for_test(below), is_protected }
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
}
