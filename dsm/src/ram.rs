//! Guest memory of one slice: a memory file, mapped twice.
//!
//! The *guest mapping* is what KVM's memory slots point to and what userfaultfd watches. The *alias*
//! is for the VMM and the transport and is never watched, so touching it never waits for anyone.
//! Every slice maps the whole of guest memory; pages that it does not hold are not backed.
//!
//! Private chunks may lie elsewhere than in the file ([`crate::memory`]); the alias of such a chunk is
//! a mapping of that memory. When it is brought into the file, pointers to the alias go stale: the
//! engine's thread does that, and is the only one to use the alias while there is an engine.
#![expect(unsafe_code, reason = "memfd and access to memory that vCPUs change")]
// UNSAFETY: guest memory is shared with vCPUs, so it is reached by pointers, never by references.

use crate::apart::Apart;
use crate::chunks::{CHUNK_PAGES, ChunkId, whole};
use crate::device_pages::{DevicePages, DeviceUse, Watched};
use crate::mapping::{GuestMapping, HUGE, Span, Uffd, UffdError};
use crate::memory::Memory;
use crate::prepare::Prepared;
use std::ffi::CStr;
use std::fs::File;
use std::io::Error;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;
use tracing::debug;
use transport::PageMemory;
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
    /// The pool of huge pages is too small.
    #[error(
        "memory on hugetlbfs needs {needed} free huge pages of 2 MiB, this host has {free}; set them \
         aside (sysctl vm.nr_hugepages={total}) or choose memfd or anonymous memory"
    )]
    HugePages {
        /// Huge pages that are needed.
        needed: u64,
        /// Huge pages that nobody has claimed.
        free: u64,
        /// What the pool must hold.
        total: u64,
    },
}

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// In the file; to be left as it is.
    Outside,
    /// Outside the file, in memory of the kind that the user chose.
    Apart,
    /// In the file, not watched.
    Plain,
    /// The same, and on a huge page.
    Huge,
    /// In the file, and watched.
    Watched,
}

impl Place {
    fn from_byte(byte: u8) -> Self {
        [Self::Outside, Self::Apart, Self::Plain, Self::Huge, Self::Watched][usize::from(byte)]
    }
}

#[derive(Clone, Debug)]
struct Block {
    frames: Range<u64>,
    /// Byte offset in the file and in both mappings.
    offset: usize,
}

/// The guest memory of one slice. Its mappings live as long as this does.
#[derive(Debug)]
pub struct GuestRam {
    pub(crate) file: File,
    pub(crate) guest: Box<dyn GuestMapping>,
    pub(crate) alias: Span,
    bytes: usize,
    blocks: Vec<Block>,
    /// A bit for each page that is known to be backed.
    backed: Vec<AtomicU64>,
    pub(crate) apart: Apart,
    /// A [`Place`] for each 2 MiB of the file.
    places: Vec<AtomicU8>,
    /// Chunks put on huge pages so far.
    pub(crate) collapsed: AtomicU64,
    pub(crate) collapse_ns: AtomicU64,
    device_pages: DevicePages,
    frame_pages: DevicePages,
    watched: Watched,
    /// All pages are pinned for an adapter: there are no holes, and nothing may be replaced.
    pinned: AtomicBool,
    /// What was made ready at the start, if it was.
    pub(crate) prepared: Option<Prepared>,
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
        let (blocks, bytes) = lay_out(frames)?;
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
        let words = (bytes / PAGE_SIZE).div_ceil(64);
        let places = (0..bytes.div_ceil(HUGE)).map(|_| AtomicU8::new(Place::Outside as u8));
        let mut ram = Self {
            file,
            guest,
            alias,
            bytes,
            blocks,
            backed: (0..words).map(|_| AtomicU64::new(0)).collect(),
            apart: Apart::None,
            places: places.collect(),
            collapsed: AtomicU64::new(0),
            collapse_ns: AtomicU64::new(0),
            device_pages: DevicePages::new(bytes / PAGE_SIZE),
            frame_pages: DevicePages::new(bytes / PAGE_SIZE),
            watched: Watched::default(),
            pinned: AtomicBool::new(false),
            prepared: None,
            watches: Mutex::default(),
        };
        let frames = own;
        let own: Vec<Range<usize>> = ram.chunk_offsets(own)?;
        ram.apart = Apart::new(memory, &*ram.guest, bytes, &own).map_err(failed("mmap"))?;
        let place = if ram.has_apart() { Place::Apart } else { Place::Plain };
        for at in own.into_iter().flat_map(|range| range.step_by(HUGE)) {
            ram.places[at / HUGE].store(place as u8, Ordering::Release);
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

    /// Whoever waits for a page, or comes to touch one that is not here, waits for as long as this memory is mapped.
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
        whole(frames).into_iter().map(offsets).collect()
    }

    /// Where a chunk is that has memory as a whole.
    pub(crate) fn place(&self, chunk: ChunkId) -> Place {
        self.offset(chunk.first()).map_or(Place::Outside, |offset| self.place_at(offset))
    }

    /// The same by the chunk's offset in the file.
    pub(crate) fn place_at(&self, offset: usize) -> Place {
        Place::from_byte(self.places[offset / HUGE].load(Ordering::Acquire))
    }

    pub(crate) fn set_place(&self, chunk: ChunkId, place: Place) {
        if let Some(offset) = self.offset(chunk.first()) {
            self.places[offset / HUGE].store(place as u8, Ordering::Release);
        }
    }

    /// Changes the place of the chunk at an offset, unless it is another by now.
    pub(crate) fn change_place(&self, offset: usize, from: Place, to: Place) -> bool {
        let place = &self.places[offset / HUGE];
        let (from, to) = (from as u8, to as u8);
        place.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// True when private chunks do not lie in the file at first.
    pub(crate) fn has_apart(&self) -> bool {
        !matches!(self.apart, Apart::None)
    }

    /// A device of this slice uses these bytes of guest memory: from now on it is counted how often their
    /// pages travel. What is no memory is ignored.
    pub fn mark_for_device(&self, device: u16, address: u64, bytes: u64, what: DeviceUse) {
        if !self.watched.includes(device) {
            return;
        }
        let Some(last) = bytes.checked_sub(1).and_then(|rest| address.checked_add(rest)) else {
            return;
        };
        let pages = self.used_for(what);
        for offset in (address / PAGE..=last / PAGE).map_while(|gfn| self.offset(Gfn(gfn))) {
            pages.mark(offset / PAGE_SIZE);
        }
    }

    fn used_for(&self, what: DeviceUse) -> &DevicePages {
        match what {
            DeviceUse::Data => &self.device_pages,
            DeviceUse::Frame => &self.frame_pages,
        }
    }

    /// Forgets which pages devices used so far, see [`Self::device_pages`].
    /// From now on only this device's use counts, or that of all.
    pub(crate) fn forget_device_pages(&self, only: Option<u16>) {
        self.watched.set(only);
        self.device_pages.forget();
        self.frame_pages.forget();
    }

    /// The contents of a page came from another slice, or go to one.
    pub(crate) fn moved(&self, gfn: Gfn) {
        if let Some(offset) = self.offset(gfn) {
            let page = offset / PAGE_SIZE;
            if self.device_pages.moved(page) {
                debug!(gfn = gfn.0, "a page that devices use for data travels");
            } else if self.frame_pages.moved(page) {
                debug!(gfn = gfn.0, "a page that devices use for frames travels");
            }
        }
    }

    /// Pages that devices of this slice have used so since these were last forgotten, and how often such a page
    /// travelled since the start. A page that is used for both is one of data.
    #[must_use]
    pub fn device_pages(&self, what: DeviceUse) -> (u64, u64) {
        self.used_for(what).counts()
    }

    /// Bytes of the file and of each mapping.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Host addresses for KVM's memory slots: first guest-physical address, host address, bytes.
    #[must_use]
    pub fn slots(&self) -> Vec<(u64, usize, u64)> {
        let slot = |block: &Block| {
            let bytes = (block.frames.end - block.frames.start) * PAGE;
            (block.frames.start * PAGE, self.guest.start() + block.offset, bytes)
        };
        self.blocks.iter().map(slot).collect()
    }

    /// Byte offset of a frame in the file, or `None` where there is no memory.
    pub(crate) fn offset(&self, gfn: Gfn) -> Option<usize> {
        let block = self.blocks.iter().find(|block| block.frames.contains(&gfn.0))?;
        let index = usize::try_from(gfn.0 - block.frames.start).ok()?;
        Some(block.offset + index * PAGE_SIZE)
    }

    /// Whether a frame has memory.
    #[must_use]
    pub fn has(&self, gfn: Gfn) -> bool {
        self.offset(gfn).is_some()
    }

    /// Address of a frame in the guest mapping.
    pub(crate) fn guest_address(&self, gfn: Gfn) -> Option<u64> {
        let address = self.guest.start() + self.offset(gfn)?;
        u64::try_from(address).ok()
    }

    /// The frame of an address in the guest mapping.
    pub(crate) fn frame_at(&self, address: u64) -> Option<Gfn> {
        let offset = usize::try_from(address).ok()?.checked_sub(self.guest.start())?;
        let block = self.blocks.iter().rev().find(|block| block.offset <= offset)?;
        let gfn = block.frames.start + u64::try_from((offset - block.offset) / PAGE_SIZE).ok()?;
        block.frames.contains(&gfn).then_some(Gfn(gfn))
    }

    /// What may be lent to peers, for pages to be written from and into: the alias. None where private
    /// chunks lie elsewhere: pinned pages of the file would come on top of them.
    #[must_use]
    pub fn lendable(self: &Arc<Self>) -> Option<PageMemory> {
        if self.has_apart() {
            return None;
        }
        let keep = Arc::clone(self);
        // One descriptor more: without it the memory is lent to adapters only.
        // SAFETY: the alias is a mapping of the file that stays until `self` is dropped, and no hole is ever
        // punched into the file. Its pages are only collapsed into huge ones while nobody has pinned
        // them (`crate::huge`; the kernel refuses it for pinned pages too). All access is by pointers.
        let memory = unsafe { PageMemory::new(self.alias.start(), self.bytes, keep) };
        Some(memory.clone().in_file(&self.file).unwrap_or(memory))
    }

    /// The memory was lent: an adapter has pinned all pages.
    pub(crate) fn set_pinned(&self) {
        self.pinned.store(true, Ordering::Release);
        self.backed.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }

    /// True when nobody has stored to the page on this slice, as far as can be told: pinning touches
    /// all pages.
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
        if self.place_at(at) == Place::Apart {
            return self.apart.is_hole(&*self.guest, at);
        }
        if self.is_backed(at) {
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
            self.set_backed(at);
        }
        data != offset
    }

    /// True when the file is known to hold a page at an offset. A page once backed stays so: this process
    /// never punches holes.
    fn is_backed(&self, at: usize) -> bool {
        let page = at / PAGE_SIZE;
        self.backed[page / 64].load(Ordering::Relaxed) & 1 << (page % 64) != 0
    }

    pub(crate) fn set_backed(&self, at: usize) {
        let page = at / PAGE_SIZE;
        if self.is_backed(at) {
            return;
        }
        self.backed[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
    }

    /// The page has contents, in the file.
    pub(crate) fn note_had(&self, gfn: Gfn) {
        if let Some(at) = self.offset(gfn) {
            self.set_backed(at);
        }
    }

    /// True when the contents of a page of another home came here before. Asks no kernel: it is asked for every
    /// fault.
    pub(crate) fn had_come(&self, gfn: Gfn) -> bool {
        self.offset(gfn).is_some_and(|at| self.is_backed(at))
    }

    /// True when the page would be new to the file, as far as is known without asking the kernel.
    pub(crate) fn is_new(&self, gfn: Gfn) -> bool {
        if self.prepared.is_some() {
            return false;
        }
        let at = self.offset(gfn).filter(|at| self.place_at(*at) != Place::Apart);
        at.is_some_and(|at| !self.is_backed(at))
    }

    /// Writes whole pages of neighbouring frames into the file: new ones need neither fault nor zeros so.
    pub(crate) fn write_to_file(&self, first: Gfn, bytes: &[u8]) -> Result<(), Error> {
        let (mut gfn, mut rest) = (first, bytes);
        while !rest.is_empty() {
            let block = self.blocks.iter().find(|block| block.frames.contains(&gfn.0));
            let block = block.ok_or_else(|| Error::from_raw_os_error(libc::EFAULT))?;
            let at = self.offset(gfn).expect("it is in a block");
            let left = usize::try_from(block.frames.end - gfn.0).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(rest.len().min(left.saturating_mul(PAGE_SIZE)));
            self.file.write_all_at(now, u64::try_from(at).map_err(Error::other)?)?;
            (at..at + now.len()).step_by(PAGE_SIZE).for_each(|at| self.set_backed(at));
            (gfn, rest) = (Gfn(block.frames.end), later);
        }
        Ok(())
    }

    fn alias_page(&self, gfn: Gfn) -> *mut u8 {
        let offset = self.offset(gfn).expect("a checked frame");
        let apart = match self.place_at(offset) {
            Place::Apart => self.apart.alias(&*self.guest),
            _ => None,
        };
        ptr::with_exposed_provenance_mut(apart.unwrap_or_else(|| self.alias.start()) + offset)
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
        let in_file = |at: usize| self.place_at(at) != Place::Apart;
        let end = self.offset(last)?;
        let bytes = usize::try_from(pages - 1).ok()? * PAGE_SIZE;
        (end.checked_sub(start) == Some(bytes) && in_file(start) && in_file(end)).then_some(start)
    }

    /// The bytes of neighbouring pages where they lie, if they lie side by side.
    ///
    /// # Safety
    /// Nobody stores to the pages while the bytes are used: they were taken from the guest, or may only be
    /// read, on every slice.
    pub(crate) unsafe fn still(&self, first: Gfn, pages: u64) -> Option<&[u8]> {
        let last = Gfn(first.0 + pages.checked_sub(1)?);
        let bytes = usize::try_from(pages).ok()? * PAGE_SIZE;
        let start = self.alias_page(first);
        // Blocks and chunks that lie elsewhere begin anew: in between nothing does.
        let together = self.alias_page(last) == start.wrapping_add(bytes - PAGE_SIZE);
        // SAFETY: pages of a mapping that lives as long as self; the caller keeps them as they are.
        together.then(|| unsafe { std::slice::from_raw_parts(start, bytes) })
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

    /// Removes the guest's mapping of pages; the data stays in the file.
    pub(crate) fn zap(&self, gfn: Gfn, pages: u64) -> Result<(), Error> {
        let offset = self.offset(gfn).expect("a checked frame");
        let bytes = usize::try_from(pages).map_or(self.bytes, |pages| pages * PAGE_SIZE);
        self.guest.advise(offset, bytes.min(self.bytes - offset), libc::MADV_DONTNEED)
    }

    /// Lets stores to a page of the guest mapping fault, or makes the kernel refuse them.
    pub(crate) fn set_writable(&self, gfn: Gfn, on: bool) -> Result<(), Error> {
        let offset = self.offset(gfn).expect("a checked frame");
        self.guest.set_writable(offset, PAGE_SIZE, on)
    }

    /// Maps backed pages of the guest mapping ahead of the guest's touch.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn populate(&self, gfn: Gfn, pages: usize) -> Result<(), Error> {
        let offset = self.offset(gfn).expect("a checked frame");
        let bytes = (pages * PAGE_SIZE).min(self.bytes - offset);
        self.guest.advise(offset, bytes, libc::MADV_POPULATE_WRITE)
    }
}

/// A memory file without a size.
pub(crate) fn memory_file(name: &CStr, flags: libc::c_uint) -> Result<File, Error> {
    // SAFETY: the name is a C string; the call returns a descriptor or -1.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | flags) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Seals the size of a memory file: whoever is lent it can rely on that.
fn fix_size(file: &File) -> Result<(), Error> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the call takes no pointer.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Places frames in the file such that whole chunks can be huge pages; with the bytes of the file.
fn lay_out(frames: &[Range<u64>]) -> Result<(Vec<Block>, usize), RamError> {
    let mut blocks: Vec<Block> = Vec::with_capacity(frames.len());
    let mut end = 0;
    for range in frames {
        let last = blocks.last();
        if range.is_empty() || last.is_some_and(|last| last.frames.end > range.start) {
            return Err(RamError::Layout);
        }
        let pages = |count: u64| {
            let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(PAGE_SIZE));
            bytes.ok_or(RamError::Layout)
        };
        let offset = end + pages(range.start % CHUNK_PAGES)?;
        blocks.push(Block { frames: range.clone(), offset });
        let last = offset.checked_add(pages(range.end - range.start)?).ok_or(RamError::Layout)?;
        end = last.checked_next_multiple_of(HUGE).ok_or(RamError::Layout)?;
    }
    if blocks.is_empty() { Err(RamError::Layout) } else { Ok((blocks, end)) }
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
        let lent = ram.lendable().unwrap();
        assert_eq!(lent.bytes(), ram.bytes());

        ram.set_pinned();

        assert!(!ram.is_hole(Gfn(600)) && ram.is_untouched(Gfn(600)) && ram.is_zero(Gfn(600)));
        ram.write(Gfn(600), 4095, &[1]);
        assert!(!ram.is_untouched(Gfn(600)));
    }

    #[test]
    fn memory_with_parts_elsewhere_is_not_lent() {
        let frames = from_ref(&(0..1024));
        let ram = GuestRam::with_memory(frames, frames, Memory::Anonymous).unwrap();

        assert!(Arc::new(ram).lendable().is_none());
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
