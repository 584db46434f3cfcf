//! What an entry of a page table says.
//!
//! Formats: AMD APM vol. 2, 5.3 (long-mode page translation); Intel SDM vol. 3, 5.5.

use wire::{Gfn, Half, Level, Table};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// Accessed and dirty bits of a table entry: the processor sets them, on each slice for itself.
pub const ACCESSED_DIRTY: u64 = 0x60;
/// Dirty.
pub const DIRTY: u64 = 0x40;

/// The frame that an entry points to, a table or a page; none if it is not present.
#[must_use]
pub fn target(entry: u64) -> Option<Gfn> {
    (entry & PRESENT != 0).then_some(Gfn((entry & FRAME) >> 12))
}

/// The table that an entry of a table of this level points to; none if it maps a page or nothing.
#[must_use]
pub fn child(level: Level, entry: u64) -> Option<Gfn> {
    if is_leaf(level, entry) { None } else { target(entry) }
}

/// True when a processor may write through an entry, as far as this entry goes.
#[must_use]
pub fn permits_write(entry: u64) -> bool {
    entry & (PRESENT | WRITABLE) == PRESENT | WRITABLE
}

/// True when a processor may write through this entry and would set its dirty bit.
///
/// It would set it in its own slice's replica, where the kernel on another slice does not see it: a
/// page that was written would count as clean there, and its contents could be dropped. So such an
/// entry of a process's replicated table gets its dirty bit before another slice can walk through
/// it. Kernels may take a clean page for a dirty one, never the reverse: it costs a write-back.
/// (Linux makes most such entries dirty itself; read faults on shared memory and `MADV_FREE` do
/// not.) The kernel's own entries are dirty as Linux makes them, and nobody looks at the bit there.
/// Intel SDM vol. 3, 5.8; AMD APM vol. 2, 5.4.2.
#[must_use]
pub fn permits_clean_write(table: Table, entry: u64) -> bool {
    let leaf = is_leaf(table.level, entry);
    table.half == Half::User && leaf && permits_write(entry) && entry & DIRTY == 0
}

/// True when an entry of a table of this level would map a page, were it present. The bit that says
/// so is reserved in roots.
fn is_leaf(level: Level, entry: u64) -> bool {
    match level.get() {
        1 => true,
        2 | 3 => entry & LARGE != 0,
        _ => false,
    }
}

/// Whether an entry points to a table as Linux writes it (`_PAGE_TABLE`): present, writable, user or
/// not; accessed and dirty may be set.
pub(crate) fn is_linux_table(entry: u64) -> bool {
    matches!(entry & 0xfff & !ACCESSED_DIRTY, 0x3 | 0x7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pages_are_no_tables_but_in_roots_the_bit_means_nothing() {
        let large = 0x5000 | LARGE | PRESENT;
        assert_eq!(child(Level::ROOT, large), Some(Gfn(5)));
        let below = Level::ROOT.below().unwrap();
        assert_eq!(child(below, large), None);
        assert_eq!(child(below, large & !LARGE), Some(Gfn(5)));
        assert_eq!(child(below, large & !LARGE & !PRESENT), None);
        assert_eq!(target(large), Some(Gfn(5)));
    }

    #[test]
    fn lowest_level_points_to_pages_only() {
        let lowest = Level::ROOT.below().unwrap().below().unwrap().below().unwrap();
        assert_eq!(lowest.get(), 1);
        assert_eq!(child(lowest, 0x5003), None);
        let table = Table { level: lowest, half: Half::User };
        assert!(permits_clean_write(table, 0x5003));
        assert!(!permits_clean_write(table, 0x5001));
        assert!(!permits_clean_write(table, 0x5003 | DIRTY));
    }
}
