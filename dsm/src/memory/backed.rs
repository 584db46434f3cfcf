//! Which pages the memory file is known to hold: a bit for each. A bit saves a system call, and is never taken back,
//! for no hole is ever punched into the file.

use std::sync::atomic::{AtomicU64, Ordering};
use wire::PAGE_SIZE;

/// Pages of the memory file that are known to be backed, by byte offset.
#[derive(Debug)]
pub(crate) struct BackedPages(Vec<AtomicU64>);

impl BackedPages {
    /// None, of a file of so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let words = (bytes / PAGE_SIZE).div_ceil(64);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn contains(&self, at: usize) -> bool {
        let page = at / PAGE_SIZE;
        self.0[page / 64].load(Ordering::Relaxed) & 1 << (page % 64) != 0
    }

    pub(crate) fn insert(&self, at: usize) {
        let page = at / PAGE_SIZE;
        if self.contains(at) {
            return;
        }
        self.0[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
    }

    /// All pages are backed.
    pub(crate) fn insert_all(&self) {
        self.0.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    }
}
