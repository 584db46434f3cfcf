//! The file below redb: locked as long as the store is open, and never half as large as it should be.
//!
//! redb gives its file up after the first error, and must open it again. The lock and the file are ours, so that nobody comes between.
//!
//! A page that Linux could not write stays in memory, as if it had been written, and the next sync says that all is well. So a file that is
//! there is read from the disk: a process before this one may have ended because of such a page.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::StorageBackend;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::Errno;

use super::error::OpenError;

/// A file that only this process has.
#[derive(Clone, Debug)]
pub(super) struct LockedFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: File,
    /// What was written may be lost, and reading it again would not tell: Linux forgets which pages it could not write, and keeps them in memory.
    sync_failed: AtomicBool,
}

impl Inner {
    fn unlock(&self) {
        // An error would say that others may have it already.
        let _ = self.file.unlock();
    }
}

impl Drop for Inner {
    /// The lock is of the open file, and a child process has that open too until it begins with its own program. To close it is not enough.
    fn drop(&mut self) {
        self.unlock();
    }
}

/// Whether the file was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Existing,
    /// Under this name until it is complete.
    New,
}

impl LockedFile {
    /// Opens the file, or makes it under another name that [`LockedFile::complete`] changes.
    pub(super) fn open(path: &Path) -> Result<(Self, Origin), OpenError> {
        loop {
            match OpenOptions::new().read(true).write(true).open(path) {
                Ok(file) => {
                    if let Some(file) = lock(file, path, path)? {
                        file.forget_cached().map_err(|error| io_error(path, error))?;
                        return Ok((file, Origin::Existing));
                    }
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let new = temporary(path);
                    let file = options().open(&new).map_err(|error| io_error(&new, error))?;
                    let Some(file) = lock(file, &new, path)? else { continue };
                    if path.exists() {
                        // Somebody has completed it in the meantime.
                        continue;
                    }
                    // What somebody left behind who was killed.
                    file.0.file.set_len(0).map_err(|error| io_error(&new, error))?;
                    return Ok((file, Origin::New));
                }
                Err(error) => return Err(io_error(path, error)),
            }
        }
    }

    /// What is read after this is what the disk has. Only pages that another process has mapped or reads at this moment may stay.
    fn forget_cached(&self) -> io::Result<()> {
        let file = &self.0.file;
        // Pages that nobody has tried to write yet would stay. An error that nobody has heard of is told here.
        file.sync_all()?;
        Ok(fadvise(file, 0, None, Advice::DontNeed)?)
    }

    /// Gives a new file its name: from here on it is a store.
    pub(super) fn complete(&self, path: &Path) -> Result<(), OpenError> {
        let new = temporary(path);
        self.0.file.sync_all().map_err(|error| io_error(&new, error))?;
        fs::rename(&new, path).map_err(|error| io_error(path, error))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or_else(|| Path::new("."));
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|error| io_error(folder, error))
    }

    /// Lets others have it.
    pub(super) fn unlock(&self) {
        self.0.unlock();
    }

    pub(super) fn sync_failed(&self) -> bool {
        self.0.sync_failed.load(Ordering::Acquire)
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // Not cut short: somebody else may be making it.
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn io_error(path: &Path, source: io::Error) -> OpenError {
    OpenError::Io { path: path.to_owned(), source }
}

/// None where the name is another file's by now.
fn lock(file: File, name: &Path, path: &Path) -> Result<Option<LockedFile>, OpenError> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => return Err(io_error(name, error)),
    }
    let locked = LockedFile(Arc::new(Inner { file, sync_failed: AtomicBool::new(false) }));
    let here = locked.0.file.metadata().map_err(|error| io_error(name, error))?;
    let same = fs::metadata(name)
        .is_ok_and(|there| (there.dev(), there.ino()) == (here.dev(), here.ino()));
    Ok(same.then_some(locked))
}

impl StorageBackend for LockedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.file.read_exact_at(out, offset)
    }

    /// New room is reserved, so that a full disk is found out here, and not while a commit is written.
    fn set_len(&self, length: u64) -> io::Result<()> {
        let before = self.len()?;
        if length > before {
            match fallocate(&self.0.file, FallocateFlags::empty(), before, length - before) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP) => {}
                Err(error) => {
                    // Some of it may have been reserved.
                    self.0.file.set_len(before)?;
                    return Err(error.into());
                }
            }
        }
        self.0.file.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = self.0.file.sync_data();
        if synced.is_err() {
            self.0.sync_failed.store(true, Ordering::Release);
        }
        synced
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.file.write_all_at(data, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_file_is_free_although_a_child_has_it_still() {
        let folder =
            std::env::temp_dir().join(format!("tessera-store-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("state");
        fs::write(&path, "a store").unwrap();
        let (file, _) = LockedFile::open(&path).unwrap();
        // Shares the open file, as a child does between fork and exec.
        let child = file.0.file.try_clone().unwrap();

        assert!(matches!(LockedFile::open(&path), Err(OpenError::InUse(_))));
        drop(file);
        let again = LockedFile::open(&path).map(drop);

        drop(child);
        fs::remove_dir_all(&folder).unwrap();
        again.unwrap();
    }
}
