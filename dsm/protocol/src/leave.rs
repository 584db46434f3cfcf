//! A slice shares memory no longer.
//!
//! ```text
//!   home of nothing (`home_move`), its pages pulled, its vCPUs elsewhere, all nodes at rest, counts of messages agree
//!     --may_part_with on each other node--> one refuses: all go on as they were
//!              \--all agree--> part_with on each: it is no member, holds nothing, and gets nothing
//!                                 \--nobody else is left--> all pages are exclusive here, and no replica is left
//! ```
//!
//! At such a moment nothing is on its way, so no message is needed. A page that the leaver may read is clean, and others
//! have it too: it is taken out of the holders. Each other member has a replica of a page table as well. Whatever else
//! it holds would be lost with it, and is refused.

use crate::node::Node;
use crate::pages::{Holders, PageCopy};
use crate::planted::PlantedBug;
use crate::saved::NotAtRest;
use crate::store::PageStore;
use thiserror::Error;
use wire::{Gfn, SliceId};

/// Why a slice cannot leave now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CannotLeave {
    /// It shares no memory.
    #[error("{0} shares no memory")]
    NotAMember(SliceId),
    /// It was asked to leave itself.
    #[error("{0} cannot part with itself")]
    Itself(SliceId),
    /// Something is under way in a node that stays.
    #[error("{0}, and a slice can only leave at rest")]
    NotAtRest(#[from] NotAtRest),
    /// It is home of a page.
    #[error("{0} is still the home of {1}")]
    Home(SliceId, Gfn),
    /// Nobody else has a page.
    #[error("{0} is the only slice that has {1}")]
    OnlyHolder(SliceId, Gfn),
}

impl Node {
    /// Whether a slice can leave, as far as this node knows. Nothing changes.
    ///
    /// # Errors
    /// Why not, with the page.
    pub fn may_part_with(&self, slice: SliceId) -> Result<(), CannotLeave> {
        if slice == self.config.local {
            return Err(CannotLeave::Itself(slice));
        }
        if !self.is_member(slice) {
            return Err(CannotLeave::NotAMember(slice));
        }
        if let Some(why) = self.in_flight() {
            return Err(CannotLeave::NotAtRest(why));
        }
        let home = self.config.homes.ranges().iter().find(|range| range.home == slice);
        if let Some(range) = home {
            return Err(CannotLeave::Home(slice, Gfn(range.frames.start)));
        }
        if self.planted(PlantedBug::LeaverTakesPages) {
            return Ok(());
        }
        match self.pages.directory().find(|(_, holders)| holders.without(slice).is_none()) {
            Some((gfn, _)) => Err(CannotLeave::OnlyHolder(slice, gfn)),
            None => Ok(()),
        }
    }

    /// A slice has left: this node never sends it anything, and takes nothing from it. All nodes that stay were asked
    /// before by [`Self::may_part_with`], and none has taken a step since.
    ///
    /// # Errors
    /// As for [`Self::may_part_with`], and nothing has changed then.
    pub fn part_with(
        &mut self,
        slice: SliceId,
        store: &mut impl PageStore,
    ) -> Result<(), CannotLeave> {
        self.may_part_with(slice)?;
        if !self.planted(PlantedBug::LeaverStaysMember) {
            self.config.slices.retain(|member| *member != slice);
        }
        if !self.planted(PlantedBug::LeaverStaysHolder) {
            self.pages.remove_holder(slice);
        }
        self.late_runs.retain(|(asked_by, _)| *asked_by != slice);
        self.channels.set(slice, Default::default());
        if self.is_alone() && !self.planted(PlantedBug::LoneReplicasKept) {
            self.take_all(store);
        }
        Ok(())
    }

    /// True when no other slice shares this memory.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.config.slices == [self.config.local]
    }

    /// Nobody else is left: each page is this slice's alone. Pages stay mapped as they are, and faults map them to be
    /// written.
    fn take_all(&mut self, store: &mut impl PageStore) {
        for gfn in self.tables.end_all() {
            store.forget(gfn);
        }
        self.overtaken.clear();
        self.late_runs.clear();
        let local = Holders::exclusive(self.config.local);
        let all: Vec<Gfn> = self.pages.directory().map(|(gfn, _)| gfn).collect();
        for gfn in all {
            self.pages.set_copy(gfn, PageCopy::Exclusive);
            self.pages.set_holders(gfn, local);
        }
    }
}
