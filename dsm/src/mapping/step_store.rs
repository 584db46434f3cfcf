//! The store as one step of the protocol sees it: with the body of the message in hand.

use super::pending_invalidations::Invalidation;
use super::store::{Store, up_to_date};
use crate::planted::PlantedBug;
use dsm_protocol::entry::target;
use dsm_protocol::{Access, Entry, Gfn, Merge, PageStore, Table};
use std::sync::atomic::Ordering;
use wire::PageBody;

/// What a step works on.
#[derive(Debug)]
pub(crate) struct StepStore<'a> {
    store: &'a mut Store,
    body: Option<PageBody<'a>>,
}

impl Store {
    /// The store together with the body of the message in hand.
    pub(crate) fn with_body<'a>(&'a mut self, body: Option<PageBody<'a>>) -> StepStore<'a> {
        StepStore { store: self, body }
    }
}

impl PageStore for StepStore<'_> {
    fn fill(&mut self, gfn: Gfn) {
        let result = self.store.fill(gfn, self.body);
        self.store.note(result);
    }

    fn map(&mut self, gfn: Gfn, access: Access) {
        let result = self.store.try_map(gfn, access);
        self.store.note(result);
    }

    fn protect(&mut self, gfn: Gfn) {
        self.store.before_recall(gfn);
        self.store.readable.insert(gfn);
        self.store.pending_invalidations.push(gfn, Invalidation::Write);
    }

    fn unmap(&mut self, gfn: Gfn) {
        self.store.before_recall(gfn);
        self.store.readable.remove(gfn);
        self.store.pending_invalidations.push(gfn, Invalidation::All);
    }

    fn settle(&mut self) {
        if self.store.has_bug(PlantedBug::TakenLate) {
            return;
        }
        let result = self.store.take_away();
        self.store.note(result);
    }

    fn fingerprint(&self, gfn: Gfn) -> u64 {
        self.store.hash(gfn)
    }

    fn is_untouched(&self, gfn: Gfn) -> bool {
        self.store.ram.is_untouched(gfn)
    }

    fn snapshot(&mut self, gfn: Gfn, table: Table) {
        // The home marks entries in it, through the alias.
        let opened = self.store.before_store(gfn);
        self.store.note(opened);
        let page = up_to_date(&self.store.ram, &self.store.staged).entries(gfn);
        self.store.twins.snapshot(gfn, table, page);
        self.set_dirty(gfn);
    }

    fn set_dirty(&mut self, gfn: Gfn) {
        let page = self.store.ram.entries(gfn);
        self.store.twins.set_dirty(gfn, page);
    }

    fn points_to(&self, gfn: Gfn, child: Gfn) -> bool {
        let entries = up_to_date(&self.store.ram, &self.store.staged).entries(gfn).iter();
        entries.map(|entry| entry.load(Ordering::Acquire)).any(|entry| target(entry) == Some(child))
    }

    fn changes(&mut self, gfn: Gfn, out: &mut Vec<Entry>) -> bool {
        let twin = self.store.twins.page(gfn);
        if twin.is_some_and(|twin| self.store.ram.holds(gfn, twin)) {
            return false;
        }
        let page = self.store.ram.entries(gfn);
        self.store.twins.changes(gfn, page, out)
    }

    fn is_flushed(&self, gfn: Gfn) -> bool {
        let page = up_to_date(&self.store.ram, &self.store.staged).entries(gfn);
        self.store.twins.is_flushed(gfn, page)
    }

    fn merge(&mut self, entry: &Entry) -> Merge {
        let page = self.store.ram.entries(entry.gfn);
        self.store.twins.merge(entry, page)
    }

    fn forget(&mut self, gfn: Gfn) {
        // A replica was not protected, and what it becomes may be one that only this slice has.
        self.store.about_to_change(gfn);
        self.store.twins.forget(gfn);
    }

    fn twin_entry(&self, gfn: Gfn, index: u16) -> u64 {
        self.store.twins.entry(gfn, index)
    }

    fn twin_entries(&self, gfn: Gfn, visit: &mut dyn FnMut(u16, u64)) {
        self.store.twins.entries(gfn, visit);
    }
}
