//! A storage that nothing is written to any more once the fence of its slice is over, or another generation writes it.
//!
//! Here, below the formats: a request may wait for long in queues, and one of qcow2 is many writes. What is left is
//! the moment between the look and the system call. With the ring that call comes later, so the ring looks again.
#![expect(unsafe_code, reason = "imago's storage functions are unsafe")]
// UNSAFETY: each passes its arguments on, and so what its caller promises.

use super::guard::{Guard, LOOK_AGAIN};
use crate::fence::{Fence, Standing};
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::storage::PreallocateMode;
use imago::storage::drivers::CommonStorageHelper;
use imago::{Storage, StorageOpenOptions};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use tokio::time::sleep;

/// Why nothing is written.
#[derive(Clone, Debug, Error)]
pub(super) enum Over {
    #[error("the VM is over for this slice: nothing is written any more")]
    Fenced,
    #[error("{0}")]
    NotOurs(String),
}

impl Over {
    pub(super) fn error(guard: &Guard) -> io::Error {
        let not_ours = guard.not_ours().map(|why| Self::NotOurs(why.cause().to_owned()));
        io::Error::other(not_ours.unwrap_or(Self::Fenced))
    }
}

#[derive(Debug)]
pub(super) struct Fenced<S> {
    storage: S,
    guard: Arc<Guard>,
}

impl<S> Fenced<S> {
    pub(super) fn new(storage: S, guard: Arc<Guard>) -> Self {
        Self { storage, guard }
    }

    /// Waits while the fence is late. Others that share the thread go on meanwhile.
    async fn pass(&self) -> io::Result<()> {
        loop {
            match self.guard.look(Fence::now()) {
                Standing::Open => return Ok(()),
                Standing::Over => return Err(Over::error(&self.guard)),
                Standing::Late => sleep(LOOK_AGAIN).await,
            }
        }
    }
}

impl<S: fmt::Display> fmt::Display for Fenced<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.storage.fmt(f)
    }
}

impl<S: Storage> Storage for Fenced<S> {
    fn mem_align(&self) -> usize {
        self.storage.mem_align()
    }

    fn req_align(&self) -> usize {
        self.storage.req_align()
    }

    fn zero_align(&self) -> usize {
        self.storage.zero_align()
    }

    fn discard_align(&self) -> usize {
        self.storage.discard_align()
    }

    fn size(&self) -> io::Result<u64> {
        self.storage.size()
    }

    fn resolve_relative_path<P: AsRef<Path>>(&self, relative: P) -> io::Result<PathBuf> {
        self.storage.resolve_relative_path(relative)
    }

    fn get_filename(&self) -> Option<PathBuf> {
        self.storage.get_filename()
    }

    async fn open(_: StorageOpenOptions) -> io::Result<Self> {
        // Only the gate opens files, since it has the fence.
        Err(io::ErrorKind::Unsupported.into())
    }

    async unsafe fn pure_readv(&self, buffers: IoVectorMut<'_>, offset: u64) -> io::Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.storage.pure_readv(buffers, offset) }.await
    }

    async unsafe fn pure_writev(&self, buffers: IoVector<'_>, offset: u64) -> io::Result<()> {
        self.pass().await?;
        // SAFETY: as the caller promises.
        unsafe { self.storage.pure_writev(buffers, offset) }.await
    }

    async unsafe fn pure_write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        self.pass().await?;
        // SAFETY: as the caller promises.
        unsafe { self.storage.pure_write_zeroes(offset, length) }.await
    }

    async unsafe fn pure_write_allocated_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        self.pass().await?;
        // SAFETY: as the caller promises.
        unsafe { self.storage.pure_write_allocated_zeroes(offset, length) }.await
    }

    async unsafe fn pure_discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.pass().await?;
        // SAFETY: as the caller promises.
        unsafe { self.storage.pure_discard(offset, length) }.await
    }

    async fn flush(&self) -> io::Result<()> {
        self.pass().await?;
        self.storage.flush().await
    }

    async fn sync(&self) -> io::Result<()> {
        self.pass().await?;
        self.storage.sync().await
    }

    async fn settle_writes(&self) -> io::Result<()> {
        self.storage.settle_writes().await
    }

    async unsafe fn invalidate_cache(&self) -> io::Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.storage.invalidate_cache() }.await
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        self.storage.get_storage_helper()
    }

    async fn resize(&self, bytes: u64, preallocate: PreallocateMode) -> io::Result<()> {
        self.pass().await?;
        self.storage.resize(bytes, preallocate).await
    }
}
