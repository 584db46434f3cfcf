//! Opening an image's file: permission, kind, lock, and whether it can be used without page cache.

use super::record::{GenerationRecord, RecordError};
use super::{ImageFormat, ImageOptions};
use imago::file::File as PlainFile;
use imago::{Storage, StorageOpenOptions};
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why an image cannot be used.
#[derive(Debug, Error)]
pub enum ImageError {
    /// There is nothing under this name.
    #[error("open image {0}: no such file")]
    Missing(PathBuf),
    /// A folder, a pipe or the like.
    #[error("open image {0}: neither a file nor a block device")]
    Kind(PathBuf),
    /// The file cannot be opened.
    #[error("open image {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process has it, or this process twice.
    #[error("open image {path}: it is in use{}", if *.writable { "" } else { " by a writer" })]
    Locked {
        /// The file.
        path: PathBuf,
        /// It was to be written.
        writable: bool,
    },
    /// Not an image of this format, or one that names files which it may not.
    #[error("open image {path} as {format:?}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The format.
        format: ImageFormat,
        /// What is wrong.
        source: io::Error,
    },
    /// Another generation of the VM, or another VM, writes it.
    #[error("open image {path}")]
    Record {
        /// The image.
        path: PathBuf,
        /// Who.
        source: RecordError,
    },
    /// A disk has whole sectors, and at least one.
    #[error("open image {path}: its size of {bytes} bytes is not a multiple of 512")]
    Size {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
    },
    /// No thread for it.
    #[error("open image {path}: start its I/O thread")]
    Thread {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl ImageError {
    /// Whether a file that a qcow2 image names was not there.
    pub(super) fn lacks_a_file(&self) -> bool {
        matches!(self, Self::Format { format: ImageFormat::Qcow2, source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Smaller raw disks go through the page cache.
const DIRECT_BYTES_MIN: u64 = 128 * 1024;

/// A file that is open and locked.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) writable: bool,
    pub(super) direct: bool,
}

impl Opened {
    /// As `imago` uses files, by ordinary system calls.
    pub(super) fn plain(self) -> io::Result<PlainFile> {
        let options = StorageOpenOptions::new().filename(&self.path);
        let options = options.write(self.writable).direct(self.direct);
        PlainFile::from_open_file(self.file, options)
    }
}

/// Opens and locks the file of an image. With the record of who writes it, if one is wanted: nothing is written before.
pub(super) fn open(
    options: &ImageOptions,
) -> Result<(Opened, Option<GenerationRecord>), ImageError> {
    let path = &options.path;
    let at = options.at.as_ref().unwrap_or(path);
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ImageError::Missing(path.clone()),
        _ => ImageError::Open { path: path.clone(), source },
    };
    let metadata = fs::metadata(at).map_err(failed)?;
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(ImageError::Kind(path.clone()));
    }
    let read_only = options.read_only || options.look;
    let writable = !read_only && !metadata.permissions().readonly();
    let open = |writable, direct| {
        let opened = open_with(at, writable, direct)?;
        // Whoever reads messages, and an image that names files beside it, means this one.
        Ok(Opened { path: path.clone(), ..opened })
    };
    let opened = match open(writable, options.direct) {
        Err(error) if writable && is_read_only(&error) => open(false, options.direct),
        other => other,
    };
    let mut opened = opened.map_err(failed)?;
    let lock = |opened: &Opened| if options.look { Ok(()) } else { lock(opened) };
    lock(&opened)?;
    // There is nothing beside a device that could say who writes it.
    let recorded = opened.writable && metadata.is_file();
    let record = options.record.filter(|_| recorded).map(|writer| {
        let wrong = |source| ImageError::Record { path: path.clone(), source };
        GenerationRecord::claim(path, writer).map_err(wrong)
    });
    let record = record.transpose()?;
    if options.fresh || options.look {
        // Of a block device the cache outlives who had it open. Where there is none to drop, nothing is lost.
        let _ = fadvise(&opened.file, 0, None, Advice::DontNeed);
    }
    if opened.direct && !suits_direct(&opened, options.format).map_err(failed)? {
        let buffered = open(opened.writable, false).map_err(failed)?;
        // Two open files have two locks, so the first must go before the second can come.
        drop(opened);
        lock(&buffered)?;
        opened = buffered;
    }
    Ok((opened, record))
}

/// Opens a file that an image names, locked like the image itself.
pub(super) fn open_other(options: &StorageOpenOptions, direct: bool) -> io::Result<Opened> {
    let path = options.get_filename().ok_or(io::ErrorKind::NotFound)?;
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other(format!("{} is not a file", path.display())));
    }
    let opened = open_with(path, options.get_writable(), direct)?;
    lock(&opened).map_err(io::Error::other)?;
    Ok(opened)
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Opens the file, without the page cache if that is wanted and the file system can.
fn open_with(path: &Path, writable: bool, direct: bool) -> io::Result<Opened> {
    let open = |flags| {
        OpenOptions::new()
            .read(true)
            .write(writable)
            .custom_flags(flags | libc::O_CLOEXEC)
            .open(path)
    };
    let (file, direct) = match direct.then(|| open(libc::O_DIRECT)) {
        Some(Ok(file)) => (file, true),
        Some(Err(error)) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
        _ => (open(0)?, false),
    };
    Ok(Opened { file, path: path.to_owned(), writable, direct })
}

fn lock(opened: &Opened) -> Result<(), ImageError> {
    let (path, writable) = (opened.path.clone(), opened.writable);
    let locked = if writable { opened.file.try_lock() } else { opened.file.try_lock_shared() };
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(ImageError::Locked { path, writable }),
        Err(TryLockError::Error(source)) => Err(ImageError::Open { path, source }),
    }
}

/// Whether a file can be used directly. A raw disk whose last block is cut off would grow when that
/// block is written; and to find out alignments `imago` rewrites blocks of up to 64 KiB near the
/// start, so a small disk would grow even then.
fn suits_direct(opened: &Opened, format: ImageFormat) -> io::Result<bool> {
    let metadata = opened.file.metadata()?;
    if format == ImageFormat::Qcow2 || metadata.file_type().is_block_device() {
        return Ok(true);
    }
    if metadata.len() < DIRECT_BYTES_MIN || !metadata.len().is_multiple_of(4096) {
        return Ok(false);
    }
    let copy = Opened { file: opened.file.try_clone()?, path: opened.path.clone(), ..*opened };
    Ok(metadata.len().is_multiple_of(copy.plain()?.req_align() as u64))
}
