//! The pages that devices of this slice use, and how often these travel.
//!
//! Rings and payload of a delegated device stay where the queue's vCPU is: once they are there, none of
//! them travels. These counters show it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What devices use a page for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// Rings and payload.
    Data,
    /// Headers and status of requests, which a driver keeps where others of its own data are.
    Frame,
}

/// Whose use counts.
#[derive(Debug, Default)]
pub(crate) struct DeviceFilter(AtomicU32);

impl DeviceFilter {
    /// Only this device's from now on; without one, that of all.
    pub(crate) fn set(&self, device: Option<u16>) {
        self.0.store(device.map_or(0, |device| u32::from(device) + 1), Ordering::Relaxed);
    }

    /// Whether this device's use counts. Any thread.
    pub(crate) fn includes(&self, device: u16) -> bool {
        let only = self.0.load(Ordering::Relaxed);
        only == 0 || only == u32::from(device) + 1
    }
}

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

    /// The page's contents came from another slice, or went to one. True when the page is in use.
    pub(crate) fn moved(&self, page: usize) -> bool {
        let used = self.bits[page / 64].load(Ordering::Relaxed) & 1 << (page % 64) != 0;
        if used {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        used
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

/// What devices of this slice use, by page of the memory file.
#[derive(Debug)]
pub(crate) struct DeviceUses {
    data: DevicePages,
    frames: DevicePages,
    filter: DeviceFilter,
}

impl DeviceUses {
    /// Nothing yet, of so many pages.
    pub(crate) fn new(pages: usize) -> Self {
        let (data, frames) = (DevicePages::new(pages), DevicePages::new(pages));
        Self { data, frames, filter: DeviceFilter::default() }
    }

    /// Whether this device's use counts. Any thread.
    pub(crate) fn includes(&self, device: u16) -> bool {
        self.filter.includes(device)
    }

    pub(crate) fn of(&self, what: DeviceUse) -> &DevicePages {
        match what {
            DeviceUse::Data => &self.data,
            DeviceUse::Frame => &self.frames,
        }
    }

    /// Forgets which pages devices use. From now on only this device's use counts, or that of all.
    pub(crate) fn forget(&self, only: Option<u16>) {
        self.filter.set(only);
        self.data.forget();
        self.frames.forget();
    }

    /// The contents of a page travel: what it is in use for. A page that is used for both is one of data.
    pub(crate) fn moved(&self, page: usize) -> Option<DeviceUse> {
        if self.data.moved(page) {
            Some(DeviceUse::Data)
        } else {
            self.frames.moved(page).then_some(DeviceUse::Frame)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_of_all_devices_counts_or_that_of_one() {
        let filter = DeviceFilter::default();
        assert!([0, 7, u16::MAX].iter().all(|device| filter.includes(*device)));
        filter.set(Some(0));
        assert!(filter.includes(0) && !filter.includes(1) && !filter.includes(u16::MAX));
        filter.set(None);
        assert!(filter.includes(1));
    }

    #[test]
    fn only_pages_in_use_count() {
        let pages = DevicePages::new(130);
        assert!(!pages.moved(129));
        pages.mark(129);
        pages.mark(129);
        assert!(pages.moved(129));
        assert!(!pages.moved(128));

        assert_eq!(pages.counts(), (1, 1));
    }

    #[test]
    fn forgotten_pages_count_once_they_are_used_again() {
        let pages = DevicePages::new(130);
        pages.mark(3);
        assert!(pages.moved(3));
        pages.forget();
        assert!(!pages.moved(3));
        assert_eq!(pages.counts(), (0, 1));

        pages.mark(3);
        assert!(pages.moved(3));
        assert_eq!(pages.counts(), (1, 2));
    }
}
