//! A kernel of state machines below the guest's mapping, for the simulator.
//!
//! Memory is real: the file and the alias are those of a VM, and so is private memory of the guest mapping. What is
//! modelled is what decides whether a vCPU reaches it: the parts of the address space (VMAs), the page tables and
//! userfaultfd. It refuses what Linux refuses (`mm/userfaultfd.c`, `fs/userfaultfd.c`, `mm/mprotect.c`, Linux 6.18);
//! `conformance` compares the two. Memory of huge pages (hugetlbfs) is not modelled: there is none.
//!
//! ```text
//!   page:  none --touch, or UFFDIO_CONTINUE--> mapped --MADV_DONTNEED, mmap, a huge page that is split--> none
//!          (either may be write-protected: a page that is none keeps a marker, as in memory files)
//!   chunk: mapped page by page --MADV_COLLAPSE--> one huge page --access taken from a part of it--> split
//! ```
//!
//! Other threads run between the calls: [`FakeKernel::set_between`] is given what they do then. A call itself is one
//! step, as for who looks at page tables under their lock.
#![expect(unsafe_code, reason = "words of guest memory")]
// UNSAFETY: guest memory is reached by address, through atomics.
#![cfg_attr(
    not(feature = "simulate"),
    expect(unreachable_pub, dead_code, reason = "the simulator has no other way in")
)]

mod span;
pub(super) mod uffd;

use super::guest_mapping::GuestMapping;
use super::sizes::{HUGE, PAGE};
use super::span::Span;
use super::userfaultfd::{Fault, MODE_MINOR, MODE_MISSING, MODE_WP};
use std::fs::File;
use std::io::Error;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr::with_exposed_provenance;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE_BYTES: usize = 4096;
const CHUNK: usize = HUGE / PAGE_BYTES;
/// Pages that a load maps at most where nobody watches (`fault_around_bytes`).
const AROUND: usize = 16;

/// What other threads do between two calls. It is not called while it runs.
pub type Between = Box<dyn FnMut() + Send>;

/// What lies behind a part of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    Nothing,
    File,
    Anonymous,
}

/// What neighbours must have in common to be one part of the address space (VMA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    backing: Backing,
    /// Modes of `UFFDIO_REGISTER`, 0 for none.
    modes: u64,
    /// Which userfaultfd watches it; 0 if none does.
    uffd: usize,
    writable: bool,
}

/// A page of the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    part: Part,
    mapped: bool,
    /// Write-protected by userfaultfd. Without a mapping: the marker of it.
    wp: bool,
}

/// A thread that waits for a page.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: usize,
    page: usize,
    /// Which userfaultfd is told.
    uffd: usize,
    fault: Fault,
    is_read: bool,
}

/// What becomes of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It is done.
    Done,
    /// The thread waits until userfaultfd wakes it; then it tries again.
    Waits,
    /// The mapping refuses it (`SIGSEGV`, or `EFAULT` for KVM).
    Refused,
}

#[derive(Debug)]
struct State {
    pages: Vec<Page>,
    /// Chunks that are mapped by one huge page.
    huge: Vec<bool>,
    /// Chunks that are one in the file.
    huge_in_file: Vec<bool>,
    waiters: Vec<Waiter>,
    woken: Vec<usize>,
    /// Of so many calls one is told to try again; 0 for none.
    again: u64,
    random: u64,
}

/// The kernel below one guest mapping.
#[derive(Clone)]
pub struct FakeKernel(Arc<Inner>);

struct Inner {
    span: Span,
    file: File,
    state: Mutex<State>,
    /// Pages that the file is known to have: none is ever punched out.
    in_file: Vec<AtomicBool>,
    between: Mutex<Option<Between>>,
    /// Number of the next userfaultfd.
    uffds: AtomicUsize,
}

impl std::fmt::Debug for FakeKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeKernel").field("start", &self.0.span.start()).finish_non_exhaustive()
    }
}

fn refusal(errno: libc::c_int) -> Error {
    Error::from_raw_os_error(errno)
}

impl State {
    fn one_in(&mut self, of: u64) -> bool {
        // SplitMix64, as the simulator's.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        of > 0 && (mixed ^ (mixed >> 31)).is_multiple_of(of)
    }

    /// The address space is changing.
    fn is_busy(&mut self) -> bool {
        let again = self.again;
        self.one_in(again)
    }

    /// Splits the huge pages of which less than the whole is in a range. Those of files are not mapped then.
    fn split(&mut self, pages: &Range<usize>, also_whole: bool) {
        for chunk in pages.start / CHUNK..pages.end.div_ceil(CHUNK) {
            let all = chunk * CHUNK..(chunk + 1) * CHUNK;
            let is_whole = pages.start <= all.start && all.end <= pages.end;
            if self.huge.get(chunk) == Some(&true) && (also_whole || !is_whole) {
                self.huge[chunk] = false;
                self.pages[all].iter_mut().for_each(|page| page.mapped = false);
            }
        }
    }

    /// What is mapped there goes; markers stay, if they are to.
    fn unmap(&mut self, pages: &Range<usize>, markers: bool) {
        self.split(pages, true);
        for page in &mut self.pages[pages.clone()] {
            page.mapped = false;
            page.wp &= markers && page.part.backing == Backing::File;
        }
    }

    /// Another userfaultfd than this one watches a part of it.
    fn has_other(&self, pages: &Range<usize>, uffd: usize) -> bool {
        let parts = self.pages[pages.clone()].iter().map(|page| page.part);
        parts.into_iter().any(|part| part.modes != 0 && part.uffd != uffd)
    }

    fn is_anonymous(&self, page: usize) -> bool {
        self.pages[page].part.backing == Backing::Anonymous
    }

    fn wake(&mut self, pages: &Range<usize>) {
        let woken = self.waiters.extract_if(.., |waiter| pages.contains(&waiter.page));
        self.woken.extend(woken.map(|waiter| waiter.id));
    }

    fn set_part(&mut self, pages: &Range<usize>, change: impl Fn(&mut Part)) {
        self.pages[pages.clone()].iter_mut().for_each(|page| change(&mut page.part));
    }
}

impl FakeKernel {
    /// Over real memory, not watched. One in `again` requests finds the address space changing (`EAGAIN`); none if 0.
    pub(crate) fn new(span: Span, file: &File, seed: u64, again: u64) -> Result<Self, Error> {
        let page = Page {
            part: Part { backing: Backing::Nothing, modes: 0, uffd: 0, writable: true },
            mapped: false,
            wp: false,
        };
        let bytes = usize::try_from(file.metadata()?.len()).map_err(Error::other)?;
        let state = State {
            pages: vec![page; bytes / PAGE_BYTES],
            huge: vec![false; bytes / HUGE],
            huge_in_file: vec![false; bytes / HUGE],
            waiters: Vec::new(),
            woken: Vec::new(),
            again,
            random: seed,
        };
        let in_file = (0..bytes / PAGE_BYTES).map(|_| AtomicBool::new(false)).collect();
        let (state, between, file) = (Mutex::new(state), Mutex::new(None), file.try_clone()?);
        let uffds = AtomicUsize::new(0);
        Ok(Self(Arc::new(Inner { span, file, state, in_file, between, uffds })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what other threads do between the calls.
    pub fn set_between(&self, between: Option<Between>) {
        *self.0.between.lock().unwrap_or_else(PoisonError::into_inner) = between;
    }

    fn others_run(&self) {
        let slot = || self.0.between.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut between) = slot().take() else { return };
        between();
        slot().get_or_insert(between);
    }

    fn pages_at(&self, offset: usize, bytes: usize) -> Range<usize> {
        offset / PAGE_BYTES..(offset + bytes) / PAGE_BYTES
    }

    /// Whether the memory file has a page that is mapped from it.
    fn file_has(&self, page: usize) -> bool {
        if self.0.in_file[page].load(Ordering::Relaxed) {
            return true;
        }
        let mut there = [0];
        // Of a shared mapping that has no page tables for it, mincore tells what the file has.
        let known = self.0.span.residency(page * PAGE_BYTES, &mut there);
        let has = known.is_ok() && there[0] & 1 != 0;
        self.0.in_file[page].store(has, Ordering::Relaxed);
        has
    }

    /// A thread touches a page of the mapping. `id` names it among those that wait; `thread` is what userfaultfd tells
    /// of it.
    pub fn touch(&self, id: usize, thread: u32, page: usize, write: bool) -> Touch {
        let mut state = self.state();
        let at = state.pages[page];
        let has = at.part.backing == Backing::File && self.file_has(page);
        if at.part.backing == Backing::Nothing || write && !at.part.writable {
            return Touch::Refused;
        }
        let mode = match (at.mapped, at.part.backing) {
            (true, _) if write && at.wp => MODE_WP,
            (true, _) => return Touch::Done,
            (false, Backing::File) if has => MODE_MINOR,
            (false, _) => MODE_MISSING,
        };
        if at.part.modes & mode == 0 && !at.mapped {
            if at.part.backing == Backing::File && !has {
                self.back(page);
            }
            state.pages[page].mapped = true;
            if at.part.backing == Backing::File && !write {
                self.map_around(&mut state, page);
            }
            if write && at.wp {
                drop(state);
                return self.touch(id, thread, page, write);
            }
            return Touch::Done;
        }
        let address = u64::try_from(self.0.span.start() + page * PAGE_BYTES).expect("an address");
        let fault = Fault { address, write, thread };
        let uffd = at.part.uffd;
        state.waiters.push(Waiter { id, page, uffd, fault, is_read: false });
        Touch::Waits
    }

    /// A load that nobody watches maps what the file has around the page as well (`do_fault_around`, `mm/memory.c`).
    fn map_around(&self, state: &mut State, page: usize) {
        let part = state.pages[page].part;
        if part.modes & (MODE_WP | MODE_MINOR) != 0 {
            return;
        }
        let alike = |at: &usize| state.pages.get(*at).is_some_and(|other| other.part == part);
        let before = (page / AROUND * AROUND..page).rev().take_while(alike).count();
        let first = page - before;
        // As many from there on, but not beyond the page table.
        let end = (first + AROUND).min(page / CHUNK * CHUNK + CHUNK);
        let around: Vec<usize> = (first..end).take_while(alike).collect();
        for at in around {
            if self.file_has(at) {
                state.pages[at].mapped = true;
            }
        }
    }

    /// Threads that were woken since this was called last.
    pub fn take_woken(&self) -> Vec<usize> {
        std::mem::take(&mut self.state().woken)
    }

    /// True when this userfaultfd, by the order in which they were made, has a fault to tell.
    #[must_use]
    pub fn has_faults(&self, uffd: usize) -> bool {
        self.state().waiters.iter().any(|waiter| !waiter.is_read && waiter.uffd == uffd)
    }

    /// Whether a thread could load from a page now, and store to it.
    #[must_use]
    pub fn access(&self, page: usize) -> (bool, bool) {
        let at = self.state().pages[page];
        (at.mapped, at.mapped && !at.wp && at.part.writable)
    }

    /// A word of a page, for a thread whose touch is done.
    fn word(&self, page: usize, word: usize) -> &AtomicU64 {
        assert!(page < self.state().pages.len() && word < PAGE_BYTES / 8, "a word of the mapping");
        let address = self.0.span.start() + page * PAGE_BYTES + word * 8;
        // SAFETY: inside the span, which lives as long as self; aligned; all access is by atomics or by system calls.
        unsafe { &*with_exposed_provenance::<AtomicU64>(address) }
    }

    /// Loads a word. The caller's touch of the page is done.
    #[must_use]
    pub fn load(&self, page: usize, word: usize) -> u64 {
        self.word(page, word).load(Ordering::Relaxed)
    }

    /// Stores a word. The caller's touch of the page is done.
    pub fn store(&self, page: usize, word: usize, value: u64) {
        self.word(page, word).store(value, Ordering::Relaxed);
    }

    /// Whether a page is mapped, and whether it is write-protected; for comparison with `/proc/self/pagemap`.
    #[cfg(test)]
    pub(crate) fn page(&self, page: usize) -> (bool, bool) {
        let at = self.state().pages[page];
        (at.mapped, at.wp)
    }

    /// Whether userfaultfd watches any of these pages.
    #[cfg(test)]
    pub(crate) fn is_watched(&self, pages: &Range<u64>) -> bool {
        let state = self.state();
        let mut all = pages.clone().map(|page| usize::try_from(page).expect("a page"));
        all.any(|page| state.pages[page].part.modes != 0)
    }

    /// Pages get these contents, whoever maps them.
    fn write(&self, page: usize, bytes: &[u8]) {
        for (number, word) in bytes.chunks_exact(8).enumerate() {
            let value = u64::from_ne_bytes(word.try_into().expect("a word"));
            let (page, word) = (page + number / (PAGE_BYTES / 8), number % (PAGE_BYTES / 8));
            let address = self.0.span.start() + page * PAGE_BYTES + word * 8;
            // SAFETY: as in `word`; the caller has checked the range.
            let word = unsafe { &*with_exposed_provenance::<AtomicU64>(address) };
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The file gets a page of zeros.
    fn back(&self, page: usize) {
        let offset = u64::try_from(page).expect("a page") * PAGE;
        // A byte that is there already is none of these pages'.
        let written = self.0.file.write_all_at(&[0], offset);
        written.expect("the memory file takes a page");
    }
}
