//! A disk in an image file or on a block device: raw, or qcow2 by crate `imago`.
//!
//! ```text
//!  submit --bounded queue--> I/O thread: imago's formats as tasks --SQEs--> io_uring     (usual)
//!         --bounded queue--> four I/O threads: one request each --> pread, pwrite        (no io_uring)
//! ```
//! Files are opened with `O_DIRECT` where the file system and the image's size permit it. A flush
//! writes qcow2 tables back and syncs the file: it covers every request that was answered before
//! the flush was asked for. The file is locked (`flock`): by one who writes, or by many who read. Two things stand before it:
//! the fence of the slice, and the record of the VM's generation, if one is wanted.

mod access;
mod engine;
mod failures;
mod fenced;
mod file;
mod guard;
mod ofd;
mod own;
mod record;
mod ring;
mod ring_file;
pub mod snapshot;

#[cfg(test)]
mod tests;

pub use file::ImageError;
pub use record::{GENERATION_MAX, GenerationRecord, RECORD_SUFFIX, RecordError, Writer};

use super::{DISK_ID_BYTES, Disk, DiskDone, DiskReply, DiskRequest, DiskShape, SECTOR_BYTES};
use crate::fence::Fence;
use engine::Engine;
use guard::Guard;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// So often an image is opened of which a file below has no name just then: states may be merged while one looks at them.
const OPEN_TRIES: u32 = 4;
const OPEN_AGAIN: Duration = Duration::from_millis(10);

/// How an image's bytes are laid out. It is always said and never guessed: a guest that writes a
/// qcow2 head into its raw disk must not change what the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    /// The file is the disk.
    Raw,
    /// QEMU's copy-on-write format, version 2 or 3.
    Qcow2,
}

/// How an image is opened.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// The file or block device, as messages name it.
    pub path: PathBuf,
    /// Where it is opened, if not by its path: a file that is open already, in `/proc/self/fd`.
    pub at: Option<PathBuf>,
    /// Its format.
    pub format: ImageFormat,
    /// Never write. Also what a file gets that cannot be written, or has no permission to write
    /// for anybody.
    pub read_only: bool,
    /// Only look at it: it is neither written nor locked, and another process may use it.
    pub look: bool,
    /// Another host may have written it: what the page cache here has of it is dropped first.
    pub fresh: bool,
    /// Try to go around the page cache.
    pub direct: bool,
    /// Use `io_uring` if the kernel has it.
    pub ring: bool,
    /// A qcow2 image may name other files (a backing image, a data file), which are then opened too. Its own
    /// [frozen states](snapshot) it may always name.
    /// Only for images of trusted origin: they may name any file of the host.
    pub other_files: bool,
    /// Identity for the guest, cut at [`DISK_ID_BYTES`].
    pub id: String,
    /// Nothing is written or flushed once it is over, not by requests that wait here either.
    pub fence: Arc<Fence>,
    /// What follows when the file cannot grow.
    pub on_full: OnFull,
    /// Who writes it, to be recorded beside it ([`GenerationRecord`]); nothing is recorded of who only reads.
    pub record: Option<Writer>,
}

impl ImageOptions {
    /// The usual way to open this file: for writing, without other files, named after the file.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, format: ImageFormat) -> Self {
        let path = path.into();
        let id = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let id = id.unwrap_or_default();
        let (read_only, other_files) = (false, false);
        let (look, fresh) = (false, false);
        let (fence, on_full) = (Arc::default(), OnFull::default());
        Self {
            path,
            at: None,
            format,
            read_only,
            look,
            fresh,
            direct: true,
            ring: true,
            other_files,
            id,
            fence,
            on_full,
            record: None,
        }
    }
}

/// What follows when the file system of an image is full, or its quota used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// The guest gets an I/O error.
    #[default]
    Report,
    /// The request waits until there is room.
    Pause,
}

/// A disk in an image. Dropping it waits for requests under way, but not for room, and for a last flush.
#[derive(Debug)]
pub struct ImageDisk {
    shape: DiskShape,
    engine: Engine,
    direct: bool,
}

impl ImageDisk {
    /// Opens an image.
    ///
    /// # Errors
    /// A missing or unsuitable file, another format, a size that is no whole number of sectors, a
    /// file that another process uses or another generation of the VM writes, or a thread that cannot be started.
    pub fn open(options: &ImageOptions) -> Result<Self, ImageError> {
        let mut tries = OPEN_TRIES;
        loop {
            match Self::try_open(options) {
                Err(error) if error.lacks_a_file() && tries > 1 => tries -= 1,
                opened => return opened,
            }
            thread::sleep(OPEN_AGAIN);
        }
    }

    fn try_open(options: &ImageOptions) -> Result<Self, ImageError> {
        let (opened, record) = file::open(options)?;
        let (writable, direct) = (opened.writable, opened.direct);
        let guard = Arc::new(Guard::new(&options.fence, record));
        let wrong = |source| ImageError::Record { path: options.path.clone(), source };
        let names = guard.keep_names().map_err(wrong)?;
        let started = Engine::start(options, opened, &guard);
        drop(names);
        let (engine, facts) = started?;
        if facts.bytes == 0 || !facts.bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(ImageError::Size { path: options.path.clone(), bytes: facts.bytes });
        }
        let shape = DiskShape {
            sectors: facts.bytes / SECTOR_BYTES,
            block_bytes: facts.block_bytes,
            read_only: !writable,
            discard: writable,
            id: padded_id(&options.id),
        };
        Ok(Self { shape, engine, direct })
    }

    /// True when requests go around the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// True when requests go through `io_uring`.
    #[must_use]
    pub fn has_ring(&self) -> bool {
        self.engine.has_ring()
    }
}

/// An identity's first bytes, padded with zeros.
fn padded_id(id: &str) -> [u8; DISK_ID_BYTES] {
    let mut padded = [0; DISK_ID_BYTES];
    for (to, from) in padded.iter_mut().zip(id.bytes()) {
        *to = from;
    }
    padded
}

impl Disk for ImageDisk {
    fn shape(&self) -> DiskShape {
        self.shape.clone()
    }

    fn submit(&self, request: DiskRequest, done: DiskDone) {
        match self.shape.refusal(&request) {
            Some(refusal) => done(refusal),
            None if request == DiskRequest::Flush && self.shape.read_only => {
                done(DiskReply::Done(Vec::new()));
            }
            None => self.engine.submit(request, done),
        }
    }

    fn may_wait(&self, may: bool) {
        self.engine.may_wait(may);
    }
}
