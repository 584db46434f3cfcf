//! Homes of pages that move, at random moments, to random slices. Slice 0 asks for it.

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
        let Some(moves) = self.moves.as_mut().filter(|moves| moves.moving.is_none() && !is_over)
        else {
            return Ok(());
        };
        let (first, most) = (moves.random.below(self.frames), 1 + moves.random.below(PAGES));
        let to = SliceId(
            u16::try_from(moves.random.below(u64::from(self.setup.slices))).expect("small"),
        );
        let node = &self.slices[0].node;
        let home = node.home(Gfn(first)).expect("all frames have memory");
        let pages = (first..self.frames.min(first + most))
            .take_while(|frame| node.home(Gfn(*frame)) == Some(home) && frame / 512 == first / 512);
        let (gfn, pages) = (Gfn(first), u16::try_from(pages.count()).expect("small"));
        if home == to {
            // Instead, this slice gets what another one has of its pages.
            let from = SliceId(
                u16::try_from(moves.random.below(u64::from(self.setup.slices))).expect("small"),
            );
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
        self.step(0, Input::MoveHome { gfn, pages, to, placement }, None)
    }

    /// A slice asks the next home from now on.
    pub(super) fn home_moved(&mut self, slice: u16, gfn: Gfn) {
        let ours = |moves: &&mut Moves| slice == 0 && moves.moving == Some(gfn);
        if let Some(moves) = self.moves.as_mut().filter(ours) {
            moves.moving = None;
            self.plan_move();
        }
    }

    /// A page has one home, and all slices know it.
    pub(super) fn check_homes(&self) -> Result<(), Failure> {
        for gfn in (0..self.frames).map(Gfn) {
            let homes = self.slices.iter().filter(|slice| slice.node.is_home(gfn)).count();
            let known = self.slices[0].node.home(gfn);
            if homes != 1 || self.slices.iter().any(|slice| slice.node.home(gfn) != known) {
                return self.fail(&format!("{gfn} has {homes} homes, or slices do not agree"));
            }
        }
        Ok(())
    }
}
