//! Which pages are replicated page tables, and which pages these point to.
//!
//! A page is recognised without reading its contents: it is some vCPU's root (CR3), or an entry of
//! a replicated page points to it. So replication spreads from the roots downwards, one requested
//! page at a time, and a page without a parent entry left is no table any more.
//! Formats: AMD APM vol. 2, 5.3 (long-mode page translation).

use crate::entry::{self, DIRTY, is_linux_table, permits_clean_write};
use crate::store::PageStore;
use std::collections::{BTreeMap, BTreeSet};
use wire::{Entry, Gfn, Half, Level, Table, VcpuId};

/// First entry of the kernel's half of a root.
const KERNEL_HALF: u16 = 256;
/// A root that no vCPU uses leaves the class after this time: its process may be gone.
const ROOT_IDLE_NS: u64 = 1_000_000_000;

/// Which page tables become replicas when a second slice asks for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Replicate {
    /// None: all are ordinary pages.
    #[default]
    Nothing,
    /// The roots, and what their kernel's half points to.
    KernelTables,
    /// The tables of processes too.
    AllTables,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Child {
    table: Table,
    references: u32,
}

/// The replicated class as one slice sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tables {
    scope: Replicate,
    replicas: BTreeMap<Gfn, Table>,
    children: BTreeMap<Gfn, Child>,
    roots: BTreeMap<VcpuId, Gfn>,
    idle_roots: BTreeMap<Gfn, u64>,
    /// Replicated roots that have had an entry in the user's half: roots of processes.
    process_roots: BTreeSet<Gfn>,
}

impl Tables {
    pub(crate) fn new(scope: Replicate) -> Self {
        Self { scope, ..Self::default() }
    }

    pub(crate) fn table(&self, gfn: Gfn) -> Option<Table> {
        self.replicas
            .get(&gfn)
            .copied()
            .or_else(|| self.children.get(&gfn).map(|child| child.table))
            .or_else(|| self.is_root(gfn).then_some(Table::ROOT))
    }

    /// True when the page still is what a conversion takes it for, as far as this slice knows.
    pub(crate) fn is_wanted(&self, gfn: Gfn, table: Table) -> bool {
        self.children.get(&gfn).is_some_and(|child| child.table == table)
            || (table == Table::ROOT && self.is_root(gfn))
    }

    pub(crate) fn is_replica(&self, gfn: Gfn) -> bool {
        self.replicas.contains_key(&gfn)
    }

    pub(crate) fn replica_count(&self) -> u64 {
        u64::try_from(self.replicas.len()).unwrap_or(u64::MAX)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.replicas.is_empty()
    }

    /// All replicas, ascending.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = (Gfn, Table)> + '_ {
        self.replicas.iter().map(|(gfn, table)| (*gfn, *table))
    }

    /// What kind of table a replica is.
    pub(crate) fn replica(&self, gfn: Gfn) -> Option<Table> {
        self.replicas.get(&gfn).copied()
    }

    /// The roots that vCPUs were seen with, ascending by vCPU.
    pub(crate) fn roots(&self) -> impl Iterator<Item = (VcpuId, Gfn)> + '_ {
        self.roots.iter().map(|(vcpu, gfn)| (*vcpu, *gfn))
    }

    /// True for a replicated root that has had an entry of a process.
    pub(crate) fn is_of_process(&self, gfn: Gfn) -> bool {
        self.process_roots.contains(&gfn)
    }

    /// A replicated root has had an entry of a process.
    pub(crate) fn set_of_process(&mut self, gfn: Gfn) {
        self.process_roots.insert(gfn);
    }

    /// Replicas of one level, ascending.
    pub(crate) fn at_level(&self, level: Level) -> Vec<Gfn> {
        let of_level = self.replicas.iter().filter(|(_, table)| table.level == level);
        of_level.map(|(gfn, _)| *gfn).collect()
    }

    /// Replicas whose entries may point to tables of a level.
    pub(crate) fn above(&self, level: Level) -> Vec<Gfn> {
        let below = |table: &Table| table.level.below() == Some(level);
        let parents = self.replicas.iter().filter(|(_, table)| below(table));
        parents.map(|(gfn, _)| *gfn).collect()
    }

    /// Sets the dirty bit of an entry about to be sent, where it must be set.
    pub(crate) fn set_dirty(&self, entry: &mut Entry) {
        let table = self.replicas.get(&entry.gfn);
        if table.is_some_and(|table| permits_clean_write(*table, entry.new)) {
            entry.new |= DIRTY;
        }
    }

    /// True when a replica's entry points to the page, or it needs none.
    pub(crate) fn is_referenced(&self, gfn: Gfn, level: Level) -> bool {
        level == Level::ROOT || self.children.contains_key(&gfn)
    }

    /// Adds a replica whose twin was just made.
    pub(crate) fn insert(&mut self, gfn: Gfn, table: Table, store: &impl PageStore) {
        self.replicas.insert(gfn, table);
        store.twin_entries(gfn, &mut |index, value| {
            self.add_reference(table, index, value);
            self.note_process(gfn, table.level, index);
        });
    }

    fn note_process(&mut self, gfn: Gfn, level: Level, index: u16) {
        if level == Level::ROOT && index < KERNEL_HALF {
            self.process_roots.insert(gfn);
        }
    }

    /// Takes a replica out. Its twin must still be there.
    pub(crate) fn remove(&mut self, gfn: Gfn, store: &impl PageStore) {
        let Some(table) = self.replicas.remove(&gfn) else { return };
        self.idle_roots.remove(&gfn);
        self.process_roots.remove(&gfn);
        store.twin_entries(gfn, &mut |index, value| self.drop_reference(table, index, value));
    }

    /// No page is a replica any more. The roots stay known. Gives back those that were.
    pub(crate) fn end_all(&mut self) -> Vec<Gfn> {
        self.children.clear();
        self.idle_roots.clear();
        self.process_roots.clear();
        std::mem::take(&mut self.replicas).into_keys().collect()
    }

    /// True when some table of the kernel has no parent but this root.
    fn is_only_parent(&self, root: Gfn, store: &impl PageStore) -> bool {
        let mut only = false;
        store.twin_entries(root, &mut |index, value| {
            if index >= KERNEL_HALF {
                let child = self.child(Table::ROOT, index, value);
                let child = child.and_then(|(gfn, _)| self.children.get(&gfn));
                only |= child.is_some_and(|child| child.references == 1);
            }
        });
        only
    }

    /// An entry of a replica's twin changed from `old` to what the entry holds now.
    pub(crate) fn changed(&mut self, entry: &Entry, old: u64) {
        let Some(table) = self.replicas.get(&entry.gfn).copied() else { return };
        self.drop_reference(table, entry.index, old);
        self.add_reference(table, entry.index, entry.new);
        self.note_process(entry.gfn, table.level, entry.index);
    }

    pub(crate) fn set_root(&mut self, vcpu: VcpuId, gfn: Gfn) -> bool {
        self.roots.insert(vcpu, gfn) != Some(gfn)
    }

    /// Roots of processes that no vCPU has used for a while and that may leave the class.
    ///
    /// The kernel's own root stays: it has never had a user's entry and is never freed. A root that
    /// alone points to some table stays too. Without a root the tables below it would leave the
    /// class and could not be recognised again.
    pub(crate) fn stale_roots(&mut self, now: u64, store: &impl PageStore) -> Vec<Gfn> {
        for gfn in self.at_level(Level::ROOT) {
            if self.is_root(gfn) {
                self.idle_roots.remove(&gfn);
            } else {
                self.idle_roots.entry(gfn).or_insert(now);
            }
        }
        let stale = |since: &u64| now.saturating_sub(*since) > ROOT_IDLE_NS;
        let idle = &self.idle_roots;
        let mut over: Vec<Gfn> =
            idle.iter().filter(|(_, since)| stale(since)).map(|(gfn, _)| *gfn).collect();
        over.retain(|gfn| {
            self.idle_roots.remove(gfn);
            self.process_roots.contains(gfn) && !self.is_only_parent(*gfn, store)
        });
        over
    }

    pub(crate) fn is_root(&self, gfn: Gfn) -> bool {
        self.roots.values().any(|root| *root == gfn)
    }

    fn add_reference(&mut self, parent: Table, index: u16, value: u64) {
        if let Some((gfn, table)) = self.child(parent, index, value) {
            self.children.entry(gfn).or_insert(Child { table, references: 0 }).references += 1;
        }
    }

    fn drop_reference(&mut self, parent: Table, index: u16, value: u64) {
        let Some((gfn, _)) = self.child(parent, index, value) else { return };
        let Some(child) = self.children.get_mut(&gfn) else { return };
        child.references -= 1;
        if child.references == 0 {
            self.children.remove(&gfn);
        }
    }

    /// The table that an entry points to, if it is of a kind that is replicated.
    fn child(&self, parent: Table, index: u16, value: u64) -> Option<(Gfn, Table)> {
        let level = parent.level.below()?;
        let root = parent.level == Level::ROOT;
        let half = if root && index < KERNEL_HALF { Half::User } else { parent.half };
        let wanted = half == Half::Kernel || self.scope == Replicate::AllTables;
        let gfn = entry::child(parent.level, value).filter(|_| wanted)?;
        Some((gfn, Table { level, half }))
    }
}

/// Whether a changed entry can be one of a live root. A root that was freed and is used as data
/// shows itself here before anything that depends on it leaves this slice: kernels never take
/// entries out of the kernel's half, and entries of the user's half are tables or nothing.
pub(crate) fn fits_root(entry: &Entry, frames_end: u64) -> bool {
    let Entry { index, old, new, .. } = *entry;
    if index >= KERNEL_HALF {
        let (before, after) = (entry::target(old), entry::target(new));
        return (before.is_none() || before == after) && (new == 0 || after.is_some());
    }
    let inside = entry::target(new).is_some_and(|table| table.0 < frames_end);
    new == 0 || (is_linux_table(new) && inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(index: u16, old: u64, new: u64) -> Entry {
        Entry { gfn: Gfn(1), index, old, new }
    }

    #[test]
    fn child_of_user_half_counts_when_all_tables_do() {
        let kernel = Tables::new(Replicate::KernelTables);
        assert_eq!(kernel.child(Table::ROOT, 255, 0x5067), None);
        assert_eq!(kernel.child(Table::ROOT, 256, 0x5067).map(|(gfn, _)| gfn), Some(Gfn(5)));

        let all = Tables::new(Replicate::AllTables);
        let (gfn, table) = all.child(Table::ROOT, 255, 0x5067).unwrap();
        assert_eq!((gfn, table.half), (Gfn(5), Half::User));
        assert_eq!(all.child(table, 300, 0x6067).unwrap().1.half, Half::User);
    }

    #[test]
    fn child_of_large_leaf_is_none() {
        let tables = Tables::new(Replicate::KernelTables);
        let parent = Table { level: Level::new(2).unwrap(), half: Half::Kernel };

        assert_eq!(tables.child(parent, 0, 0x20_00e3), None);
        let (gfn, child) = tables.child(parent, 0, 0x20_0063).unwrap();
        assert_eq!((gfn, child.level), (Gfn(0x200), Level::new(1).unwrap()));
    }

    #[test]
    fn fits_root_with_data_is_false() {
        assert!(fits_root(&change(0, 0, 0x1234_5067), 1 << 20));
        assert!(fits_root(&change(0, 0x1234_5067, 0), 1 << 20));
        assert!(!fits_root(&change(0, 0, 1), 1 << 20));
        assert!(!fits_root(&change(0, 0, 0x6767_6767_6767_6767), 1 << 20));
        assert!(!fits_root(&change(300, 0x2067, 0), 1 << 20));
    }
}
