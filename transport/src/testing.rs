//! Memory to expose, for tests.
#![expect(unsafe_code, reason = "exposed memory is reached by pointers")]
// UNSAFETY: mappings that live as long as the process, looked at when nobody writes to them.

use crate::memory::PageMemory;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{null_mut, with_exposed_provenance_mut, write_bytes};
use std::sync::Arc;

pub(crate) const PAGES: usize = 512;
pub(crate) const PAGE: usize = 4096;
/// A memory file of so many bytes, with seals.
pub(crate) fn file(bytes: usize, seals: libc::c_int) -> File {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"tests".as_ptr(), flags) };
    assert!(fd >= 0);
    // SAFETY: the descriptor is new.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(u64::try_from(bytes).unwrap()).unwrap();
    // SAFETY: the call takes no pointer.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    file
}

/// The mapping of such a file. It lives as long as the process.
pub(crate) fn memory_in(file: &File) -> PageMemory {
    let size = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let fd = file.as_raw_fd();
    // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe { libc::mmap(null_mut(), size, protection, libc::MAP_SHARED, fd, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: it is never unmapped.
    let memory = unsafe { PageMemory::new(start.expose_provenance(), size, Arc::new(())) };
    memory.in_file(file).unwrap()
}

/// Memory of [`PAGES`] pages.
pub(crate) fn memory() -> PageMemory {
    memory_in(&file(PAGES * PAGE, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW))
}

/// A byte of it. Tests look only when nobody writes.
fn byte(memory: &PageMemory, at: usize) -> *mut u8 {
    assert!(at < memory.bytes());
    with_exposed_provenance_mut(memory.start() + at)
}

pub(crate) fn fill_page(memory: &PageMemory, page: usize, with: u8) {
    // SAFETY: a page of the mapping.
    unsafe { write_bytes(byte(memory, page * PAGE), with, PAGE) };
}

/// Some bytes of it.
pub(crate) fn bytes_of(memory: &PageMemory, at: usize, count: usize) -> &[u8] {
    assert!(at + count <= memory.bytes());
    // SAFETY: a part of the mapping, which is not written meanwhile.
    unsafe { std::slice::from_raw_parts(byte(memory, at), count) }
}

/// What all bytes of a page are.
pub(crate) fn page_of(memory: &PageMemory, page: usize) -> u8 {
    let bytes = bytes_of(memory, page * PAGE, PAGE);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "page {page} is torn");
    bytes[0]
}
