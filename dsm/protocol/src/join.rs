//! A slice begins to share memory.
//!
//! ```text
//!   all nodes at rest, replicas flushed, counts of messages agree
//!     --may_join_with on each node--> one refuses: all go on as they were
//!              \--all agree, and give the form of the newcomer--> Node::restored there, in the same epoch
//!                    \--it has begun--> join_with on each: no page is a replica, and the newcomer is a member that holds nothing
//! ```
//!
//! At such a moment nothing is on its way, so no message is needed. All members give the same form, and the newcomer
//! knows from it what all others know: homes, and the roots of all vCPUs.
//!
//! Each member has a replica of a page table, and the newcomer has none. So replicas end: all are the same after the
//! flush but for accessed and dirty bits, which nobody misses. The home of a page keeps its own, as the only copy, and
//! the others drop theirs. Tables become replicas again as at the start, from the roots downwards.

use crate::channels::Counts;
use crate::node::Node;
use crate::pages::{Holders, PageCopy};
use crate::planted::PlantedBug;
use crate::saved::{Channel, FrameRuns, NodeState, NotAtRest, RootState};
use crate::store::PageStore;
use thiserror::Error;
use wire::{Epoch, Gfn, SLICES_MAX, SliceId};

/// Why a slice cannot join now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CannotJoin {
    /// It shares memory already.
    #[error("{0} shares memory already")]
    Member(SliceId),
    /// Its number is too high.
    #[error("{0} has a number above that of all slices")]
    TooHigh(SliceId),
    /// Something is under way in a node.
    #[error("{0}, and a slice can only join at rest")]
    NotAtRest(#[from] NotAtRest),
    /// The homes name it, and it has no memory yet.
    #[error("{0} is the home of {1} before it shares memory")]
    Home(SliceId, Gfn),
}

impl Node {
    /// Whether a slice can join, as far as this node knows. Gives the form that it begins with, the same on all nodes; the
    /// newcomer may begin before the others take it in. Nothing changes.
    ///
    /// # Errors
    /// Why not.
    pub fn may_join_with(
        &self,
        slice: SliceId,
        store: &impl PageStore,
    ) -> Result<NodeState, CannotJoin> {
        if slice.0 >= SLICES_MAX {
            return Err(CannotJoin::TooHigh(slice));
        }
        if self.is_member(slice) {
            return Err(CannotJoin::Member(slice));
        }
        if let Some(why) = self.in_flight() {
            return Err(CannotJoin::NotAtRest(why));
        }
        let home = self.config.homes.ranges().iter().find(|range| range.home == slice);
        if let Some(range) = home {
            return Err(CannotJoin::Home(slice, Gfn(range.frames.start)));
        }
        // What only this replica has would be lost with it.
        let changed = self.tables.replicas().find(|(gfn, _)| !store.is_flushed(*gfn));
        match changed.filter(|_| !self.planted(PlantedBug::ReleaseWithoutFlush)) {
            Some((gfn, _)) => Err(CannotJoin::NotAtRest(NotAtRest::Unflushed(gfn))),
            None => Ok(self.newcomer(slice)),
        }
    }

    /// A slice joins. Gives back its form. All nodes were asked before by [`Self::may_join_with`], and none has taken a
    /// step since.
    ///
    /// # Errors
    /// As for [`Self::may_join_with`], and nothing has changed then.
    pub fn join_with(
        &mut self,
        slice: SliceId,
        store: &mut impl PageStore,
    ) -> Result<NodeState, CannotJoin> {
        let form = self.may_join_with(slice, store)?;
        if !self.planted(PlantedBug::ReplicasKeptFromNewcomer) {
            self.end_replicas(store);
        }
        let all = &mut self.config.slices;
        let place = all.partition_point(|member| *member < slice);
        all.insert(place, slice);
        if self.planted(PlantedBug::NewcomerNoMember) {
            self.config.slices.retain(|member| *member != slice);
        }
        if !self.planted(PlantedBug::NewcomerNotCounted) {
            self.channels.begin(slice);
        }
        Ok(form)
    }

    /// No page is a replica any more: each is its home's alone.
    fn end_replicas(&mut self, store: &mut impl PageStore) {
        let all = self.tables.end_all();
        let local = self.config.local;
        for gfn in &all {
            if self.pages.holders(*gfn).is_some() {
                self.pages.set_holders(*gfn, Holders::exclusive(local));
                self.pages.set_copy(*gfn, PageCopy::Exclusive);
            } else if !self.planted(PlantedBug::EndedReplicaUsed) {
                store.unmap(*gfn);
                self.pages.set_copy(*gfn, PageCopy::Invalid);
            }
        }
        store.settle();
        all.into_iter().for_each(|gfn| store.forget(gfn));
        // The replicas answered them, and the home has noted that. Nothing is left of either.
        self.overtaken.clear();
    }

    /// The form of a slice that joins: it knows what all know, and holds nothing.
    fn newcomer(&self, slice: SliceId) -> NodeState {
        let Epoch(epoch) = self.config.epoch;
        let own = u32::from(self.planted(PlantedBug::NewcomerOwnEpoch));
        let peers = self.config.slices.iter().copied();
        let mut slices = self.config.slices.clone();
        slices.insert(slices.partition_point(|member| *member < slice), slice);
        let roots = self.tables.roots().map(|(vcpu, page)| RootState { vcpu, page });
        NodeState {
            epoch: Epoch(epoch + own),
            slice,
            slices,
            homes: self.home_states(),
            vcpus: self.config.vcpus,
            tables: self.config.replicate.into(),
            shared: FrameRuns::default(),
            exclusive: FrameRuns::default(),
            replicas: Vec::new(),
            directory: Vec::new(),
            never_replicas: FrameRuns::default(),
            roots: roots.collect(),
            newest_flush: 0,
            channels: peers.map(|peer| Channel::new(peer, Counts::default())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::homes::{HomeRange, HomeTable};
    use crate::saved::check_all;
    use crate::{Input, NoPages};
    use wire::{Access, VcpuId};

    fn node(slices: &[u16], homes: &[u16]) -> Node {
        let ranges = (0..).zip(homes);
        let ranges = ranges
            .map(|(frame, home)| HomeRange { frames: frame..frame + 1, home: SliceId(*home) });
        let homes = HomeTable::new(ranges.collect()).unwrap();
        let slices = slices.iter().copied().map(SliceId).collect();
        Node::new(Config::new(SliceId(1), slices, homes, Epoch(3)))
    }

    #[test]
    fn newcomer_knows_what_all_know_and_holds_nothing() {
        let mut one = node(&[1], &[1, 1]);
        let root = Input::Root { vcpu: VcpuId(4), gfn: Gfn(1) };
        one.step(0, root, &mut NoPages, &mut Vec::new()).unwrap();

        let begins_with = one.may_join_with(SliceId(0), &NoPages).unwrap();
        let form = one.join_with(SliceId(0), &mut NoPages).unwrap();
        assert_eq!(begins_with, form);

        assert_eq!((form.epoch, form.slice), (Epoch(3), SliceId(0)));
        assert_eq!(form.slices, [SliceId(0), SliceId(1)]);
        assert_eq!(form.roots, [RootState { vcpu: VcpuId(4), page: Gfn(1) }]);
        assert_eq!(check_all(&[one.save(&NoPages).unwrap(), form]), Ok(()));
    }

    #[test]
    fn slice_that_cannot_join_changes_nothing() {
        let mut one = node(&[1, 2], &[1, 2, 5]);
        let before = one.clone();
        let refused = |node: &mut Node, slice| {
            let may = node.may_join_with(SliceId(slice), &NoPages);
            assert_eq!(node.join_with(SliceId(slice), &mut NoPages), may);
            may.unwrap_err()
        };
        assert_eq!(refused(&mut one, 1), CannotJoin::Member(SliceId(1)));
        assert_eq!(refused(&mut one, 2), CannotJoin::Member(SliceId(2)));
        assert_eq!(refused(&mut one, 64), CannotJoin::TooHigh(SliceId(64)));
        assert_eq!(refused(&mut one, 5), CannotJoin::Home(SliceId(5), Gfn(2)));
        assert_eq!(one, before);
        let fault = Input::Fault { gfn: Gfn(1), want: Access::Read };
        one.step(0, fault, &mut NoPages, &mut Vec::new()).unwrap();
        let busy = CannotJoin::NotAtRest(NotAtRest::Requested(Gfn(1)));
        assert_eq!(refused(&mut one, 3), busy);
    }
}
