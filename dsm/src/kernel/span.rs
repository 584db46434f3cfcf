//! Address ranges of this process for guest memory.
#![expect(unsafe_code, reason = "mmap and its relatives")]
// UNSAFETY: a span owns its addresses: nothing else of the process lies there, and only pointers,
// never references, are made to them elsewhere.

use super::sizes::HUGE;
use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};

pub(super) const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Addresses of this process, aligned to [`HUGE`], with room on both sides that stays empty: no mapping
/// of others grows together with one in here.
#[derive(Debug)]
pub(crate) struct Span {
    pub(super) start: usize,
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

    pub(super) fn at(&self, offset: usize, bytes: usize) -> *mut libc::c_void {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "{bytes:#x} bytes at {offset:#x} lie inside the span");
        with_exposed_provenance_mut(self.start + offset)
    }

    pub(super) fn map(
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

pub(super) fn succeeded(address: *mut libc::c_void) -> Result<usize, Error> {
    if address == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    Ok(address.expose_provenance())
}

pub(super) fn done(result: libc::c_int) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

impl Drop for Span {
    fn drop(&mut self) {
        let start = with_exposed_provenance_mut(self.reserved);
        // SAFETY: the addresses were reserved by `reserve`, and nothing borrows them any more.
        unsafe { libc::munmap(start, self.bytes + 2 * HUGE) };
    }
}
