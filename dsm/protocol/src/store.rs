//! The port to page contents and mappings.

use wire::{Access, Entry, Gfn, Half, Table};

/// What became of a merged entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// The entry was taken.
    Applied,
    /// This slice, or a third one, changed the same entry at the same time.
    Conflict,
}

/// Accessed and dirty bits of a table entry: the processor sets them, on each slice for itself.
pub const ACCESSED_DIRTY: u64 = 0x60;
/// Dirty.
pub const DIRTY: u64 = 0x40;
const PRESENT_WRITABLE: u64 = 0x3;
const LARGE: u64 = 0x80;

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
    let leaf = match table.level.get() {
        1 => true,
        2 | 3 => entry & LARGE != 0,
        _ => false,
    };
    table.half == Half::User && leaf && entry & (PRESENT_WRITABLE | DIRTY) == PRESENT_WRITABLE
}

/// Contents and mappings of the pages of one slice. The engine implements it with userfaultfd and
/// two mappings of one file, the simulator and the models with arrays.
///
/// Calls happen in program order within a step, before the step's effects are carried out. The body
/// of a `Data` or `Offer` that a step sends is read after the step; the protocol leaves such a page
/// unmapped or read-only until then.
pub trait PageStore {
    /// Copies the body of the message in hand into the page.
    fn fill(&mut self, gfn: Gfn);
    /// Gives the vCPUs this access (`Read` or `Write`) and wakes those that wait for the page.
    fn map(&mut self, gfn: Gfn, access: Access);
    /// Takes write access away. Nobody stores to the page after it returns.
    fn protect(&mut self, gfn: Gfn);
    /// Takes all access away. Nobody loads or stores after it returns.
    fn unmap(&mut self, gfn: Gfn);
    /// Makes a twin: a copy of the page as it is now, after [`Self::set_dirty`]. Nobody can store to
    /// the page meanwhile.
    fn snapshot(&mut self, gfn: Gfn, table: Table);
    /// Sets the dirty bit of each entry that [`permits_clean_write`]. Nobody can store to the page
    /// meanwhile.
    fn set_dirty(&mut self, gfn: Gfn);
    /// True when an entry of the page, as it is now, points to the child.
    fn points_to(&self, gfn: Gfn, child: Gfn) -> bool;
    /// Appends each entry in which the page differs from its twin, and brings the twin up to date.
    /// True when some entry [`permits_clean_write`].
    fn changes(&mut self, gfn: Gfn, out: &mut Vec<Entry>) -> bool;
    /// Takes one entry of another slice into page and twin. A conflict is reported when the page
    /// differed from the twin there in more than accessed and dirty bits (the local value stays),
    /// or when the twin was not what the sender started from (the sender's value is taken).
    fn merge(&mut self, entry: &Entry) -> Merge;
    /// Drops the twin.
    fn forget(&mut self, gfn: Gfn);
    /// One entry of the twin.
    fn twin_entry(&self, gfn: Gfn, index: u16) -> u64;
    /// Calls `visit` with each non-zero entry of the twin: index and value.
    fn twin_entries(&self, gfn: Gfn, visit: &mut dyn FnMut(u16, u64));
}
