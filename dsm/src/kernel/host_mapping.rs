//! The guest mapping of Linux: a span of this process.
#![expect(unsafe_code, reason = "mmap and its relatives")]
// UNSAFETY: as in `span`.

use super::error::UffdError;
use super::guest_mapping::GuestMapping;
use super::linux::LinuxUserfaultfd;
use super::span::{READ_WRITE, Span, done, succeeded};
use super::uffd::Uffd;
use std::fs::File;
use std::io::Error;

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
