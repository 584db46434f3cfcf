//! The pages that devices of this slice use, and how often these travel.
//!
//! Rings and payload of a delegated device stay where the queue's vCPU is: once they are there, none of
//! them travels. These counters show it.

use std::sync::atomic::{AtomicU64, Ordering};

/// A bit for each page, and what happened to pages whose bit is set.
#[derive(Debug)]
pub(crate) struct DevicePages {
    bits: Vec<AtomicU64>,
    moves: AtomicU64,
}

impl DevicePages {
    pub(crate) fn new(pages: usize) -> Self {
        let bits = (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { bits, moves: AtomicU64::new(0) }
    }

    /// A device uses the page. Any thread.
    pub(crate) fn mark(&self, page: usize) {
        let (word, bit) = (page / 64, 1 << (page % 64));
        // Nearly always set already: do not take the line from others then.
        if self.bits[word].load(Ordering::Relaxed) & bit == 0 {
            self.bits[word].fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// The page's contents came from another slice, or went to one.
    pub(crate) fn moved(&self, page: usize) {
        if self.bits[page / 64].load(Ordering::Relaxed) & 1 << (page % 64) != 0 {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets which pages devices use: those that they still use are marked when they use them again. What was
    /// counted stays.
    pub(crate) fn forget(&self) {
        for word in &self.bits {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Pages in use, and how often one of them travelled.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let marked =
            self.bits.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones()));
        (marked.sum(), self.moves.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_in_use_count() {
        let pages = DevicePages::new(130);
        pages.moved(129);
        pages.mark(129);
        pages.mark(129);
        pages.moved(129);
        pages.moved(128);

        assert_eq!(pages.counts(), (1, 1));
    }

    #[test]
    fn forgotten_pages_count_once_they_are_used_again() {
        let pages = DevicePages::new(130);
        pages.mark(3);
        pages.moved(3);
        pages.forget();
        pages.moved(3);
        assert_eq!(pages.counts(), (0, 1));

        pages.mark(3);
        pages.moved(3);
        assert_eq!(pages.counts(), (1, 2));
    }
}
