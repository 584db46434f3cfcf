//! A page store that stores nothing: what is left is the protocol's own work.

use dsm_protocol::{Access, Entry, Gfn, Merge, PageStore, Table};

/// Pages without contents; no page is a table.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPages;

impl PageStore for NoPages {
    fn fill(&mut self, _: Gfn) {}
    fn map(&mut self, _: Gfn, _: Access) {}
    fn protect(&mut self, _: Gfn) {}
    fn unmap(&mut self, _: Gfn) {}
    fn snapshot(&mut self, _: Gfn, _: Table) {}
    fn set_dirty(&mut self, _: Gfn) {}
    fn points_to(&self, _: Gfn, _: Gfn) -> bool {
        false
    }
    fn changes(&mut self, _: Gfn, _: &mut Vec<Entry>) -> bool {
        false
    }
    fn merge(&mut self, _: &Entry) -> Merge {
        Merge::Applied
    }
    fn forget(&mut self, _: Gfn) {}
    fn twin_entry(&self, _: Gfn, _: u16) -> u64 {
        0
    }
    fn twin_entries(&self, _: Gfn, _: &mut dyn FnMut(u16, u64)) {}
}
