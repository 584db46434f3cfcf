//! Pages to fetch, as a slice has them.
#![expect(unsafe_code, reason = "memory that an adapter writes to is reached by pointers")]
// UNSAFETY: the mapping lives as long as what keeps it, and no reference to its bytes is ever made.

use anyhow::{Result, ensure};
use std::io::Error;
use std::ptr;
use std::sync::Arc;
use transport::PageMemory;
use wire::PAGE_SIZE;

/// Pages of each end.
pub(crate) const PAGES: usize = 4096;
const BYTES: usize = PAGES * PAGE_SIZE;

#[derive(Debug)]
struct Mapping(usize);

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made in `new`, which nobody uses any more.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.0), BYTES) };
    }
}

/// Memory of one end; each page begins with a mark.
#[derive(Clone, Debug)]
pub(crate) struct Memory(Arc<Mapping>);

impl Memory {
    pub(crate) fn new() -> Result<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), BYTES, protection, flags, -1, 0) };
        ensure!(start != libc::MAP_FAILED, "map {BYTES} bytes: {}", Error::last_os_error());
        Ok(Self(Arc::new(Mapping(start.expose_provenance()))))
    }

    pub(crate) fn exposed(&self) -> PageMemory {
        let Mapping(start) = *self.0;
        // SAFETY: `Mapping` keeps it mapped, and nothing of it is ever given back.
        unsafe { PageMemory::new(start, BYTES, Arc::clone(&self.0) as _) }
    }

    fn at(&self, page: usize) -> *mut u8 {
        assert!(page < PAGES, "page {page}");
        ptr::with_exposed_provenance_mut(self.0.0 + page * PAGE_SIZE)
    }

    pub(crate) fn read(&self, page: usize, into: &mut [u8; PAGE_SIZE]) {
        // SAFETY: a page of the mapping; the target is memory of the caller.
        unsafe { ptr::copy_nonoverlapping(self.at(page), into.as_mut_ptr(), PAGE_SIZE) };
    }

    pub(crate) fn write(&self, page: usize, from: &[u8; PAGE_SIZE]) {
        // SAFETY: a page of the mapping; the source is memory of the caller.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.at(page), PAGE_SIZE) };
    }

    pub(crate) fn mark(&self, page: usize, mark: u64) {
        // SAFETY: the first word of a page of the mapping, which is aligned.
        unsafe { self.at(page).cast::<u64>().write_volatile(mark) };
    }

    /// Its mark.
    pub(crate) fn marked(&self, page: usize) -> u64 {
        // SAFETY: the first word of a page of the mapping, which is aligned.
        unsafe { self.at(page).cast::<u64>().read_volatile() }
    }
}
