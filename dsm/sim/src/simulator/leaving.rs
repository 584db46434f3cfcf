//! Slices that leave, one after another, until one is left.
//!
//! ```text
//!   its vCPUs go to another slice, behind a release --> homes move off it, pages are pulled, while all vCPUs run
//!     --> all come to rest --one refuses--> all go on, pages are pulled again
//!                       \--all agree--> all that stay part with it, and go on
//! ```

use super::leaves::EVENTS_BETWEEN;
use super::report::Failure;
use super::saves::REST;
use super::world::{Event, Slice, World};
use dsm_protocol::saved::check_all;
use dsm_protocol::{Epoch, Gfn, Input, SliceId};

/// The longest time until it is tried again.
const AGAIN_NS: u64 = 200_000;

impl World {
    /// Slices that have not left.
    pub(super) fn living(&self) -> impl Iterator<Item = &Slice> {
        self.slices.iter().filter(|slice| !slice.gone)
    }

    /// Their numbers.
    pub(super) fn members(&self) -> Vec<u16> {
        self.living().map(|slice| slice.config.local.0).collect()
    }

    /// Begins to empty a slice, if it is time.
    pub(super) fn look_at_leaves(&mut self, events: u64) -> Result<(), Failure> {
        let members = self.members();
        let is_over = self.calendar.is_empty();
        let Some(leaves) = &mut self.leaves else { return Ok(()) };
        if leaves.leaver.is_some() || events < leaves.next || members.len() < 2 || is_over {
            return Ok(());
        }
        let mut pick = |of: &[u16]| {
            let count = u64::try_from(of.len()).expect("small");
            of[usize::try_from(leaves.random.below(count)).expect("small")]
        };
        let leaver = pick(&members);
        let others: Vec<u16> = members.into_iter().filter(|slice| *slice != leaver).collect();
        let heir = pick(&others);
        leaves.next = events + leaves.random.below(EVENTS_BETWEEN);
        leaves.leaver = Some(leaver);
        let mut stopped = Vec::new();
        self.come_to_rest(&mut stopped)?;
        self.step(leaver, Input::Release { tokens: REST..REST + 1 }, None)?;
        self.come_to_rest(&mut stopped)?;
        for vcpu in self.vcpus.iter_mut().filter(|vcpu| vcpu.slice == leaver) {
            vcpu.slice = heir;
        }
        self.kernel.hand_over(leaver, heir);
        self.resume(stopped);
        Ok(())
    }

    /// The slice that is being emptied gives up a home, or all that it has of others' pages. False if none is.
    pub(super) fn empty_slice(&mut self) -> Result<bool, Failure> {
        let Some(leaver) = self.leaves.as_ref().and_then(|leaves| leaves.leaver) else {
            return Ok(false);
        };
        let owner = self.owner();
        let node = &self.slices[usize::from(owner)].node;
        let is_there = |frame: &u64| node.home(Gfn(*frame)) == Some(SliceId(leaver));
        let Some(first) = (0..self.frames).find(|frame| is_there(frame)) else {
            self.pull_from(leaver)?;
            return Ok(true);
        };
        let chunk = first / 512;
        let pages =
            (first..self.frames).take_while(|frame| is_there(frame) && frame / 512 == chunk);
        let (gfn, pages) = (Gfn(first), u16::try_from(pages.count()).expect("small"));
        let others: Vec<u16> = self.members().into_iter().filter(|at| *at != leaver).collect();
        let Some(moves) = &mut self.moves else { return Ok(false) };
        let count = u64::try_from(others.len()).expect("small");
        let to = SliceId(others[usize::try_from(moves.random.below(count)).expect("small")]);
        moves.placement += 1;
        moves.moving = Some(gfn);
        let placement = Epoch(moves.placement);
        self.report.moves += 1;
        self.step(owner, Input::MoveHome { gfn, pages, to, placement }, None)?;
        Ok(true)
    }

    /// All homes get what the slice has of their pages. At times it is tried without, and refused.
    fn pull_from(&mut self, leaver: u16) -> Result<(), Failure> {
        let from = SliceId(leaver);
        let forgotten = self.leaves.as_mut().is_some_and(|leaves| leaves.random.one_in(4));
        let homes = self.members().into_iter().filter(|slice| *slice != leaver && !forgotten);
        for home in homes.collect::<Vec<_>>() {
            let pages = u16::try_from(self.frames).expect("small");
            self.step(home, Input::Pull { gfn: Gfn(0), pages, from }, None)?;
        }
        let soon = self.now + self.random.below(AGAIN_NS);
        self.at(soon, Event::Leave);
        Ok(())
    }

    /// All come to rest, and the slice that is being emptied leaves, unless somebody refuses.
    pub(super) fn try_leave(&mut self) -> Result<(), Failure> {
        let Some(leaver) = self.leaves.as_ref().and_then(|leaves| leaves.leaver) else {
            return Ok(());
        };
        let stopped = self.rest_all()?;
        let (id, staying) = (SliceId(leaver), |slice: &&Slice| slice.config.local.0 != leaver);
        let refusals = self.living().filter(staying).map(|slice| slice.node.may_part_with(id));
        if refusals.collect::<Vec<_>>().iter().any(Result::is_err) {
            self.report.refusals += 1;
            self.resume(stopped);
            return Ok(());
        }
        for at in self.members().into_iter().filter(|slice| *slice != leaver) {
            let slice = &mut self.slices[usize::from(at)];
            if let Err(refusal) = slice.node.part_with(id, &mut slice.store) {
                return self.fail(&refusal.to_string());
            }
            slice.config.slices.retain(|member| *member != id);
        }
        let gone = &mut self.slices[usize::from(leaver)];
        gone.gone = true;
        self.report.add(&gone.node.stats());
        self.report.left += 1;
        if let Some(leaves) = &mut self.leaves {
            leaves.leaver = None;
        }
        if self.setup.planted.is_none() {
            let states = self.save()?;
            if let Err(disagreement) = check_all(&states) {
                return self.fail(&disagreement.to_string());
            }
        }
        self.resume(stopped);
        Ok(())
    }
}
