//! Checkpoints that nobody goes on from any more are deleted.

use crate::order::{self, invalid};
use checkpoint::CheckpointError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// In one request.
const MOST: usize = 128;
/// Linux has no longer names.
const NAME_MAX: usize = 255;

/// Where these are. Each is one name, beside the others.
pub(crate) fn paths(folder: &str, names: &[String]) -> order::Result<Vec<PathBuf>> {
    if names.len() > MOST {
        return invalid("checkpoints", format!("at most {MOST} are deleted at a time"));
    }
    let path = |(number, name): (usize, &String)| {
        let is_name = !matches!(name.as_str(), "" | "." | "..") && name.len() <= NAME_MAX;
        if !is_name || name.contains(['/', '\0']) {
            let message = "it is not the name of a folder in the host's folder of checkpoints";
            return invalid(format!("checkpoints[{number}]"), message);
        }
        Ok(Path::new(folder).join(name))
    };
    names.iter().enumerate().map(path).collect()
}

/// Deletes them, also those that come after one that stays.
///
/// # Errors
/// The first that stays.
pub(crate) fn delete_all(paths: &[PathBuf]) -> Result<(), CheckpointError> {
    let failed: Vec<_> = paths.iter().filter_map(|path| delete(path).err()).collect();
    failed.into_iter().next().map_or(Ok(()), Err)
}

/// Deletes what there is of a checkpoint. One that is not there is deleted.
///
/// # Errors
/// It cannot be deleted, or the folder has other files.
fn delete(path: &Path) -> Result<(), CheckpointError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        // One that nothing was written to, or whose deletion was interrupted.
        Ok(_) if fs::remove_dir(path).is_ok() => return Ok(()),
        _ => {}
    }
    checkpoint::delete(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_folders_beside_each_other() {
        let named = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            paths("/srv/ck", &names).ok()
        };
        assert_eq!(named(&["a-1", ".x"]), Some(vec!["/srv/ck/a-1".into(), "/srv/ck/.x".into()]));
        for wrong in ["", ".", "..", "a/b", "/a", "../a", "a\0", &"a".repeat(256)] {
            assert_eq!(named(&["a", wrong]), None, "{wrong:?}");
        }
        assert_eq!(named(&["a"; 129]), None);
    }

    #[test]
    fn nothing_but_checkpoints_is_deleted() {
        let folder = vmm_sys_util::tempdir::TempDir::new().unwrap();
        let path = folder.as_path().join("a");
        delete(&path).unwrap();
        fs::create_dir(&path).unwrap();
        delete(&path).unwrap();
        assert!(!path.exists(), "an empty one is deleted");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("notes.txt"), "mine").unwrap();
        assert!(delete(&path).is_err());
        assert_eq!(fs::read_to_string(path.join("notes.txt")).unwrap(), "mine");
    }
}
