//! The port to page contents and mappings.

use wire::{Access, Entry, Gfn, Table};

/// What became of a merged entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// The entry was taken.
    Applied,
    /// This slice, or a third one, changed the same entry at the same time.
    Conflict,
}

/// Contents and mappings of the pages of one slice. The engine implements it with userfaultfd and
/// two mappings of one file, the simulator and the models with arrays.
///
/// Calls happen in program order within a step, before the step's effects are carried out. The body
/// of a `Data` or `Offer` that a step sends is read after the step; the protocol leaves such a page
/// unmapped or read-only until then.
///
/// `protect` and `unmap` may be put off until [`Self::settle`], so that neighbours cost one system
/// call. A step that took access away ends with it, and nothing that looks at the contents of such a
/// page comes before it.
pub trait PageStore {
    /// Copies the body of the message in hand into the page.
    fn fill(&mut self, gfn: Gfn);
    /// Gives the vCPUs this access (`Read` or `Write`) and wakes those that wait for the page.
    fn map(&mut self, gfn: Gfn, access: Access);
    /// Takes write access away. Nobody stores to the page after the next [`Self::settle`].
    fn protect(&mut self, gfn: Gfn);
    /// Takes all access away. Nobody loads or stores after the next [`Self::settle`].
    fn unmap(&mut self, gfn: Gfn);
    /// Ends what was put off.
    fn settle(&mut self);
    /// A hash of the page's contents as they are now.
    fn fingerprint(&self, gfn: Gfn) -> u64;
    /// True when nobody has ever touched the page. Its first reader then gets it for writing: nobody
    /// else reads there soon.
    fn is_untouched(&self, gfn: Gfn) -> bool;
    /// Makes a twin: a copy of the page as it is now, after [`Self::set_dirty`]. Nobody can store to
    /// the page meanwhile.
    fn snapshot(&mut self, gfn: Gfn, table: Table);
    /// Sets the dirty bit of each entry that [`permits_clean_write`]. Nobody can store to the page
    /// meanwhile.
    ///
    /// [`permits_clean_write`]: crate::entry::permits_clean_write
    fn set_dirty(&mut self, gfn: Gfn);
    /// True when an entry of the page, as it is now, points to the child.
    fn points_to(&self, gfn: Gfn, child: Gfn) -> bool;
    /// Appends each entry in which the page differs from its twin, and brings the twin up to date.
    /// True when some entry [`permits_clean_write`](crate::entry::permits_clean_write).
    fn changes(&mut self, gfn: Gfn, out: &mut Vec<Entry>) -> bool;
    /// True when page and twin differ in accessed and dirty bits at most. Neither changes.
    fn is_flushed(&self, gfn: Gfn) -> bool;
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
