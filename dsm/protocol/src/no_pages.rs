//! Pages without contents or mappings: to count and time the protocol alone.

use crate::store::{Merge, PageStore};
use wire::{Access, Entry, Gfn, Table};

/// Nothing is filled, mapped or taken away.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPages;

impl PageStore for NoPages {
    fn fill(&mut self, _: Gfn) {}
    fn map(&mut self, _: Gfn, _: Access) {}
    fn protect(&mut self, _: Gfn) {}
    fn unmap(&mut self, _: Gfn) {}
    fn settle(&mut self) {}
    fn fingerprint(&self, _: Gfn) -> u64 {
        0
    }
    fn is_untouched(&self, _: Gfn) -> bool {
        false
    }
    fn snapshot(&mut self, _: Gfn, _: Table) {}
    fn set_dirty(&mut self, _: Gfn) {}
    fn points_to(&self, _: Gfn, _: Gfn) -> bool {
        false
    }
    fn changes(&mut self, _: Gfn, _: &mut Vec<Entry>) -> bool {
        false
    }
    fn is_flushed(&self, _: Gfn) -> bool {
        true
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
