//! What is asked of the addresses where guest memory is mapped.

use super::error::UffdError;
use super::span::Span;
use super::uffd::Uffd;
use std::fmt::Debug;
use std::fs::File;
use std::io::Error;

/// Addresses where the guest's memory is mapped, aligned to [`HUGE`](super::HUGE). Offsets and lengths are bytes, whole pages.
/// Errors are those of the system calls.
pub(crate) trait GuestMapping: Debug + Send + Sync {
    /// First address.
    fn start(&self) -> usize;
    /// A userfaultfd that can watch this mapping.
    fn userfaultfd(&self) -> Result<Uffd, UffdError>;
    /// Maps a part of a file, of which the offset is that in the mapping, in place of what is there (`mmap`).
    fn map_file(&self, offset: usize, bytes: usize, file: &File) -> Result<(), Error>;
    /// The same of a file of huge pages, with memory set aside: touching it cannot fail later.
    fn map_reserved(&self, offset: usize, bytes: usize, file: &File) -> Result<(), Error>;
    /// Maps private memory that is all zeros (`mmap`).
    fn map_anonymous(&self, offset: usize, bytes: usize) -> Result<(), Error>;
    /// Tells the kernel about a part (`madvise`).
    fn advise(&self, offset: usize, bytes: usize, advice: libc::c_int) -> Result<(), Error>;
    /// Permits or forbids stores to a part (`mprotect`).
    fn set_writable(&self, offset: usize, bytes: usize, on: bool) -> Result<(), Error>;
    /// Which pages of a part are there (`mincore`): a byte for each, of which the lowest bit tells.
    fn residency(&self, offset: usize, pages: &mut [u8]) -> Result<(), Error>;
    /// Moves private pages, all at once, to the start of other addresses (`mremap` with `MREMAP_DONTUNMAP`). What is
    /// left behind is absent, and userfaultfd still watches it if it did.
    fn move_pages(&self, offset: usize, bytes: usize, to: &Span) -> Result<(), Error>;
}
