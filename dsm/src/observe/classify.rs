//! What kind of page faulted: kernel page table, user page table or anything else.
//!
//! Replicated tables are known to the protocol. For the rest this walks the tables below the
//! vCPUs' current roots, as far as this slice holds them, at most twice a second.
//!
//! The classes are statistics, with two exceptions. A worker's fault on a table is taken for a page walk, which
//! needs write access, so the page is not probed. A table that is missed again and again makes the engine ask for the
//! roots. A wrong class costs a transfer, never coherence.

use crate::memory::GuestRam;
use dsm_protocol::{Access, Gfn, Half, Level, Node, entry};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering;
use wire::VcpuId;

const REFRESH_NS: u64 = 500_000_000;
/// Pages that one refresh reads at most.
const WALK_PAGES_MAX: usize = 2048;

/// The classes that faults are counted by.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum PageClass {
    /// A root, or a table reachable from the kernel's half of one.
    KernelPageTable,
    /// A table reachable from the user's half of a root.
    UserPageTable,
    /// Everything else.
    #[default]
    Other,
}

#[derive(Debug, Default)]
pub(crate) struct Classifier {
    roots: BTreeMap<VcpuId, Gfn>,
    kernel: BTreeSet<Gfn>,
    user: BTreeSet<Gfn>,
    refreshed_ns: u64,
}

impl Classifier {
    pub(crate) fn set_root(&mut self, vcpu: VcpuId, gfn: Gfn) {
        self.roots.insert(vcpu, gfn);
    }

    /// The roots of all slices' vCPUs, as far as they are known.
    pub(crate) fn roots(&self) -> BTreeSet<Gfn> {
        self.roots.values().copied().collect()
    }

    pub(crate) fn class(
        &mut self,
        gfn: Gfn,
        now_ns: u64,
        node: &Node,
        ram: &GuestRam,
    ) -> PageClass {
        match node.table(gfn).map(|table| table.half) {
            Some(Half::Kernel) => return PageClass::KernelPageTable,
            Some(Half::User) => return PageClass::UserPageTable,
            None => {}
        }
        if now_ns >= self.refreshed_ns + REFRESH_NS || self.refreshed_ns == 0 {
            self.refresh(node, ram);
            self.refreshed_ns = now_ns;
        }
        if self.kernel.contains(&gfn) || self.roots.values().any(|root| *root == gfn) {
            PageClass::KernelPageTable
        } else if self.user.contains(&gfn) {
            PageClass::UserPageTable
        } else {
            PageClass::Other
        }
    }

    fn refresh(&mut self, node: &Node, ram: &GuestRam) {
        self.kernel.clear();
        self.user.clear();
        let mut walk = Walk { node, ram, budget: WALK_PAGES_MAX };
        for root in self.roots() {
            let user = walk.children(root, Level::ROOT, 0..256);
            let kernel = walk.children(root, Level::ROOT, 256..512);
            walk.descend(user, &mut self.user);
            walk.descend(kernel, &mut self.kernel);
        }
    }
}

/// A walk through the tables that this slice holds.
struct Walk<'a> {
    node: &'a Node,
    ram: &'a GuestRam,
    /// Pages it may still read.
    budget: usize,
}

impl Walk<'_> {
    /// Adds the tables below a root, given those of the level under it.
    fn descend(&mut self, below_root: Vec<Gfn>, found: &mut BTreeSet<Gfn>) {
        let mut level = Level::ROOT.below();
        let mut tables = below_root;
        while let Some(this) = level {
            let mut below = Vec::new();
            for gfn in tables {
                if self.budget == 0 || !found.insert(gfn) {
                    continue;
                }
                self.budget -= 1;
                if this.below().is_some() {
                    below.extend(self.children(gfn, this, 0..512));
                }
            }
            (tables, level) = (below, this.below());
        }
    }

    /// The tables that entries of a table point to, if this slice holds it.
    fn children(&self, table: Gfn, level: Level, range: Range<usize>) -> Vec<Gfn> {
        if self.node.access(table) == Access::None || self.ram.offset(table).is_none() {
            return Vec::new();
        }
        let entries = self.ram.entries(table)[range].iter();
        entries
            .filter_map(|value| entry::child(level, value.load(Ordering::Relaxed)))
            .filter(|gfn| self.ram.offset(*gfn).is_some())
            .collect()
    }
}
