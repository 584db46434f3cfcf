//! A file under a format, read, written and synced through the ring.
//!
//! Each operation that changes it is one of the ring, which looks at the fence when it submits it. So each round of a write that
//! the kernel does in parts is looked at too. Only a change of the length is a system call here: by `Fenced`, right after its look.
#![expect(unsafe_code, reason = "imago's storage functions are unsafe, and entries name memory")]
// UNSAFETY: each function awaits its operation before it gives up the memory that the operation uses.

use super::file::Opened;
use super::ring::{Effect, Ring};
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::storage::PreallocateMode;
use imago::storage::drivers::CommonStorageHelper;
use imago::{Storage, StorageOpenOptions};
use io_uring::{opcode, squeue::Entry, types};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alignments in bytes that the file demands, as `imago` finds them out.
#[derive(Clone, Copy, Debug)]
struct Alignment {
    memory: usize,
    request: usize,
    zero: usize,
    discard: usize,
}

pub(super) struct RingFile {
    ring: Arc<Ring>,
    file: File,
    path: PathBuf,
    align: Alignment,
    /// Grows with writes behind the end.
    bytes: AtomicU64,
    helper: CommonStorageHelper,
}

impl RingFile {
    pub(super) fn new(ring: Arc<Ring>, opened: Opened) -> io::Result<Self> {
        let file = opened.file.try_clone()?;
        let path = opened.path.clone();
        let plain = opened.plain()?;
        let align = Alignment {
            memory: plain.mem_align(),
            request: plain.req_align(),
            zero: plain.zero_align(),
            discard: plain.discard_align(),
        };
        let bytes = AtomicU64::new(plain.size()?);
        Ok(Self { ring, file, path, align, bytes, helper: CommonStorageHelper::default() })
    }

    fn fd(&self) -> types::Fd {
        types::Fd(self.file.as_raw_fd())
    }

    fn grow(&self, end: u64) {
        self.bytes.fetch_max(end, Ordering::AcqRel);
    }

    /// Runs an operation that changes the file and names no memory.
    async fn run(&self, entry: Entry) -> io::Result<usize> {
        // SAFETY: by the caller the entry names no memory.
        unsafe { self.ring.start(entry, Effect::Change) }.await
    }

    async fn fallocate(&self, mode: i32, offset: u64, length: u64) -> io::Result<()> {
        let entry = opcode::Fallocate::new(self.fd(), length).offset(offset).mode(mode).build();
        match self.run(entry).await {
            Err(error) if cannot(&error) => Err(io::ErrorKind::Unsupported.into()),
            other => other.map(drop),
        }
    }

    /// Makes the part of a range that lies inside the file read as zeros, and frees its room.
    async fn punch(&self, offset: u64, length: u64) -> io::Result<()> {
        if offset >= self.bytes.load(Ordering::Acquire) {
            return Ok(());
        }
        self.fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, length).await
    }
}

/// True for what file systems and devices say when they have no such operation.
fn cannot(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    error.kind() == io::ErrorKind::Unsupported
        || matches!(code, Some(libc::ENODEV | libc::ENXIO | libc::ENOTTY | libc::EOPNOTSUPP))
}

fn end_of(offset: u64, length: u64) -> io::Result<u64> {
    offset.checked_add(length).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl fmt::Debug for RingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl fmt::Display for RingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

impl Storage for RingFile {
    fn mem_align(&self) -> usize {
        self.align.memory
    }

    fn req_align(&self) -> usize {
        self.align.request
    }

    fn zero_align(&self) -> usize {
        self.align.zero
    }

    fn discard_align(&self) -> usize {
        self.align.discard
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.load(Ordering::Acquire))
    }

    fn resolve_relative_path<P: AsRef<Path>>(&self, relative: P) -> io::Result<PathBuf> {
        let folder = self.path.parent().unwrap_or_else(|| Path::new("."));
        Ok(folder.join(relative))
    }

    fn get_filename(&self) -> Option<PathBuf> {
        Some(self.path.clone())
    }

    async fn open(_: StorageOpenOptions) -> io::Result<Self> {
        // Only the gate opens files, since they share a ring.
        Err(io::ErrorKind::Unsupported.into())
    }

    async unsafe fn pure_readv(
        &self,
        mut buffers: IoVectorMut<'_>,
        mut offset: u64,
    ) -> io::Result<()> {
        while !buffers.is_empty() {
            let count = {
                // SAFETY: the vector is only given to the operation that ends in this block.
                let list = unsafe { buffers.as_iovec() };
                let length = u32::try_from(list.len()).map_err(io::Error::other)?;
                let entry = opcode::Readv::new(self.fd(), list.as_ptr(), length).offset(offset);
                // SAFETY: list and buffers are borrowed until the operation has ended.
                unsafe { self.ring.start(entry.build(), Effect::Read) }.await?
            };
            if count == 0 {
                // Behind the end of the file.
                buffers.fill(0);
                return Ok(());
            }
            buffers = buffers.split_tail_at(count as u64);
            offset = end_of(offset, count as u64)?;
        }
        Ok(())
    }

    async unsafe fn pure_writev(
        &self,
        mut buffers: IoVector<'_>,
        mut offset: u64,
    ) -> io::Result<()> {
        while !buffers.is_empty() {
            let count = {
                // SAFETY: the vector is only given to the operation that ends in this block.
                let list = unsafe { buffers.as_iovec() };
                let length = u32::try_from(list.len()).map_err(io::Error::other)?;
                let entry = opcode::Writev::new(self.fd(), list.as_ptr(), length).offset(offset);
                // SAFETY: list and buffers are borrowed until the operation has ended.
                unsafe { self.ring.start(entry.build(), Effect::Change) }.await?
            };
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            buffers = buffers.split_tail_at(count as u64);
            offset = end_of(offset, count as u64)?;
            self.grow(offset);
        }
        Ok(())
    }

    async unsafe fn pure_write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        let end = end_of(offset, length)?;
        self.punch(offset, length).await?;
        if end > self.bytes.load(Ordering::Acquire) {
            // Allocating by one byte only moves the end: it never cuts off what others write.
            self.fallocate(0, end - 1, 1).await?;
            self.grow(end);
        }
        Ok(())
    }

    async unsafe fn pure_write_allocated_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        let end = end_of(offset, length)?;
        self.fallocate(libc::FALLOC_FL_ZERO_RANGE, offset, length).await?;
        self.grow(end);
        Ok(())
    }

    async unsafe fn pure_discard(&self, offset: u64, length: u64) -> io::Result<()> {
        match self.punch(offset, length).await {
            // To give nothing back is a discard too.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            other => other,
        }
    }

    async fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    async fn sync(&self) -> io::Result<()> {
        let entry = opcode::Fsync::new(self.fd()).flags(types::FsyncFlags::DATASYNC).build();
        self.run(entry).await.map(drop)
    }

    async fn settle_writes(&self) -> io::Result<()> {
        // An operation that is dropped has ended (`ring`).
        Ok(())
    }

    async unsafe fn invalidate_cache(&self) -> io::Result<()> {
        Ok(())
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        &self.helper
    }

    async fn resize(&self, bytes: u64, preallocate: PreallocateMode) -> io::Result<()> {
        if !matches!(preallocate, PreallocateMode::None | PreallocateMode::Zero) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.file.set_len(bytes)?;
        self.bytes.store(bytes, Ordering::Release);
        Ok(())
    }
}
