//! Pages as small sparse arrays, for models and simulator.
//!
//! Beside the contents it keeps what the page-fault machinery of a host would: which access the
//! vCPUs have, and which pages were mapped in a step (that wakes the vCPUs that wait for them). It
//! records the first call that the engine could not carry out, see [`ArrayStore::misuse`].

use dsm_protocol::entry::{ACCESSED_DIRTY, DIRTY, permits_clean_write, permits_write};
use dsm_protocol::{Access, Entry, Gfn, Merge, PageStore, Table};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Contents of a page: entries that are not zero.
pub type Page = BTreeMap<u16, u64>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    page: Page,
    twin: Option<Page>,
    table: Option<Table>,
    access: Access,
    /// Contents that may be mapped: given at the start or filled since the last `unmap`.
    valid: bool,
}

/// The pages of one slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ArrayStore {
    slots: BTreeMap<Gfn, Slot>,
    /// Body of the message in hand.
    hand: Option<Page>,
    woken: Vec<Gfn>,
    misuse: Option<&'static str>,
    /// Pages whose access was taken away in this step and not settled yet.
    unsettled: BTreeSet<Gfn>,
    /// Whether a page that nobody mapped counts as untouched.
    tells_untouched: bool,
    /// A planted bug: dirty bits are not preset.
    clean_kept: bool,
}

impl ArrayStore {
    /// Plants a bug: entries that can be written through keep a clear dirty bit.
    pub fn keep_clean(&mut self) {
        self.clean_kept = true;
    }

    /// Tells the protocol of pages that nobody has touched.
    pub fn tell_untouched(&mut self) {
        self.tells_untouched = true;
    }

    /// A processor writes through an entry: it sets the dirty bit, in this replica. False when the
    /// entry does not let it. The caller has checked the access.
    pub fn write_through(&mut self, gfn: Gfn, index: u16) -> bool {
        let entry = self.load(gfn, index);
        let writable = permits_write(entry);
        if writable {
            self.store(gfn, index, entry | DIRTY);
        }
        writable
    }

    /// Puts contents in place before anything runs: pages of which this slice is home.
    pub fn put_page(&mut self, gfn: Gfn, page: Page) {
        self.slots
            .insert(gfn, Slot { page, twin: None, table: None, access: Access::None, valid: true });
    }

    /// Takes the body of a message in hand, or none.
    pub fn take_in_hand(&mut self, body: Option<Page>) {
        self.hand = body;
    }

    /// Pages mapped since the last call.
    pub fn take_woken(&mut self) -> Vec<Gfn> {
        std::mem::take(&mut self.woken)
    }

    /// The first call that an engine could not carry out.
    #[must_use]
    pub fn misuse(&self) -> Option<&'static str> {
        let unsettled = (!self.unsettled.is_empty()).then_some("a step that does not settle");
        self.misuse.or(unsettled)
    }

    /// What the vCPUs may do with the page.
    #[must_use]
    pub fn access(&self, gfn: Gfn) -> Access {
        self.slots.get(&gfn).map_or(Access::None, |slot| slot.access)
    }

    /// The contents, for the body of a message or to compare.
    #[must_use]
    pub fn page(&self, gfn: Gfn) -> Page {
        self.slots.get(&gfn).map(|slot| slot.page.clone()).unwrap_or_default()
    }

    /// True when the page holds exactly these entries.
    #[must_use]
    pub fn holds(&self, gfn: Gfn, page: &Page) -> bool {
        self.slots.get(&gfn).map_or(page.is_empty(), |slot| slot.page == *page)
    }

    /// A vCPU loads an entry. The caller has checked the access.
    #[must_use]
    pub fn load(&self, gfn: Gfn, index: u16) -> u64 {
        self.slots.get(&gfn).map_or(0, |slot| get(&slot.page, index))
    }

    /// A vCPU stores an entry. The caller has checked the access.
    pub fn store(&mut self, gfn: Gfn, index: u16, value: u64) {
        if self.access(gfn) != Access::Write {
            self.misuse = Some("a store to a page that may not be written");
        }
        put(&mut self.slots.entry(gfn).or_default().page, index, value);
    }

    fn require(&mut self, fine: bool, what: &'static str) {
        if !fine && self.misuse.is_none() {
            self.misuse = Some(what);
        }
    }

    fn require_settled(&mut self, gfn: Gfn) {
        let settled = !self.unsettled.contains(&gfn);
        self.require(settled, "a look at a page that may still be written");
    }

    fn slot(&mut self, gfn: Gfn) -> &mut Slot {
        self.slots.entry(gfn).or_default()
    }

    fn has_twin(&self, gfn: Gfn) -> bool {
        self.slots.get(&gfn).is_some_and(|slot| slot.twin.is_some())
    }
}

fn get(page: &Page, index: u16) -> u64 {
    page.get(&index).copied().unwrap_or(0)
}

fn put(page: &mut Page, index: u16, value: u64) {
    if value == 0 {
        page.remove(&index);
    } else {
        page.insert(index, value);
    }
}

impl PageStore for ArrayStore {
    fn fill(&mut self, gfn: Gfn) {
        let unmapped = self.access(gfn) == Access::None;
        self.require(unmapped, "fill of a mapped page");
        let untwinned = !self.has_twin(gfn);
        self.require(untwinned, "fill of a page with a twin");
        let Some(body) = self.hand.clone() else {
            self.require(false, "fill without a body in hand");
            return;
        };
        let slot = self.slot(gfn);
        slot.page = body;
        slot.valid = true;
    }

    fn map(&mut self, gfn: Gfn, access: Access) {
        self.require(access != Access::None, "map without access");
        let slot = self.slot(gfn);
        let (valid, more) = (slot.valid, access >= slot.access);
        slot.access = access;
        self.woken.push(gfn);
        self.require(valid, "map of a page without contents");
        self.require(more, "map with less access than before");
    }

    fn protect(&mut self, gfn: Gfn) {
        let slot = self.slot(gfn);
        slot.access = slot.access.min(Access::Read);
        let valid = slot.valid;
        self.unsettled.insert(gfn);
        self.require(valid, "protect of a page without contents");
    }

    fn unmap(&mut self, gfn: Gfn) {
        let slot = self.slot(gfn);
        slot.access = Access::None;
        let valid = std::mem::replace(&mut slot.valid, false);
        self.unsettled.insert(gfn);
        self.require(valid, "unmap of a page without contents");
    }

    fn settle(&mut self) {
        self.unsettled.clear();
    }

    fn fingerprint(&self, gfn: Gfn) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.page(gfn).hash(&mut hasher);
        hasher.finish()
    }

    fn is_untouched(&self, gfn: Gfn) -> bool {
        let slot = self.slots.get(&gfn);
        self.tells_untouched
            && slot.is_some_and(|slot| slot.page.is_empty() && slot.access == Access::None)
    }

    fn snapshot(&mut self, gfn: Gfn, table: Table) {
        let untwinned = !self.has_twin(gfn);
        self.require(untwinned, "second twin of one page");
        self.slot(gfn).table = Some(table);
        self.set_dirty(gfn);
        let slot = self.slot(gfn);
        slot.twin = Some(slot.page.clone());
        let fine = slot.access != Access::Write && slot.valid;
        self.require(fine, "twin of a page that is written or absent");
    }

    fn set_dirty(&mut self, gfn: Gfn) {
        if self.clean_kept {
            return;
        }
        self.require_settled(gfn);
        let slot = self.slot(gfn);
        let Some(table) = slot.table else { return };
        let fine = slot.access != Access::Write;
        slot.page
            .values_mut()
            .filter(|entry| permits_clean_write(table, **entry))
            .for_each(|entry| *entry |= DIRTY);
        self.require(fine, "dirty bits of a page that is written");
    }

    fn points_to(&self, gfn: Gfn, child: Gfn) -> bool {
        let page = self.slots.get(&gfn).map(|slot| &slot.page);
        page.is_some_and(|page| page.values().any(|entry| entry & 1 != 0 && entry >> 12 == child.0))
    }

    fn changes(&mut self, gfn: Gfn, out: &mut Vec<Entry>) -> bool {
        self.require_settled(gfn);
        let slot = self.slot(gfn);
        let Some(twin) = slot.twin.as_mut() else {
            self.require(false, "changes of a page without a twin");
            return false;
        };
        let clean =
            |entry: &u64| slot.table.is_some_and(|table| permits_clean_write(table, *entry));
        let clean = slot.page.values().any(clean);
        if slot.page == *twin {
            return clean;
        }
        let mut indices: Vec<u16> = slot.page.keys().chain(twin.keys()).copied().collect();
        indices.sort_unstable();
        indices.dedup();
        for index in indices {
            let (old, new) = (get(twin, index), get(&slot.page, index));
            if (old ^ new) & !ACCESSED_DIRTY != 0 {
                out.push(Entry { gfn, index, old, new });
            }
        }
        twin.clone_from(&slot.page);
        clean
    }

    fn is_flushed(&self, gfn: Gfn) -> bool {
        let slot = self.slots.get(&gfn);
        let Some((page, twin)) = slot.and_then(|slot| Some((&slot.page, slot.twin.as_ref()?)))
        else {
            return false;
        };
        let same = |index: &u16| (get(page, *index) ^ get(twin, *index)) & !ACCESSED_DIRTY == 0;
        page.keys().chain(twin.keys()).all(same)
    }

    fn merge(&mut self, entry: &Entry) -> Merge {
        let Entry { gfn, index, old, new } = *entry;
        let slot = self.slot(gfn);
        let Some(twin) = slot.twin.as_mut() else {
            self.require(false, "merge into a page without a twin");
            return Merge::Conflict;
        };
        let (was, here) = (get(twin, index), get(&slot.page, index));
        put(twin, index, new);
        if (here ^ was) & !ACCESSED_DIRTY != 0 {
            return Merge::Conflict;
        }
        put(&mut slot.page, index, new);
        if (was ^ old) & !ACCESSED_DIRTY == 0 { Merge::Applied } else { Merge::Conflict }
    }

    fn forget(&mut self, gfn: Gfn) {
        let had = self.slot(gfn).twin.take().is_some();
        self.require(had, "forget of a page without a twin");
    }

    fn twin_entry(&self, gfn: Gfn, index: u16) -> u64 {
        let twin = self.slots.get(&gfn).and_then(|slot| slot.twin.as_ref());
        twin.map_or(0, |twin| get(twin, index))
    }

    fn twin_entries(&self, gfn: Gfn, visit: &mut dyn FnMut(u16, u64)) {
        if let Some(twin) = self.slots.get(&gfn).and_then(|slot| slot.twin.as_ref()) {
            twin.iter().for_each(|(index, value)| visit(*index, *value));
        }
    }
}
