//! Memory that all worker processes share, seen as pages of atomic words, and the barrier on it.
//!
//! Workers are processes and not threads, because on nested paging every hardware walk of a user
//! page-table page counts as a write: threads on two slices would fight for the page tables instead
//! of for the words under test. The area is mapped once, before the workers exist, and used by
//! every test: setting up memory is what costs most over a DSM.
#![expect(unsafe_code, reason = "view of a raw mapping")]
// UNSAFETY: turns one anonymous mapping into a slice of atomics, once.

use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::hint;
use std::io;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::{self, Sharing};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// 64-bit words of a page.
pub(crate) const PAGE_WORDS: usize = PAGE / 8;
/// Words of a cache line.
pub(crate) const LINE_WORDS: usize = 8;
/// Pages of the arena; those never touched cost nothing.
const PAGES: usize = 8192;
/// Pages at the start that hold the variables of a test and are cleared before each.
const VARIABLE_PAGES: usize = 8;
/// First page for bulk data.
pub(crate) const BULK_PAGE: usize = 64;

/// The shared area.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arena {
    words: &'static [AtomicU64],
}

impl Arena {
    /// Maps the area; it is never unmapped.
    pub(crate) fn new() -> io::Result<Self> {
        let base = sys::map(PAGES * PAGE, Sharing::Shared, None)?;
        // SAFETY: the mapping is page-aligned, zeroed, of this length, and lives for ever.
        let words = unsafe { slice::from_raw_parts(base.as_ptr().cast(), PAGES * PAGE_WORDS) };
        Ok(Self { words })
    }

    /// The words of one page.
    pub(crate) fn page(self, page: usize) -> &'static [AtomicU64] {
        &self.words[page * PAGE_WORDS..(page + 1) * PAGE_WORDS]
    }

    /// A run of words from the start of a page on.
    pub(crate) fn words(self, page: usize, count: usize) -> &'static [AtomicU64] {
        &self.words[page * PAGE_WORDS..][..count]
    }

    /// Clears the pages of variables.
    pub(crate) fn clear_variables(self) {
        for word in self.words(0, VARIABLE_PAGES * PAGE_WORDS) {
            // Read first: a page that is clear already need not be fetched for writing.
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Start address of a page, for the calls that take ranges.
    pub(crate) fn address(self, page: usize) -> NonNull<u8> {
        NonNull::from(&self.words[page * PAGE_WORDS]).cast()
    }
}

/// Private anonymous memory, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    base: NonNull<u8>,
    pages: usize,
}

impl Scratch {
    /// Maps that many pages.
    pub(crate) fn new(pages: usize) -> io::Result<Self> {
        Ok(Self { base: sys::map(pages * PAGE, Sharing::Private, None)?, pages })
    }

    /// The first word of a page.
    pub(crate) fn first_word(&self, page: usize) -> &AtomicU64 {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        // SAFETY: inside the mapping, checked above.
        let word = unsafe { self.base.add(page * PAGE) };
        // SAFETY: page-aligned and mapped as long as self lives.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping outlives self. A failure only leaks the range.
        let _ = unsafe { sys::unmap(self.base, self.pages * PAGE) };
    }
}

/// Looks between two yields. A yield runs the scheduler, whose data other CPUs look at too; over
/// shared memory that is dear, and a CPU seldom has anything else to run.
const SPINS: u32 = 1 << 17;

/// Spins until the condition holds, letting other threads of the same CPU run now and then.
///
/// A hang ends by the runner's time limit, which kills the process.
pub(crate) fn spin_until(mut done: impl FnMut() -> bool) {
    loop {
        for _ in 0..SPINS {
            if done() {
                return;
            }
            hint::spin_loop();
        }
        sys::yield_cpu();
    }
}

/// Time stamp counter, ordered against the loads before and the accesses after it.
pub(crate) fn tsc() -> u64 {
    // SAFETY: LFENCE exists on every x86-64 CPU.
    unsafe { _mm_lfence() };
    // SAFETY: RDTSC exists on every x86-64 CPU and Linux leaves it enabled.
    let now = unsafe { _rdtsc() };
    // SAFETY: as above.
    unsafe { _mm_lfence() };
    now
}

/// Barrier of `n` workers on page 0 of the arena, used over and over without a reset.
///
/// The last to come sets a common start time a little ahead, so that the others, who learn of it
/// one page transfer later, do not find the race already run. How late they were is told with the
/// next arrival (the page is fetched for writing then anyway) and sets how far ahead the start is.
#[derive(Debug)]
pub(crate) struct Barrier {
    page: &'static [AtomicU64],
    workers: u64,
    generation: u64,
    late: u64,
}

const ARRIVED: usize = 0;
const OPEN: usize = 1;
const START: usize = 2;
const LATEST: usize = 3;
/// The start is never further ahead than this many cycles (some ms), however late anyone was.
const MOST_AHEAD: u64 = 10_000_000;

impl Barrier {
    /// A barrier that this many workers use. The page must be clear.
    pub(crate) fn new(arena: Arena, workers: usize) -> Self {
        let workers = u64::try_from(workers).unwrap_or(u64::MAX);
        Self { page: arena.page(0), workers, generation: 0, late: 0 }
    }

    /// Waits for all; what was written before is visible to all afterwards.
    pub(crate) fn wait(&mut self) {
        self.generation += 1;
        let generation = self.generation;
        if self.late > self.page[LATEST].load(Ordering::Relaxed) {
            self.page[LATEST].store(self.late, Ordering::Relaxed);
        }
        let arrived = self.page[ARRIVED].fetch_add(1, Ordering::AcqRel) + 1;
        if arrived == self.workers * generation {
            let ahead = (2 * self.page[LATEST].load(Ordering::Relaxed)).min(MOST_AHEAD);
            self.page[START].store(tsc().wrapping_add(ahead), Ordering::Relaxed);
            self.page[OPEN].store(generation, Ordering::Release);
        } else {
            spin_until(|| self.page[OPEN].load(Ordering::Acquire) >= generation);
        }
        self.wait_for_start();
    }

    fn wait_for_start(&mut self) {
        let start = self.page[START].load(Ordering::Relaxed);
        let now = tsc();
        if now >= start {
            self.late = self.late.max((now - start).min(MOST_AHEAD / 2));
        } else if start - now <= MOST_AHEAD {
            // Bounded by the cap even when the counters of the hosts disagree.
            while tsc() < start {
                hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barrier_of_one_worker_opens_at_once() {
        let arena = Arena::new().unwrap();
        let mut barrier = Barrier::new(arena, 1);
        barrier.wait();
        barrier.wait();
        assert_eq!(arena.page(0)[OPEN].load(Ordering::Relaxed), 2);
    }

    #[test]
    fn variables_after_clear_read_zero() {
        let arena = Arena::new().unwrap();
        arena.page(3)[5].store(7, Ordering::Relaxed);
        arena.clear_variables();
        assert_eq!(arena.page(3)[5].load(Ordering::Relaxed), 0);
    }
}
