//! The form of one node.

use super::frames::FrameRuns;
use crate::channels::Counts;
use crate::homes::{HomeRange, HomeTable};
use crate::tables::Replicate;
use migrate::Invalid;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use wire::{Epoch, Gfn, Half, Level, SliceId, Table, VcpuId};

/// A run of frames and its home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomeState {
    /// First frame.
    pub first: u64,
    /// How many.
    pub pages: u64,
    /// Their home.
    pub home: SliceId,
}

/// Which page tables become replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableScope {
    /// None.
    Nothing,
    /// Those of the kernel.
    Kernel,
    /// Those of processes too.
    All,
}

impl From<Replicate> for TableScope {
    fn from(from: Replicate) -> Self {
        match from {
            Replicate::Nothing => Self::Nothing,
            Replicate::KernelTables => Self::Kernel,
            Replicate::AllTables => Self::All,
        }
    }
}

/// Whose translations a table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableHalf {
    /// The kernel's.
    Kernel,
    /// A process's.
    User,
}

/// A page table that every slice has a replica of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaState {
    /// The page.
    pub page: Gfn,
    /// Its level, 1 to 4; 4 is a root.
    pub level: u8,
    /// Whose it is.
    pub half: TableHalf,
    /// A root that has had an entry of a process.
    pub of_process: bool,
    /// Hash of its entries without accessed and dirty bits.
    pub hash: u64,
}

impl ReplicaState {
    pub(super) fn of(page: Gfn, table: Table, of_process: bool, hash: u64) -> Self {
        let half = match table.half {
            Half::Kernel => TableHalf::Kernel,
            Half::User => TableHalf::User,
        };
        Self { page, level: table.level.get(), half, of_process, hash }
    }

    /// What kind of table it is; none for a level that no table has.
    #[must_use]
    pub fn table(&self) -> Option<Table> {
        let half = match self.half {
            TableHalf::Kernel => Half::Kernel,
            TableHalf::User => Half::User,
        };
        Some(Table { level: Level::new(self.level)?, half })
    }
}

/// How holders hold a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HolderKind {
    /// They may read it.
    Shared,
    /// One may write it.
    Exclusive,
    /// One may write it, although it asked to read.
    ExclusiveGrant,
    /// Everyone has a replica.
    Replicated,
}

/// Pages of this home that the same slices hold in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldersState {
    /// How.
    pub kind: HolderKind,
    /// Who, ascending. None for replicas.
    pub slices: Vec<SliceId>,
    /// Many slices read the pages between two writes.
    pub widely_shared: bool,
    /// The pages.
    pub frames: FrameRuns,
}

/// The page-table root that a vCPU was seen with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootState {
    /// The vCPU.
    pub vcpu: VcpuId,
    /// Frame of its root.
    pub page: Gfn,
}

/// Messages of the protocol between this slice and another, since both have been there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    /// The other.
    pub peer: SliceId,
    /// Messages to it.
    pub sent: u64,
    /// Messages from it.
    pub received: u64,
}

impl Channel {
    pub(crate) fn new(peer: SliceId, Counts { sent, received }: Counts) -> Self {
        Self { peer, sent, received }
    }
}

/// The state of one node at rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeState {
    /// The epoch that it was in.
    pub epoch: Epoch,
    /// Its slice.
    pub slice: SliceId,
    /// All slices that share memory, ascending.
    pub slices: Vec<SliceId>,
    /// Who is home of what, ascending.
    pub homes: Vec<HomeState>,
    /// vCPUs of the VM.
    pub vcpus: u32,
    /// Which page tables become replicas.
    pub tables: TableScope,
    /// Pages that this slice may read, and others too.
    pub shared: FrameRuns,
    /// Pages that only this slice has.
    pub exclusive: FrameRuns,
    /// Page tables that everyone has, ascending.
    pub replicas: Vec<ReplicaState>,
    /// Who holds the pages that this slice is home of.
    pub directory: Vec<HoldersState>,
    /// Pages of this home that must never be replicas again.
    pub never_replicas: FrameRuns,
    /// Roots of vCPUs, ascending by vCPU.
    pub roots: Vec<RootState>,
    /// Number of the newest flush or demotion.
    pub newest_flush: u64,
    /// Messages to and from each other slice, ascending by peer.
    pub channels: Vec<Channel>,
}

/// Frames of which a slice has the contents: pages that it alone has, copies to read, and replicas of its own home. Replicas
/// are at every slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// All of them, ascending.
    pub frames: Vec<Range<u64>>,
    /// Those that are replicas: vCPUs store to them without asking.
    pub replicas: Vec<Gfn>,
}

impl NodeState {
    /// The homes as a table.
    ///
    /// # Errors
    /// Ranges that are empty or overlap.
    pub(super) fn home_table(&self) -> Result<HomeTable, Invalid> {
        let range = |state: &HomeState| {
            let end = state.first.checked_add(state.pages);
            let end = end.ok_or_else(|| Invalid::new("homes", "frames beyond all numbers"))?;
            Ok(HomeRange { frames: state.first..end, home: state.home })
        };
        let ranges = self.homes.iter().map(range).collect::<Result<_, _>>()?;
        HomeTable::new(ranges).map_err(|error| Invalid::new("homes", error.to_string()))
    }

    /// The messages to and from another slice.
    pub(super) fn channel(&self, peer: SliceId) -> Option<&Channel> {
        self.channels.iter().find(|channel| channel.peer == peer)
    }

    /// What its slice has the contents of.
    #[must_use]
    pub fn here(&self) -> Here {
        let is_home = |gfn: Gfn| {
            let of = self.homes.iter().find(|it| (it.first..it.first + it.pages).contains(&gfn.0));
            of.is_some_and(|of| of.home == self.slice)
        };
        let replicas = self.replicas.iter().map(|replica| replica.page);
        let replicas: Vec<Gfn> = replicas.filter(|page| is_home(*page)).collect();
        let of_replicas = replicas.iter().map(|page| page.0..page.0 + 1);
        let mut frames: Vec<_> =
            self.shared.ranges().chain(self.exclusive.ranges()).chain(of_replicas).collect();
        frames.sort_unstable_by_key(|range| range.start);
        Here { frames, replicas }
    }

    /// Who has the truth about each page that this slice is home of: from where its contents are read.
    #[must_use]
    pub fn keepers(&self) -> Vec<(SliceId, FrameRuns)> {
        let keeper = |holders: &HoldersState| match holders.kind {
            HolderKind::Replicated => self.slice,
            _ if holders.slices.contains(&self.slice) => self.slice,
            _ => holders.slices.first().copied().unwrap_or(self.slice),
        };
        let kept_by = |slice: SliceId| -> Vec<Range<u64>> {
            let of_slice = self.directory.iter().filter(|holders| keeper(holders) == slice);
            of_slice.flat_map(|holders| holders.frames.ranges()).collect()
        };
        let all = self.slices.iter().map(|slice| (*slice, FrameRuns::of(kept_by(*slice))));
        all.filter(|(_, frames)| !frames.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_has_its_pages_and_replicas_of_its_home() {
        let replica = |page| ReplicaState {
            page: Gfn(page),
            level: 1,
            half: TableHalf::Kernel,
            of_process: false,
            hash: 0,
        };
        let home = |first, home| HomeState { first, pages: 100, home: SliceId(home) };
        let memory = NodeState {
            epoch: Epoch(1),
            slice: SliceId(1),
            slices: vec![SliceId(0), SliceId(1)],
            homes: vec![home(0, 0), home(100, 1)],
            vcpus: 1,
            tables: TableScope::All,
            shared: FrameRuns::of(vec![3..5, 120..121]),
            exclusive: FrameRuns::of(vec![7..8, 100..110]),
            replicas: vec![replica(50), replica(150)],
            directory: Vec::new(),
            never_replicas: FrameRuns::default(),
            roots: Vec::new(),
            newest_flush: 0,
            channels: Vec::new(),
        };
        let Here { frames, replicas } = memory.here();
        assert_eq!(frames, [3..5, 7..8, 100..110, 120..121, 150..151]);
        assert_eq!(replicas, [Gfn(150)]);
    }
}
