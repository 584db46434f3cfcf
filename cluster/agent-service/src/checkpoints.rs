//! Checkpoints that nobody goes on from any more are deleted.
//!
//! One that is not there is deleted, for whoever asks may ask twice. Of a folder that is not mounted any more that would be said of all of its
//! checkpoints, and nobody would know of them. So nothing is said of a folder that lies on fewer mounts than when the agent began.

use crate::order::{self, invalid};
use checkpoint::CheckpointError;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// In one request.
const MOST: usize = 128;
/// Linux has no longer names.
const NAME_MAX: usize = 255;

/// The folder that all checkpoints are in, as it was when the agent began.
#[derive(Debug)]
pub(crate) struct Mounted {
    folder: PathBuf,
    mounts: usize,
}

impl Mounted {
    /// # Errors
    /// It cannot be looked at.
    pub(crate) fn look(folder: &str) -> io::Result<Self> {
        let folder = PathBuf::from(folder);
        Ok(Self { mounts: mounts(&folder)?, folder })
    }

    /// Deletes these checkpoints in it, also those that come after one that stays.
    ///
    /// # Errors
    /// The first that stays, or that nothing can be said of the folder.
    pub(crate) fn delete_all(&self, paths: &[PathBuf]) -> Result<(), String> {
        if mounts(&self.folder).map_err(|error| error.to_string())? < self.mounts {
            return Err(format!(
                "{} is not mounted any more: mount it again",
                self.folder.display()
            ));
        }
        delete_all(paths).map_err(|error| error.to_string())
    }
}

/// How often one goes from a device to another on the way to this folder.
fn mounts(folder: &Path) -> io::Result<usize> {
    let device = |path: &Path| Ok(path.metadata()?.dev());
    let devices = folder.ancestors().map(device).collect::<io::Result<Vec<_>>>()?;
    Ok(devices.windows(2).filter(|pair| pair[0] != pair[1]).count())
}

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

fn delete_all(paths: &[PathBuf]) -> Result<(), CheckpointError> {
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
    fn nothing_is_said_of_a_folder_that_is_not_mounted() {
        let folder = vmm_sys_util::tempdir::TempDir::new().unwrap();
        let at = folder.as_path().to_str().unwrap();
        let there = Mounted::look(at).unwrap();
        let path = folder.as_path().join("a");
        assert_eq!(there.delete_all(std::slice::from_ref(&path)), Ok(()), "it is not there");
        let mounted = Mounted { mounts: there.mounts + 1, folder: folder.as_path().to_owned() };
        let error = mounted.delete_all(&[path]).unwrap_err();
        assert!(error.contains("not mounted any more"), "{error}");
        let missing = Mounted { folder: folder.as_path().join("gone"), ..there };
        assert!(missing.delete_all(&[]).is_err());
        assert!(mounts(Path::new("/proc")).unwrap() > mounts(Path::new("/")).unwrap());
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
