//! The file below redb: locked as long as the store is open, and never half as large as it should be.
//!
//! redb gives its file up after the first error, and must open it again. The lock and the file are ours, so that nobody comes between.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::StorageBackend;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::error::OpenError;

/// A file that only this process has.
#[derive(Clone, Debug)]
pub(super) struct LockedFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: File,
    /// What was written may be lost, and reading it again would not tell: Linux forgets which pages it could not write.
    sync_failed: AtomicBool,
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

    /// Lets others have it. An error would say that they may already.
    pub(super) fn unlock(&self) {
        let _ = self.0.file.unlock();
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
    let here = file.metadata().map_err(|error| io_error(name, error))?;
    let same = fs::metadata(name)
        .is_ok_and(|there| (there.dev(), there.ino()) == (here.dev(), here.ino()));
    let inner = Inner { file, sync_failed: AtomicBool::new(false) };
    Ok(same.then(|| LockedFile(Arc::new(inner))))
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
