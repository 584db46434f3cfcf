//! Homes of pages that move, at random moments, to random slices. The first slice that has not left asks for it.

use super::moves::{BETWEEN_NS, Moves, PAGES};
use super::report::Failure;
use super::world::{Event, World};
use dsm_protocol::{Epoch, Gfn, Input, SliceId};

impl World {
    /// The next move is due in a while.
    pub(super) fn plan_move(&mut self) {
        let Some(moves) = &mut self.moves else { return };
        let wait = moves.random.below(BETWEEN_NS);
        self.at(self.now + wait, Event::MoveHome);
    }

    /// A home moves, or pages go to where theirs is.
    pub(super) fn move_home(&mut self) -> Result<(), Failure> {
        // Nothing else happens any more: all are done, or wait for ever.
        let is_over = self.calendar.is_empty();
        if is_over || self.moves.as_ref().is_none_or(|moves| moves.moving.is_some()) {
            return Ok(());
        }
        if self.empty_slice()? {
            return Ok(());
        }
        let (members, owner) = (self.members(), self.owner());
        let Some(moves) = &mut self.moves else { return Ok(()) };
        let (first, most) = (moves.random.below(self.frames), 1 + moves.random.below(PAGES));
        let count = u64::try_from(members.len()).expect("small");
        let mut any = || members[usize::try_from(moves.random.below(count)).expect("small")];
        let to = SliceId(any());
        let node = &self.slices[usize::from(owner)].node;
        let home = node.home(Gfn(first)).expect("all frames have memory");
        let pages = (first..self.frames.min(first + most))
            .take_while(|frame| node.home(Gfn(*frame)) == Some(home) && frame / 512 == first / 512);
        let (gfn, pages) = (Gfn(first), u16::try_from(pages.count()).expect("small"));
        if home == to {
            // Instead, this slice gets what another one has of its pages.
            let from = SliceId(any());
            self.plan_move();
            return if from == to {
                Ok(())
            } else {
                self.step(to.0, Input::Pull { gfn, pages, from }, None)
            };
        }
        moves.placement += 1;
        moves.moving = Some(gfn);
        let placement = Epoch(moves.placement);
        self.report.moves += 1;
        self.step(owner, Input::MoveHome { gfn, pages, to, placement }, None)
    }

    /// The slice that has homes move.
    pub(super) fn owner(&self) -> u16 {
        self.living().next().map_or(0, |slice| slice.config.local.0)
    }

    /// A slice asks the next home from now on.
    pub(super) fn home_moved(&mut self, slice: u16, gfn: Gfn) {
        let is_owner = slice == self.owner();
        let ours = |moves: &&mut Moves| is_owner && moves.moving == Some(gfn);
        if let Some(moves) = self.moves.as_mut().filter(ours) {
            moves.moving = None;
            self.plan_move();
        }
    }

    /// A page has one home, and all slices know it.
    pub(super) fn check_homes(&self) -> Result<(), Failure> {
        for gfn in (0..self.frames).map(Gfn) {
            let homes = self.living().filter(|slice| slice.node.is_home(gfn)).count();
            let known = self.slices[usize::from(self.owner())].node.home(gfn);
            if homes != 1 || self.living().any(|slice| slice.node.home(gfn) != known) {
                return self.fail(&format!("{gfn} has {homes} homes, or slices do not agree"));
            }
        }
        Ok(())
    }
}
