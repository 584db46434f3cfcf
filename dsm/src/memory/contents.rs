//! Contents of guest memory, through the alias and through the memory file.
#![expect(unsafe_code, reason = "access to memory that vCPUs change")]
// UNSAFETY: guest memory is shared with vCPUs, so it is reached by pointers, never by references.

use super::chunk::ChunkId;
use super::places::Place;
use super::ram::GuestRam;
use crate::kernel::GuestMapping;
use std::io::Error;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::{Gfn, PAGE_SIZE};

impl GuestRam {
    /// Writes pages of neighbouring frames into the file. This way new pages need neither a fault nor zeros.
    pub(crate) fn write_to_file(&self, first: Gfn, bytes: &[u8]) -> Result<(), Error> {
        let (mut gfn, mut rest) = (first, bytes);
        while !rest.is_empty() {
            let frames = self.layout.frames_from(gfn);
            let frames = frames.ok_or_else(|| Error::from_raw_os_error(libc::EFAULT))?;
            let at = self.offset(gfn).expect("it is in a range");
            let left = usize::try_from(frames).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(rest.len().min(left.saturating_mul(PAGE_SIZE)));
            (at..at + now.len()).step_by(PAGE_SIZE).for_each(|at| self.ensure(at));
            self.write_absent(at, now)?;
            (gfn, rest) = (Gfn(gfn.0 + frames), later);
        }
        Ok(())
    }

    /// Writes pages at an offset into the file, whether the chunk is loaded or not.
    pub(super) fn write_absent(&self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all_at(bytes, u64::try_from(at).map_err(Error::other)?)?;
        (at..at + bytes.len()).step_by(PAGE_SIZE).for_each(|at| self.set_backed(at));
        Ok(())
    }

    /// The same through the alias, in one chunk or in neighbours of the same place.
    pub(super) fn copy_absent(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes(), "the range stays in memory");
        // SAFETY: the range was checked; otherwise as in `read`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.alias_at(at), bytes.len()) };
    }

    /// Nobody looks at contents but through this.
    fn alias_page(&self, gfn: Gfn) -> *mut u8 {
        let offset = self.offset(gfn).expect("a checked frame");
        self.ensure(offset);
        self.alias_at(offset)
    }

    fn alias_at(&self, offset: usize) -> *mut u8 {
        let off_file = match self.place_at(offset) {
            Place::OffFile => self.off_file.alias(&*self.guest),
            _ => None,
        };
        ptr::with_exposed_provenance_mut(off_file.unwrap_or_else(|| self.alias.start()) + offset)
    }

    fn ensure_run(&self, first: Gfn, pages: u64) {
        let chunks = ChunkId::pieces(first, pages);
        chunks
            .filter_map(|(_, frames)| self.offset(Gfn(frames.start)))
            .for_each(|at| self.ensure(at));
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

    /// Appends the whole page to `out`, through the alias.
    ///
    /// # Panics
    /// When the frame has no memory.
    pub(crate) fn append_to(&self, gfn: Gfn, out: &mut Vec<u8>) {
        let source = self.alias_page(gfn);
        out.reserve(PAGE_SIZE);
        let end = out.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: both are a page long, the one by the reservation; otherwise as in `read`.
        unsafe { ptr::copy_nonoverlapping(source, end, PAGE_SIZE) };
        // SAFETY: these bytes were just written.
        unsafe { out.set_len(out.len() + PAGE_SIZE) };
    }

    /// Byte offset of neighbouring pages in the file, if they lie there side by side.
    pub(crate) fn file_run(&self, first: Gfn, pages: u64) -> Option<usize> {
        let (start, last) = (self.offset(first)?, Gfn(first.0 + pages.checked_sub(1)?));
        self.ensure_run(first, pages);
        let in_file = |at: usize| self.place_at(at) != Place::OffFile;
        let end = self.offset(last)?;
        let bytes = usize::try_from(pages - 1).ok()? * PAGE_SIZE;
        (end.checked_sub(start) == Some(bytes) && in_file(start) && in_file(end)).then_some(start)
    }

    /// The bytes of neighbouring pages where they lie, if they lie side by side.
    ///
    /// # Safety
    /// Nobody stores to the pages while the bytes are used: they were taken from the guest, or may only be
    /// read, on every slice.
    pub(crate) unsafe fn stable_bytes(&self, first: Gfn, pages: u64) -> Option<&[u8]> {
        let last = Gfn(first.0 + pages.checked_sub(1)?);
        let bytes = usize::try_from(pages).ok()? * PAGE_SIZE;
        self.ensure_run(first, pages);
        let start = self.alias_page(first);
        // Only at the borders of blocks and of chunks off the file do addresses jump.
        let together = self.alias_page(last) == start.wrapping_add(bytes - PAGE_SIZE);
        // SAFETY: pages of a mapping that lives as long as self; the caller keeps them as they are.
        together.then(|| unsafe { std::slice::from_raw_parts(start, bytes) })
    }

    /// Copies out of a page as it was when this slice last had it, which may be long ago. False where there is no memory,
    /// or where this slice never had the page: a read would make it a page that the slice had.
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

    /// Brings the contents of neighbouring frames here, before anybody uses the memory; says how many pages.
    ///
    /// # Panics
    /// When a frame has no memory, or the bytes are no whole pages.
    pub fn write_run(&self, first: Gfn, bytes: &[u8]) -> u64 {
        let (pages, rest) = bytes.as_chunks::<PAGE_SIZE>();
        assert!(rest.is_empty(), "whole pages");
        let mut frame = first.0;
        for page in pages {
            self.write(Gfn(frame), 0, page);
            frame += 1;
        }
        frame - first.0
    }

    /// The 512 entries of a table page, through the alias.
    pub(crate) fn entries(&self, gfn: Gfn) -> &[AtomicU64; 512] {
        let page = self.alias_page(gfn).cast::<[AtomicU64; 512]>();
        // SAFETY: the page is aligned, lives as long as self, and atomics may be shared with vCPUs.
        unsafe { &*page }
    }

    /// Whether a table page holds exactly these entries. A vCPU may change it meanwhile. One call compares a page in a
    /// third of the time that a loop over atomic entries takes, which the compiler must not join.
    pub(crate) fn holds(&self, gfn: Gfn, entries: &[u64; 512]) -> bool {
        let page = self.alias_page(gfn).cast_const().cast();
        // SAFETY: both are a whole page, and the alias lives as long as self; the bytes only decide whether the
        // entries are looked at one by one.
        unsafe { libc::memcmp(page, entries.as_ptr().cast(), PAGE_SIZE) == 0 }
    }

    /// Makes sure that the file holds the page. A later touch by the guest is then a minor fault, and does not silently
    /// give a page of zeros.
    pub(crate) fn back(&self, gfn: Gfn) {
        self.entries(gfn)[0].load(Ordering::Relaxed);
    }

    /// Fills the page with zeros.
    pub(crate) fn clear(&self, gfn: Gfn) {
        // SAFETY: a whole page of the alias; see `write`.
        unsafe { ptr::write_bytes(self.alias_page(gfn), 0, PAGE_SIZE) };
    }
}
