//! Address ranges of this process for guest memory: the mapping of Linux.
#![expect(unsafe_code, reason = "mmap and its relatives")]
// UNSAFETY: a span owns its addresses: nothing else of the process lies there, and only pointers,
// never references, are made to them elsewhere.

use super::{GuestMapping, LinuxUserfaultfd, Uffd, UffdError};
use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};

/// Bytes of a huge page, and of a chunk.
pub(crate) const HUGE: usize = 2 << 20;

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Addresses of this process, aligned to [`HUGE`], with room on both sides that stays empty: no mapping
/// of others grows together with one in here.
#[derive(Debug)]
pub(crate) struct Span {
    start: usize,
    bytes: usize,
    reserved: usize,
}

impl Span {
    /// Reserves addresses; nothing is there yet.
    pub(crate) fn reserve(bytes: usize) -> Result<Self, Error> {
        let too_large = || Error::from_raw_os_error(libc::ENOMEM);
        let room = bytes.checked_add(2 * HUGE).ok_or_else(too_large)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let found = unsafe { libc::mmap(null_mut(), room, libc::PROT_NONE, flags, -1, 0) };
        let reserved = succeeded(found)?;
        Ok(Self { start: (reserved + 1).next_multiple_of(HUGE), bytes, reserved })
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut libc::c_void {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "{bytes:#x} bytes at {offset:#x} lie inside the span");
        with_exposed_provenance_mut(self.start + offset)
    }

    fn map(
        &self,
        offset: usize,
        bytes: usize,
        flags: libc::c_int,
        file: Option<&File>,
    ) -> Result<(), Error> {
        let at = self.at(offset, bytes);
        let flags = flags | libc::MAP_FIXED;
        let fd = file.map_or(-1, AsRawFd::as_raw_fd);
        let from = if file.is_some() { offset } else { 0 };
        let from = libc::off_t::try_from(from).map_err(Error::other)?;
        // SAFETY: replaces a part of this span.
        succeeded(unsafe { libc::mmap(at, bytes, READ_WRITE, flags, fd, from) }).map(drop)
    }
}

impl GuestMapping for Span {
    fn start(&self) -> usize {
        self.start
    }

    fn userfaultfd(&self) -> Result<Uffd, UffdError> {
        LinuxUserfaultfd::open().map(Uffd::new)
    }

    fn map_file(&self, offset: usize, bytes: usize, file: &File) -> Result<(), Error> {
        self.map(offset, bytes, libc::MAP_SHARED | libc::MAP_NORESERVE, Some(file))
    }

    fn map_reserved(&self, offset: usize, bytes: usize, file: &File) -> Result<(), Error> {
        self.map(offset, bytes, libc::MAP_SHARED, Some(file))
    }

    fn map_anonymous(&self, offset: usize, bytes: usize) -> Result<(), Error> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.map(offset, bytes, flags, None)
    }

    fn advise(&self, offset: usize, bytes: usize, advice: libc::c_int) -> Result<(), Error> {
        // SAFETY: a part of this span; no advice used here loses data of a file.
        done(unsafe { libc::madvise(self.at(offset, bytes), bytes, advice) })
    }

    fn set_writable(&self, offset: usize, bytes: usize, on: bool) -> Result<(), Error> {
        let access = if on { READ_WRITE } else { libc::PROT_READ };
        // SAFETY: a part of this span; nothing of this process stores through it.
        done(unsafe { libc::mprotect(self.at(offset, bytes), bytes, access) })
    }

    fn residency(&self, offset: usize, pages: &mut [u8]) -> Result<(), Error> {
        let bytes = pages.len() * 4096;
        // SAFETY: a part of this span, and a byte for each of its pages.
        done(unsafe { libc::mincore(self.at(offset, bytes), bytes, pages.as_mut_ptr()) })
    }

    fn move_pages(&self, offset: usize, bytes: usize, to: &Self) -> Result<(), Error> {
        let (old, new) = (self.at(offset, bytes), to.at(0, bytes));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: both are parts of spans; the new place is replaced.
        succeeded(unsafe { libc::mremap(old, bytes, bytes, flags, new) }).map(drop)
    }
}

fn succeeded(address: *mut libc::c_void) -> Result<usize, Error> {
    if address == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    Ok(address.expose_provenance())
}

fn done(result: libc::c_int) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

impl Drop for Span {
    fn drop(&mut self) {
        let start = with_exposed_provenance_mut(self.reserved);
        // SAFETY: the addresses were reserved by `reserve`, and nothing borrows them any more.
        unsafe { libc::munmap(start, self.bytes + 2 * HUGE) };
    }
}
