//! Twins: replicas of page tables as they were at the last flush. A flush sends the entries in which page and twin
//! differ.

use dsm_protocol::entry::{ACCESSED_DIRTY, DIRTY, permits_clean_write};
use dsm_protocol::{Entry, Gfn, Merge, Table};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries compared at a time.
const ROW: usize = 8;

/// The entries of a table page, which vCPUs may change at any time.
type Page = [AtomicU64; 512];

#[derive(Debug)]
struct Twin {
    table: Table,
    entries: Box<[u64; 512]>,
}

/// The twins of all replicas that this slice has.
#[derive(Debug, Default)]
pub(crate) struct Twins(BTreeMap<Gfn, Twin>);

impl Twins {
    /// True when a page of a range of frames has one.
    pub(crate) fn any_in(&self, frames: &Range<u64>) -> bool {
        self.0.range(Gfn(frames.start)..Gfn(frames.end)).next().is_some()
    }

    /// Makes the twin of a page as it is now.
    pub(crate) fn snapshot(&mut self, gfn: Gfn, table: Table, page: &Page) {
        let entries = Box::new(std::array::from_fn(|at| page[at].load(Ordering::Relaxed)));
        self.0.insert(gfn, Twin { table, entries });
    }

    /// Sets the dirty bit of each entry that permits a clean write, in page and twin.
    pub(crate) fn set_dirty(&mut self, gfn: Gfn, page: &Page) {
        let Some(Twin { table, entries }) = self.0.get_mut(&gfn) else { return };
        for (entry, twin) in page.iter().zip(entries.iter_mut()) {
            let value = entry.load(Ordering::Acquire);
            if permits_clean_write(*table, value) {
                // Nobody else stores here now.
                entry.fetch_or(DIRTY, Ordering::AcqRel);
            }
            // What was clean stays the only difference that the next comparison need not see.
            if permits_clean_write(*table, *twin) {
                *twin |= DIRTY;
            }
        }
    }

    /// The entries as they were when they were last compared.
    pub(crate) fn page(&self, gfn: Gfn) -> Option<&[u64; 512]> {
        Some(&self.0.get(&gfn)?.entries)
    }

    /// Appends the entries in which a page differs from its twin, and brings the twin up to date. True when an entry
    /// permits a clean write.
    pub(crate) fn changes(&mut self, gfn: Gfn, page: &Page, out: &mut Vec<Entry>) -> bool {
        let Some(Twin { table, entries }) = self.0.get_mut(&gfn) else { return false };
        let mut clean = false;
        let rows = page.chunks_exact(ROW).zip(entries.chunks_exact_mut(ROW));
        for (row, (page, twin)) in rows.enumerate() {
            // Hardly any entry changes between two flushes: look at a row at a time.
            let pairs = page.iter().zip(twin.iter());
            if pairs.fold(0, |all, (new, old)| all | (new.load(Ordering::Relaxed) ^ old)) == 0 {
                continue;
            }
            for (column, (entry, old)) in page.iter().zip(twin).enumerate() {
                let new = entry.load(Ordering::Acquire);
                clean |= permits_clean_write(*table, new);
                if (new ^ *old) & !ACCESSED_DIRTY != 0 {
                    let index = u16::try_from(row * ROW + column).expect("512 entries");
                    out.push(Entry { gfn, index, old: *old, new });
                }
                *old = new;
            }
        }
        clean
    }

    /// True when a page and its twin differ in accessed and dirty bits at most; false without a twin.
    pub(crate) fn is_flushed(&self, gfn: Gfn, page: &Page) -> bool {
        let Some(Twin { entries, .. }) = self.0.get(&gfn) else { return false };
        let same = |(entry, twin): (&AtomicU64, &u64)| {
            (entry.load(Ordering::Acquire) ^ twin) & !ACCESSED_DIRTY == 0
        };
        page.iter().zip(entries.iter()).all(same)
    }

    /// Takes one entry of another slice into page and twin, see [`PageStore::merge`](dsm_protocol::PageStore::merge).
    pub(crate) fn merge(&mut self, entry: &Entry, page: &Page) -> Merge {
        let at = usize::from(entry.index);
        let Some(twin) = self.0.get_mut(&entry.gfn) else { return Merge::Applied };
        let differ = |a: u64, b: u64| (a ^ b) & !ACCESSED_DIRTY != 0;
        let before = std::mem::replace(&mut twin.entries[at], entry.new);
        loop {
            let now = page[at].load(Ordering::Acquire);
            if differ(now, before) {
                return if differ(now, entry.new) { Merge::Conflict } else { Merge::Applied };
            }
            let swap =
                page[at].compare_exchange(now, entry.new, Ordering::AcqRel, Ordering::Relaxed);
            if swap.is_ok() {
                break;
            }
        }
        if differ(before, entry.old) && differ(before, entry.new) {
            return Merge::Conflict;
        }
        Merge::Applied
    }

    pub(crate) fn forget(&mut self, gfn: Gfn) {
        self.0.remove(&gfn);
    }

    /// One entry of a twin; 0 where there is none.
    pub(crate) fn entry(&self, gfn: Gfn, index: u16) -> u64 {
        self.0.get(&gfn).map_or(0, |twin| twin.entries[usize::from(index)])
    }

    /// Calls `visit` with index and value of each entry of a twin that is not 0.
    pub(crate) fn entries(&self, gfn: Gfn, visit: &mut dyn FnMut(u16, u64)) {
        let Some(twin) = self.0.get(&gfn) else { return };
        for (index, value) in (0u16..).zip(twin.entries.iter()) {
            if *value != 0 {
                visit(index, *value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_flushed_while_it_differs_in_accessed_and_dirty_bits_alone() {
        let (gfn, mut twins) = (Gfn(4), Twins::default());
        let page: Page = std::array::from_fn(|at| AtomicU64::new(at as u64));
        assert!(!twins.is_flushed(gfn, &page), "there is no twin");
        twins.snapshot(gfn, Table::ROOT, &page);
        page[511].fetch_xor(ACCESSED_DIRTY, Ordering::Relaxed);
        assert!(twins.is_flushed(gfn, &page));
        page[511].fetch_xor(1 << 12, Ordering::Relaxed);
        assert!(!twins.is_flushed(gfn, &page));
        let mut changes = Vec::new();
        twins.changes(gfn, &page, &mut changes);
        assert!(twins.is_flushed(gfn, &page) && changes.len() == 1);
    }
}
