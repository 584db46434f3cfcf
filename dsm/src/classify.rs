//! What kind of page faulted: kernel page table, user page table or anything else.
//!
//! Replicated tables are known to the protocol. For the rest this walks the tables below the
//! vCPUs' current roots, as far as this slice holds them, at most twice a second: the classes are
//! statistics and never decide anything.

use crate::ram::GuestRam;
use dsm_protocol::{Access, Gfn, Half, Node};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use wire::VcpuId;

const REFRESH_NS: u64 = 500_000_000;
/// Pages that one refresh reads at most.
const WALK_PAGES_MAX: usize = 2048;
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// The classes that faults are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageClass {
    /// A root, or a table reachable from the kernel's half of one.
    KernelPageTable,
    /// A table reachable from the user's half of a root.
    UserPageTable,
    /// Everything else.
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
        let mut budget = WALK_PAGES_MAX;
        let roots: BTreeSet<Gfn> = self.roots.values().copied().collect();
        for root in roots {
            let mut kernel = Vec::new();
            let mut user = Vec::new();
            children(root, 0..256, true, node, ram, &mut user);
            children(root, 256..512, true, node, ram, &mut kernel);
            descend(user, &mut self.user, &mut budget, node, ram);
            descend(kernel, &mut self.kernel, &mut budget, node, ram);
        }
    }
}

/// Adds the tables of levels 3, 2 and 1 below `level3`.
fn descend(
    level3: Vec<Gfn>,
    found: &mut BTreeSet<Gfn>,
    budget: &mut usize,
    node: &Node,
    ram: &GuestRam,
) {
    let mut level = level3;
    for depth in (1..=3).rev() {
        let mut below = Vec::new();
        for gfn in level {
            if *budget == 0 || !found.insert(gfn) {
                continue;
            }
            *budget -= 1;
            if depth > 1 {
                children(gfn, 0..512, false, node, ram, &mut below);
            }
        }
        level = below;
    }
}

fn children(
    table: Gfn,
    range: std::ops::Range<usize>,
    root: bool,
    node: &Node,
    ram: &GuestRam,
    out: &mut Vec<Gfn>,
) {
    if node.access(table) == Access::None || ram.offset(table).is_none() {
        return;
    }
    for entry in &ram.entries(table)[range] {
        let value = entry.load(Ordering::Relaxed);
        let gfn = Gfn((value & FRAME) >> 12);
        if value & PRESENT != 0 && (root || value & LARGE == 0) && ram.offset(gfn).is_some() {
            out.push(gfn);
        }
    }
}
