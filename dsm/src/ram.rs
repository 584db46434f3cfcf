//! Guest memory of one slice: one memfd, mapped twice.
//!
//! The *guest mapping* is what KVM's memory slots point to and what userfaultfd watches. The *alias*
//! is for the VMM and the transport and is never watched, so touching it never waits for anyone.
//! Every slice maps the whole of guest memory; pages that it does not hold are not backed.
#![expect(unsafe_code, reason = "mmap, madvise and access to memory that vCPUs change")]
// UNSAFETY: guest memory is shared with vCPUs, so it is reached by pointers, never by references.

use std::ffi::CStr;
use std::fs::File;
use std::io::Error;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;
use wire::{Gfn, PAGE_SIZE};

/// Why guest memory cannot be had.
#[derive(Debug, Error)]
pub enum RamError {
    /// No frames were given, or they overlap.
    #[error("lay out guest memory: the frame ranges are empty or overlap")]
    Layout,
    /// A system call failed.
    #[error("{what} for {bytes} bytes of guest memory")]
    Call {
        /// Which.
        what: &'static str,
        /// Size asked for.
        bytes: u64,
        /// The cause.
        #[source]
        source: Error,
    },
}

#[derive(Clone, Debug)]
struct Block {
    frames: Range<u64>,
    /// Byte offset in the file and in both mappings.
    offset: usize,
}

/// The guest memory of one slice. Both mappings live as long as this does.
#[derive(Debug)]
pub struct GuestRam {
    file: File,
    guest: usize,
    alias: usize,
    bytes: usize,
    blocks: Vec<Block>,
    /// A bit for each page that is known to be backed.
    backed: Vec<AtomicU64>,
}

const PAGE: u64 = 4096;

impl GuestRam {
    /// Maps memory for the given frame ranges (ascending, disjoint), without backing any of it.
    ///
    /// # Errors
    /// Ranges that overlap, or the kernel's refusal.
    pub fn new(frames: &[Range<u64>]) -> Result<Self, RamError> {
        let mut blocks = Vec::with_capacity(frames.len());
        let mut offset = 0;
        for range in frames {
            let last: Option<&Block> = blocks.last();
            if range.is_empty() || last.is_some_and(|last| last.frames.end > range.start) {
                return Err(RamError::Layout);
            }
            blocks.push(Block { frames: range.clone(), offset });
            let count = usize::try_from(range.end - range.start).map_err(|_| RamError::Layout)?;
            offset += count * PAGE_SIZE;
        }
        if offset == 0 {
            return Err(RamError::Layout);
        }
        let size = u64::try_from(offset).map_err(|_| RamError::Layout)?;
        let failed = |what| RamError::Call { what, bytes: size, source: Error::last_os_error() };
        const NAME: &CStr = c"tessera-guest-ram";
        // SAFETY: the name is a C string; the call returns a descriptor or -1.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed("memfd_create"));
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(size).map_err(|source| RamError::Call {
            what: "ftruncate",
            bytes: size,
            source,
        })?;
        let guest = map(&file, offset).ok_or_else(|| failed("mmap"))?;
        let alias = map(&file, offset).ok_or_else(|| failed("mmap"))?;
        let words = (offset / PAGE_SIZE).div_ceil(64);
        let backed = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { file, guest, alias, bytes: offset, blocks, backed })
    }

    /// Host addresses for KVM's memory slots: first guest-physical address, host address, bytes.
    #[must_use]
    pub fn slots(&self) -> Vec<(u64, usize, u64)> {
        let slot = |block: &Block| {
            let bytes = (block.frames.end - block.frames.start) * PAGE;
            (block.frames.start * PAGE, self.guest + block.offset, bytes)
        };
        self.blocks.iter().map(slot).collect()
    }

    /// Byte offset of a frame in the file, or `None` where there is no memory.
    pub(crate) fn offset(&self, gfn: Gfn) -> Option<usize> {
        let block = self.blocks.iter().find(|block| block.frames.contains(&gfn.0))?;
        let index = usize::try_from(gfn.0 - block.frames.start).ok()?;
        Some(block.offset + index * PAGE_SIZE)
    }

    /// Address of a frame in the guest mapping.
    pub(crate) fn guest_address(&self, gfn: Gfn) -> Option<u64> {
        let address = self.guest + self.offset(gfn)?;
        u64::try_from(address).ok()
    }

    /// The frame of an address in the guest mapping.
    pub(crate) fn frame_at(&self, address: u64) -> Option<Gfn> {
        let offset = usize::try_from(address).ok()?.checked_sub(self.guest)?;
        let block = self.blocks.iter().rev().find(|block| block.offset <= offset)?;
        let gfn = block.frames.start + u64::try_from((offset - block.offset) / PAGE_SIZE).ok()?;
        block.frames.contains(&gfn).then_some(Gfn(gfn))
    }

    /// True when the file holds no page there: it was never touched on this slice.
    pub(crate) fn is_hole(&self, gfn: Gfn) -> bool {
        let Some(at) = self.offset(gfn) else { return true };
        let (word, bit) = (at / PAGE_SIZE / 64, 1 << (at / PAGE_SIZE % 64));
        // A page once backed stays so: this process never punches holes.
        if self.backed[word].load(Ordering::Relaxed) & bit != 0 {
            return false;
        }
        let Ok(offset) = i64::try_from(at) else { return true };
        // SAFETY: lseek takes no pointers.
        let data = unsafe { libc::lseek(self.file.as_raw_fd(), offset, libc::SEEK_DATA) };
        if data == offset {
            self.backed[word].fetch_or(bit, Ordering::Relaxed);
        }
        data != offset
    }

    fn alias_page(&self, gfn: Gfn) -> *mut u8 {
        let offset = self.offset(gfn).expect("a checked frame");
        ptr::with_exposed_provenance_mut(self.alias + offset)
    }

    /// Copies out of a page through the alias.
    ///
    /// # Panics
    /// When the frame has no memory or the range leaves the page.
    pub fn read(&self, gfn: Gfn, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= PAGE_SIZE, "the range stays in the page");
        let source = self.alias_page(gfn).wrapping_add(at);
        // SAFETY: the range was checked; the mapping lives as long as self. vCPUs may change the
        // bytes meanwhile, which a plain copy of bytes tolerates.
        unsafe { ptr::copy_nonoverlapping(source, out.as_mut_ptr(), out.len()) };
    }

    /// Copies out of a page as it was when this slice last had it, which may be long ago. False where
    /// there is no memory, or this slice never had the page: reading must not make it one that it had.
    #[must_use]
    pub fn peek(&self, gfn: Gfn, at: usize, out: &mut [u8]) -> bool {
        let there = at + out.len() <= PAGE_SIZE && !self.is_hole(gfn);
        if there {
            self.read(gfn, at, out);
        }
        there
    }

    /// Copies into a page through the alias.
    ///
    /// # Panics
    /// When the frame has no memory or the range leaves the page.
    pub fn write(&self, gfn: Gfn, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= PAGE_SIZE, "the range stays in the page");
        let target = self.alias_page(gfn).wrapping_add(at);
        // SAFETY: as in `read`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// The 512 entries of a table page, through the alias.
    pub(crate) fn entries(&self, gfn: Gfn) -> &[AtomicU64; 512] {
        let page = self.alias_page(gfn).cast::<[AtomicU64; 512]>();
        // SAFETY: the page is aligned, lives as long as self, and atomics may be shared with vCPUs.
        unsafe { &*page }
    }

    /// Makes sure that the file holds a page there, so that a later touch of the guest is a minor
    /// fault and not a silent page of zeros.
    pub(crate) fn back(&self, gfn: Gfn) {
        self.entries(gfn)[0].load(Ordering::Relaxed);
    }

    /// Fills the page with zeros.
    pub(crate) fn clear(&self, gfn: Gfn) {
        // SAFETY: a whole page of the alias; see `write`.
        unsafe { ptr::write_bytes(self.alias_page(gfn), 0, PAGE_SIZE) };
    }

    /// Removes the guest's mapping of a page; the data stays in the file.
    pub(crate) fn zap(&self, gfn: Gfn) -> Result<(), Error> {
        let offset = self.offset(gfn).expect("a checked frame");
        let start = ptr::with_exposed_provenance_mut(self.guest + offset);
        // SAFETY: one page of the guest mapping; the file keeps its contents.
        let result = unsafe { libc::madvise(start, PAGE_SIZE, libc::MADV_DONTNEED) };
        if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }

    /// Lets stores to a page of the guest mapping fault, or makes the kernel refuse them.
    pub(crate) fn set_writable(&self, gfn: Gfn, on: bool) -> Result<(), Error> {
        let offset = self.offset(gfn).expect("a checked frame");
        let start = ptr::with_exposed_provenance_mut(self.guest + offset);
        let access = if on { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: one page of the guest mapping; nothing of this process stores through it.
        let result = unsafe { libc::mprotect(start, PAGE_SIZE, access) };
        if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }

    /// Maps backed pages of the guest mapping ahead of the guest's touch.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn populate(&self, gfn: Gfn, pages: usize) -> Result<(), Error> {
        let offset = self.offset(gfn).expect("a checked frame");
        let start = ptr::with_exposed_provenance_mut(self.guest + offset);
        let bytes = (pages * PAGE_SIZE).min(self.bytes - offset);
        // SAFETY: part of the guest mapping.
        let result = unsafe { libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE) };
        if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }
}

fn map(file: &File, bytes: usize) -> Option<usize> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, file.as_raw_fd(), 0) };
    (start != libc::MAP_FAILED).then(|| start.expose_provenance())
}

impl Drop for GuestRam {
    fn drop(&mut self) {
        for start in [self.guest, self.alias] {
            // SAFETY: the mapping was made by `new` and nothing borrows it any more.
            unsafe { libc::munmap(ptr::with_exposed_provenance_mut(start), self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_at_with_hole_finds_the_block() {
        let ram = GuestRam::new(&[0..16, 64..80]).unwrap();

        let address = ram.guest_address(Gfn(70)).unwrap();

        assert_eq!(ram.frame_at(address + 123), Some(Gfn(70)));
        assert_eq!(ram.offset(Gfn(20)), None);
    }

    #[test]
    fn is_hole_after_write_is_false() {
        let ram = GuestRam::new(&[0..16, 32..33]).unwrap();
        assert!(ram.is_hole(Gfn(3)));

        ram.write(Gfn(3), 8, &[1]);

        assert!(!ram.is_hole(Gfn(3)));
        let mut byte = [0];
        assert!(ram.peek(Gfn(3), 8, &mut byte) && byte == [1]);
        assert!(!ram.peek(Gfn(4), 8, &mut byte) && !ram.peek(Gfn(99), 8, &mut byte));
        assert!(!ram.peek(Gfn(3), 4095, &mut [0; 2]));
        assert!(ram.is_hole(Gfn(4)));
    }
}
