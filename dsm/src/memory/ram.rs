//! Guest memory of one slice: a memory file, mapped twice.
//!
//! The *guest mapping* is what KVM's memory slots point to and what userfaultfd watches. The *alias*
//! is for the VMM and the transport and is never watched, so touching it never waits for anyone.
//! Every slice maps the whole of guest memory; pages that it does not hold are not backed.
//!
//! A private chunk may lie outside the file ([`super::off_file`]). Its alias is then a mapping of that memory. When the
//! chunk is brought into the file, pointers to the alias go stale. The engine's thread does that, and no other thread
//! uses the alias while there is an engine.
#![expect(unsafe_code, reason = "lseek, and memory exposed to adapters")]
// UNSAFETY: system calls without pointers, and a promise about a mapping that lives as long as `self`.

use super::absent::Lazy;
use super::backed::BackedPages;
use super::chunk::{CHUNK_PAGES, ChunkId, whole_chunks};
use super::device_pages::{DeviceUse, DeviceUses};
use super::error::RamError;
use super::kind::Memory;
use super::layout::Layout;
use super::off_file::OffFile;
use super::places::{Place, Places};
use super::prepared::Prepared;
use crate::kernel::{GuestMapping, HUGE, Span, Uffd, UffdError, fix_size, memory_file};
use std::fs::File;
use std::io::Error;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tracing::debug;
use transport::PageMemory;
use wire::{Gfn, PAGE_SIZE};

/// The guest memory of one slice. Its mappings live as long as this does.
#[derive(Debug)]
pub struct GuestRam {
    pub(crate) file: File,
    pub(crate) guest: Box<dyn GuestMapping>,
    pub(crate) alias: Span,
    pub(super) layout: Layout,
    backed: BackedPages,
    pub(crate) off_file: OffFile,
    places: Places,
    /// Chunks put on huge pages so far.
    pub(crate) collapsed: AtomicU64,
    pub(crate) collapse_ns: AtomicU64,
    device_uses: DeviceUses,
    /// All pages are pinned for an adapter: there are no holes, and nothing may be replaced.
    pinned: AtomicBool,
    /// What was made ready at the start, if it was.
    pub(crate) prepared: Option<Prepared>,
    /// What is not here yet, if memory was not all here at first. Its userfaultfd is closed after the mappings, too.
    pub(super) lazy: OnceLock<Box<Lazy>>,
    /// Userfaultfds of engines that have ended. Closing one would wake its waiters into stale memory. Declared last, so
    /// that the mappings are dropped first.
    watches: Mutex<Vec<Uffd>>,
}

const PAGE: u64 = 4096;

impl GuestRam {
    /// Maps memory for the given frame ranges (ascending, disjoint), without backing any of it.
    ///
    /// # Errors
    /// Ranges that overlap, or the kernel's refusal.
    pub fn new(frames: &[Range<u64>]) -> Result<Self, RamError> {
        Self::with_memory(frames, frames, Memory::Memfd)
    }

    /// The same; the chunks that lie in `own` are made of the given memory, until they are shared.
    ///
    /// # Errors
    /// As for [`Self::new`]; too few huge pages.
    pub fn with_memory(
        frames: &[Range<u64>],
        own: &[Range<u64>],
        memory: Memory,
    ) -> Result<Self, RamError> {
        Self::with_mapping(frames, own, memory, |span, _| Ok(Box::new(span)))
    }

    /// The same, with a mapping for the guest that `make` makes of addresses and the memory file.
    pub(crate) fn with_mapping(
        frames: &[Range<u64>],
        own: &[Range<u64>],
        memory: Memory,
        make: impl FnOnce(Span, &File) -> Result<Box<dyn GuestMapping>, Error>,
    ) -> Result<Self, RamError> {
        memory.check(own)?;
        let layout = Layout::new(frames)?;
        let bytes = layout.bytes();
        let size = u64::try_from(bytes).map_err(|_| RamError::Layout)?;
        let failed = |what| move |source| RamError::Call { what, bytes: size, source };
        let sealable = libc::MFD_ALLOW_SEALING;
        let file = memory_file(c"tessera-guest-ram", sealable).map_err(failed("memfd_create"))?;
        file.set_len(size).map_err(failed("ftruncate"))?;
        fix_size(&file).map_err(failed("F_ADD_SEALS"))?;
        let guest = Span::reserve(bytes).and_then(|span| make(span, &file));
        let guest = guest.map_err(failed("mmap"))?;
        let alias = Span::reserve(bytes).map_err(failed("mmap"))?;
        for mapping in [&*guest, &alias] {
            mapping.map_file(0, bytes, &file).map_err(failed("mmap"))?;
        }
        // Where the host gives memory files huge pages on request, the guest's first touch gets them.
        if let Err(error) = guest.advise(0, bytes, libc::MADV_HUGEPAGE) {
            tracing::debug!("no transparent huge pages: {error}");
        }
        let mut ram = Self {
            file,
            guest,
            alias,
            layout,
            backed: BackedPages::new(bytes),
            off_file: OffFile::None,
            places: Places::new(bytes),
            collapsed: AtomicU64::new(0),
            collapse_ns: AtomicU64::new(0),
            device_uses: DeviceUses::new(bytes / PAGE_SIZE),
            pinned: AtomicBool::new(false),
            prepared: None,
            lazy: OnceLock::new(),
            watches: Mutex::default(),
        };
        let frames = own;
        let own: Vec<Range<usize>> = ram.chunk_offsets(own)?;
        ram.off_file = OffFile::new(memory, &*ram.guest, bytes, &own).map_err(failed("mmap"))?;
        let place = if ram.has_off_file() { Place::OffFile } else { Place::Plain };
        for at in own.into_iter().flat_map(|range| range.step_by(HUGE)) {
            ram.places.set(at, place);
        }
        if memory == Memory::MemfdPrealloc {
            ram.prepare(frames).map_err(failed("madvise"))?;
        }
        Ok(ram)
    }

    /// A userfaultfd that can watch the guest mapping.
    pub(crate) fn userfaultfd(&self) -> Result<Uffd, UffdError> {
        self.guest.userfaultfd()
    }

    /// The engine has ended. Threads that wait for a page, or touch one that is not here, wait for as long as this memory
    /// is mapped.
    pub(crate) fn stay_watched(&self, uffd: Uffd) {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).push(uffd);
    }

    /// Byte offsets of the whole chunks in frame ranges, all of which must have memory.
    fn chunk_offsets(&self, frames: &[Range<u64>]) -> Result<Vec<Range<usize>>, RamError> {
        let offsets = |range: Range<u64>| {
            let start = self.offset(ChunkId(range.start).first()).ok_or(RamError::Layout)?;
            let last = self.offset(Gfn(range.end * CHUNK_PAGES - 1)).ok_or(RamError::Layout)?;
            Ok(start..last + PAGE_SIZE)
        };
        whole_chunks(frames).into_iter().map(offsets).collect()
    }

    /// Where a chunk is. All its frames have memory.
    pub(crate) fn place(&self, chunk: ChunkId) -> Place {
        self.offset(chunk.first()).map_or(Place::Outside, |offset| self.place_at(offset))
    }

    /// The same by the chunk's offset in the file.
    pub(crate) fn place_at(&self, offset: usize) -> Place {
        self.places.get(offset)
    }

    pub(crate) fn set_place(&self, chunk: ChunkId, place: Place) {
        if let Some(offset) = self.offset(chunk.first()) {
            self.set_place_at(offset, place);
        }
    }

    /// The same by the chunk's offset in the file.
    pub(super) fn set_place_at(&self, offset: usize, place: Place) {
        self.places.set(offset, place);
    }

    /// Changes the place of the chunk at an offset, unless it is another by now.
    pub(crate) fn change_place(&self, offset: usize, from: Place, to: Place) -> bool {
        self.places.exchange(offset, from, to)
    }

    /// True when private chunks do not lie in the file at first.
    pub(crate) fn has_off_file(&self) -> bool {
        !matches!(self.off_file, OffFile::None)
    }

    /// A device of this slice uses these bytes of guest memory. From now on moves of their pages are counted. Bytes
    /// without memory are ignored.
    pub fn mark_for_device(&self, device: u16, address: u64, bytes: u64, what: DeviceUse) {
        if !self.device_uses.includes(device) {
            return;
        }
        let Some(last) = bytes.checked_sub(1).and_then(|rest| address.checked_add(rest)) else {
            return;
        };
        let pages = self.device_uses.of(what);
        for offset in (address / PAGE..=last / PAGE).map_while(|gfn| self.offset(Gfn(gfn))) {
            pages.mark(offset / PAGE_SIZE);
        }
    }

    /// Forgets which pages devices used so far, see [`Self::device_pages`].
    /// From now on only this device's use counts, or that of all.
    pub(crate) fn forget_device_pages(&self, only: Option<u16>) {
        self.device_uses.forget(only);
    }

    /// The contents of a page came from another slice, or go to one.
    pub(crate) fn moved(&self, gfn: Gfn) {
        let Some(offset) = self.offset(gfn) else { return };
        match self.device_uses.moved(offset / PAGE_SIZE) {
            Some(DeviceUse::Data) => {
                debug!(gfn = gfn.0, "a page that devices use for data travels");
            }
            Some(DeviceUse::Frame) => {
                debug!(gfn = gfn.0, "a page that devices use for frames travels");
            }
            None => {}
        }
    }

    /// Pages that devices of this slice have used so since these were last forgotten, and how often such a page
    /// travelled since the start. A page that is used for both is one of data.
    #[must_use]
    pub fn device_pages(&self, what: DeviceUse) -> (u64, u64) {
        self.device_uses.of(what).counts()
    }

    /// Bytes of the file and of each mapping.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.bytes()
    }

    /// Host addresses for KVM's memory slots: first guest-physical address, host address, bytes.
    #[must_use]
    pub fn slots(&self) -> Vec<(u64, usize, u64)> {
        let slot = |(frames, offset): (&Range<u64>, usize)| {
            let bytes = (frames.end - frames.start) * PAGE;
            (frames.start * PAGE, self.guest.start() + offset, bytes)
        };
        self.layout.ranges().map(slot).collect()
    }

    /// Byte offset of a frame in the file, or `None` where there is no memory.
    pub(crate) fn offset(&self, gfn: Gfn) -> Option<usize> {
        self.layout.offset(gfn)
    }

    /// Whether a frame has memory.
    #[must_use]
    pub fn has(&self, gfn: Gfn) -> bool {
        self.offset(gfn).is_some()
    }

    /// Whether all frames of a range have memory, side by side.
    pub(crate) fn has_all(&self, frames: &Range<u64>) -> bool {
        let left = self.layout.frames_from(Gfn(frames.start));
        left.is_some_and(|left| left >= frames.end.saturating_sub(frames.start))
    }

    /// Address of a frame in the guest mapping.
    pub(crate) fn guest_address(&self, gfn: Gfn) -> Option<u64> {
        let address = self.guest.start() + self.offset(gfn)?;
        u64::try_from(address).ok()
    }

    /// The frame of an address in the guest mapping.
    pub(crate) fn frame_at(&self, address: u64) -> Option<Gfn> {
        let offset = usize::try_from(address).ok()?.checked_sub(self.guest.start())?;
        self.layout.frame_at(offset)
    }

    /// The memory that may be exposed to peers, for remote writes from and into it: the alias. None where private
    /// chunks lie outside the file: pinned pages of the file would come on top of them.
    #[must_use]
    pub fn remote_writable(self: &Arc<Self>) -> Option<PageMemory> {
        if self.has_off_file() {
            return None;
        }
        let keep = Arc::clone(self);
        // One more descriptor. Without it the memory is exposed to adapters only.
        // SAFETY: the alias is a mapping of the file that stays until `self` is dropped, and no hole is ever
        // punched into the file. Its pages are only collapsed into huge ones while nobody has pinned
        // them (`super::huge`; the kernel refuses it for pinned pages too). All access is by pointers.
        let memory = unsafe { PageMemory::new(self.alias.start(), self.bytes(), keep) };
        Some(memory.clone().in_file(&self.file).unwrap_or(memory))
    }

    /// The memory was exposed to an adapter, which has pinned all pages.
    pub(crate) fn set_pinned(&self) {
        self.pinned.store(true, Ordering::Release);
        self.backed.insert_all();
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }

    /// True when nobody has stored to the page on this slice, as far as is known. Pinning touches all pages, so then the
    /// contents decide.
    pub(crate) fn is_untouched(&self, gfn: Gfn) -> bool {
        if self.is_pinned() { self.is_zero(gfn) } else { self.is_hole(gfn) }
    }

    /// True when the page is all zeros now.
    pub(crate) fn is_zero(&self, gfn: Gfn) -> bool {
        self.entries(gfn).iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// True when the file holds no page there: it was never touched on this slice.
    pub(crate) fn is_hole(&self, gfn: Gfn) -> bool {
        let Some(at) = self.offset(gfn) else { return true };
        self.ensure(at);
        if self.place_at(at) == Place::OffFile {
            return self.off_file.is_hole(&*self.guest, at);
        }
        if self.backed.contains(at) {
            return false;
        }
        if self.prepared.is_some() {
            // The file has it, and this slice never did.
            return true;
        }
        let Ok(offset) = i64::try_from(at) else { return true };
        // SAFETY: lseek takes no pointers.
        let data = unsafe { libc::lseek(self.file.as_raw_fd(), offset, libc::SEEK_DATA) };
        if data == offset {
            self.backed.insert(at);
        }
        data != offset
    }

    /// The page at an offset is in the file.
    pub(crate) fn set_backed(&self, at: usize) {
        self.backed.insert(at);
    }

    /// Somebody may have written any page. In memory that was made ready at the start, a page that never came counts as
    /// one of zeros; from now on each is looked at.
    pub(crate) fn note_contents(&self) {
        if self.prepared.is_some() {
            self.backed.insert_all();
        }
    }

    /// The page has contents, in the file.
    pub(crate) fn note_had(&self, gfn: Gfn) {
        if let Some(at) = self.offset(gfn) {
            self.backed.insert(at);
        }
    }

    /// True when the contents of a page of another home came here before. It is called for every fault, so it makes no
    /// system call.
    pub(crate) fn had_come(&self, gfn: Gfn) -> bool {
        self.offset(gfn).is_some_and(|at| self.backed.contains(at))
    }

    /// True when the page would be new to the file, as far as is known without asking the kernel.
    pub(crate) fn is_new(&self, gfn: Gfn) -> bool {
        if self.prepared.is_some() {
            return false;
        }
        let at = self.offset(gfn).filter(|at| self.place_at(*at) != Place::OffFile);
        at.is_some_and(|at| !self.backed.contains(at))
    }

    /// Removes the guest's mapping of pages; the data stays in the file.
    pub(crate) fn zap(&self, gfn: Gfn, pages: u64) -> Result<(), Error> {
        let offset = self.offset(gfn).expect("a checked frame");
        let bytes = usize::try_from(pages).map_or_else(|_| self.bytes(), |pages| pages * PAGE_SIZE);
        self.guest.advise(offset, bytes.min(self.bytes() - offset), libc::MADV_DONTNEED)
    }

    /// Lets stores to a page of the guest mapping fault, or makes the kernel refuse them.
    pub(crate) fn set_writable(&self, gfn: Gfn, on: bool) -> Result<(), Error> {
        let offset = self.offset(gfn).expect("a checked frame");
        self.guest.set_writable(offset, PAGE_SIZE, on)
    }

    /// Maps backed pages of the guest mapping before the guest touches them.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn populate(&self, gfn: Gfn, pages: usize) -> Result<(), Error> {
        let offset = self.offset(gfn).expect("a checked frame");
        let bytes = (pages * PAGE_SIZE).min(self.bytes() - offset);
        self.guest.advise(offset, bytes, libc::MADV_POPULATE_WRITE)
    }

    /// Maps, to be written, the pages of a chunk that the file has. Nothing of the chunk is watched.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn populate_present(&self, chunk: ChunkId) -> Result<(), Error> {
        let offset = self.offset(chunk.first()).expect("a chunk of memory");
        let mut there = [0; HUGE / PAGE_SIZE];
        self.guest.residency(offset, &mut there)?;
        let mut at = 0;
        for run in there.chunk_by(|one, next| one & 1 == next & 1) {
            if run[0] & 1 != 0 {
                let (start, bytes) = (offset + at * PAGE_SIZE, run.len() * PAGE_SIZE);
                self.guest.advise(start, bytes, libc::MADV_POPULATE_WRITE)?;
            }
            at += run.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    #[test]
    fn frame_at_with_hole_finds_the_block() {
        let ram = GuestRam::new(&[0..16, 64..80]).unwrap();

        let address = ram.guest_address(Gfn(70)).unwrap();

        assert_eq!(ram.frame_at(address + 123), Some(Gfn(70)));
        assert_eq!(ram.offset(Gfn(20)), None);
    }

    #[test]
    fn frames_keep_their_place_within_a_chunk() {
        let ram = GuestRam::new(&[3..16, 600..2100]).unwrap();

        assert_eq!(ram.offset(Gfn(3)), Some(3 * 4096));
        assert_eq!(ram.offset(Gfn(600)), Some((512 + 88) * 4096));
        assert_eq!(ram.guest_address(Gfn(1024)).unwrap() % (2 << 20), 0);
        let places = [0, 1, 2, 3, 4].map(|chunk| ram.place(ChunkId(chunk)));
        let (plain, outside) = (Place::Plain, Place::Outside);
        assert_eq!(places, [outside, outside, plain, plain, outside]);
    }

    #[test]
    fn page_of_pinned_memory_is_untouched_until_something_is_stored() {
        let ram = Arc::new(GuestRam::new(&[0..16, 600..601]).unwrap());
        assert!(ram.is_untouched(Gfn(600)));
        let writable = ram.remote_writable().unwrap();
        assert_eq!(writable.bytes(), ram.bytes());

        ram.set_pinned();

        assert!(!ram.is_hole(Gfn(600)) && ram.is_untouched(Gfn(600)) && ram.is_zero(Gfn(600)));
        ram.write(Gfn(600), 4095, &[1]);
        assert!(!ram.is_untouched(Gfn(600)));
    }

    #[test]
    fn memory_with_parts_off_file_is_not_exposed() {
        let frames = from_ref(&(0..1024));
        let ram = GuestRam::with_memory(frames, frames, Memory::Anonymous).unwrap();

        assert!(Arc::new(ram).remote_writable().is_none());
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
