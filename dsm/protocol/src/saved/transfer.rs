//! From a node at rest to its form, and from a form to a node.

use super::frames::FrameRuns;
use super::rest::NotAtRest;
use super::state::{
    Channel, HolderKind, HoldersState, HomeState, NodeState, ReplicaState, RootState, TableScope,
};
use crate::channels::Counts;
use crate::config::Config;
use crate::entry::ACCESSED_DIRTY;
use crate::homes::HomeRange;
use crate::node::Node;
use crate::pages::{Holders, Kind, PageCopy};
use crate::store::PageStore;
use migrate::{Invalid, SavedState};
use std::collections::BTreeMap;
use wire::{Gfn, Table};
use xxhash_rust::xxh3::Xxh3Default;

impl From<Kind> for HolderKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Shared => Self::Shared,
            Kind::Exclusive => Self::Exclusive,
            Kind::ExclusiveGrant => Self::ExclusiveGrant,
            Kind::Replicated => Self::Replicated,
        }
    }
}

impl From<HolderKind> for Kind {
    fn from(kind: HolderKind) -> Self {
        match kind {
            HolderKind::Shared => Self::Shared,
            HolderKind::Exclusive => Self::Exclusive,
            HolderKind::ExclusiveGrant => Self::ExclusiveGrant,
            HolderKind::Replicated => Self::Replicated,
        }
    }
}

impl Node {
    /// The form of this node. Nothing changes.
    ///
    /// # Errors
    /// Something is under way, or a replica has changes that were not flushed.
    pub fn save(&self, store: &impl PageStore) -> Result<NodeState, NotAtRest> {
        if let Some(obstacle) = self.in_flight() {
            return Err(obstacle);
        }
        let (mut shared, mut exclusive) = (FrameRuns::default(), FrameRuns::default());
        let mut replicas = Vec::new();
        for (run, copy) in self.pages.copy_runs() {
            match copy {
                PageCopy::Invalid => {}
                PageCopy::Shared => shared.append(run),
                PageCopy::Exclusive => exclusive.append(run),
                PageCopy::Forming => return Err(NotAtRest::Forming(Gfn(run.start))),
                PageCopy::Replica => {
                    for gfn in run.map(Gfn) {
                        replicas.push(self.save_replica(gfn, store)?);
                    }
                }
            }
        }
        let config = &self.config;
        let banned = self.banned.iter().map(|gfn| gfn.0..gfn.0 + 1);
        Ok(NodeState {
            epoch: config.epoch,
            slice: config.local,
            slices: config.slices.clone(),
            homes: self.home_states(),
            vcpus: config.vcpus,
            tables: config.replicate.into(),
            shared,
            exclusive,
            replicas,
            directory: self.save_directory(),
            never_replicas: FrameRuns::of(banned.collect()),
            roots: self.tables.roots().map(|(vcpu, page)| RootState { vcpu, page }).collect(),
            newest_flush: self.releases.newest,
            channels: self.counts(),
        })
    }

    /// Messages between this slice and each other one: of the form, but without a look at each page.
    #[must_use]
    pub fn counts(&self) -> Vec<Channel> {
        let others = self.others().into_iter();
        others.map(|peer| Channel::new(peer, self.channels.get(peer))).collect()
    }

    pub(crate) fn home_states(&self) -> Vec<HomeState> {
        let state = |range: &HomeRange| {
            let pages = range.frames.end - range.frames.start;
            HomeState { first: range.frames.start, pages, home: range.home }
        };
        self.config.homes.ranges().iter().map(state).collect()
    }

    fn save_replica(&self, gfn: Gfn, store: &impl PageStore) -> Result<ReplicaState, NotAtRest> {
        let table = self.tables.replica(gfn).ok_or(NotAtRest::Forming(gfn))?;
        if !store.is_flushed(gfn) {
            return Err(NotAtRest::Unflushed(gfn));
        }
        Ok(ReplicaState::of(gfn, table, self.tables.is_of_process(gfn), twin_hash(gfn, store)))
    }

    fn save_directory(&self) -> Vec<HoldersState> {
        let mut groups: BTreeMap<Holders, FrameRuns> = BTreeMap::new();
        for (run, holders) in self.pages.directory_runs() {
            // Notes of dropped requests end here: no message about them is on its way.
            let replicated = holders.is_replicated();
            let holders = if replicated { Holders::replicated() } else { holders };
            let holders = self.without_forgotten(holders);
            groups.entry(holders).or_default().append(run);
        }
        let group = |(holders, frames): (Holders, FrameRuns)| {
            let kind = holders.kind().into();
            let slices = holders.iter().collect();
            HoldersState { kind, slices, widely_shared: holders.is_widely_shared(), frames }
        };
        groups.into_iter().map(group).collect()
    }

    /// A node that goes on where another was saved. `store` has the contents of all pages that this slice has, and none
    /// of them is mapped: faults map them.
    ///
    /// # Errors
    /// The form contradicts itself, is of another configuration, or its replicas are not what is in memory. The store
    /// may have twins then.
    pub fn restored(
        config: Config,
        state: &NodeState,
        store: &mut impl PageStore,
    ) -> Result<Self, Invalid> {
        state.check()?;
        fits(&config, state)?;
        let mut node = Self::new(config);
        for gfn in node.pages.copies().map(|(gfn, _)| gfn).collect::<Vec<_>>() {
            node.pages.set_copy(gfn, PageCopy::Invalid);
        }
        let copies = [(PageCopy::Shared, &state.shared), (PageCopy::Exclusive, &state.exclusive)];
        for (copy, frames) in copies {
            frames.frames().for_each(|gfn| node.pages.set_copy(gfn, copy));
        }
        for group in &state.directory {
            let holders = Holders::of(group.kind.into(), &group.slices, group.widely_shared);
            group.frames.frames().for_each(|gfn| node.pages.set_holders(gfn, holders));
        }
        for replica in &state.replicas {
            node.restore_replica(replica, store)?;
        }
        node.banned.extend(state.never_replicas.frames());
        for root in &state.roots {
            node.tables.set_root(root.vcpu, root.page);
        }
        node.releases.newest = state.newest_flush;
        for Channel { peer, sent, received } in &state.channels {
            node.channels.set(*peer, Counts { sent: *sent, received: *received });
        }
        Ok(node)
    }

    fn restore_replica(
        &mut self,
        replica: &ReplicaState,
        store: &mut impl PageStore,
    ) -> Result<(), Invalid> {
        let gfn = replica.page;
        let table: Option<Table> = replica.table();
        let table = table.ok_or_else(|| Invalid::new("replicas", "a level that no table has"))?;
        self.pages.set_copy(gfn, PageCopy::Replica);
        if self.twins_forgotten() {
            return Ok(());
        }
        store.snapshot(gfn, table);
        if twin_hash(gfn, store) != replica.hash {
            return Err(Invalid::new("replicas", format!("{gfn} in memory is not what was saved")));
        }
        self.tables.insert(gfn, table, store);
        let hidden = self.tables.is_of_process(gfn) && !replica.of_process;
        Invalid::unless(!hidden, "replicas", "a root has entries of a process, and is of none")?;
        if replica.of_process {
            self.tables.set_of_process(gfn);
        }
        Ok(())
    }

    #[cfg(feature = "planted-bugs")]
    fn without_forgotten(&self, holders: Holders) -> Holders {
        let several = holders.kind() == Kind::Shared && holders.iter().count() > 1;
        if !several || !self.planted(crate::PlantedBug::SavedHolderForgotten) {
            return holders;
        }
        let left: Vec<_> = holders.iter().skip(1).collect();
        Holders::of(holders.kind(), &left, holders.is_widely_shared())
    }
    #[cfg(feature = "planted-bugs")]
    fn twins_forgotten(&self) -> bool {
        self.planted(crate::PlantedBug::RestoredTwinForgotten)
    }
    #[cfg(not(feature = "planted-bugs"))]
    fn without_forgotten(&self, holders: Holders) -> Holders {
        holders
    }
    #[cfg(not(feature = "planted-bugs"))]
    fn twins_forgotten(&self) -> bool {
        false
    }
}

/// Hash of a twin without accessed and dirty bits, in which slices may differ. The same in every build of this program.
fn twin_hash(gfn: Gfn, store: &impl PageStore) -> u64 {
    let mut hash = Xxh3Default::new();
    store.twin_entries(gfn, &mut |index, value| {
        let value = value & !ACCESSED_DIRTY;
        if value != 0 {
            hash.update(&index.to_le_bytes());
            hash.update(&value.to_le_bytes());
        }
    });
    hash.digest()
}

/// Whether a form is of a node with this configuration. A later epoch may go on with it.
fn fits(config: &Config, state: &NodeState) -> Result<(), Invalid> {
    Invalid::unless(state.slice == config.local, "slice", "it is of another slice")?;
    Invalid::unless(state.slices == config.slices, "slices", "other slices share this memory")?;
    let homes = state.home_table()? == config.homes;
    Invalid::unless(homes, "homes", "homes are elsewhere")?;
    Invalid::unless(state.vcpus == config.vcpus, "vcpus", "this VM has another number")?;
    let tables = state.tables == TableScope::from(config.replicate);
    Invalid::unless(tables, "tables", "other tables are replicated here")?;
    Invalid::unless(state.epoch <= config.epoch, "epoch", "it is later than this one")
}
