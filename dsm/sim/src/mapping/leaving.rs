//! Slices that leave, one after another, until the first one is left.
//!
//! ```text
//!   rest: its vCPUs go to another slice --> homes move off it, pages are pulled, while all vCPUs run
//!     --> rest --an engine refuses--> again in a while
//!            \--all agree--> all that stay part with it, and go on
//! ```

use super::leaves::EVENTS_BETWEEN;
use super::world::{Failure, World};
use crate::mapping::guests::State;
use crossbeam_channel::{Receiver, TryRecvError};
use dsm::HomeMoveError;
use dsm_protocol::saved::check_all;
use dsm_protocol::{Epoch, SliceId};

type Moved = Receiver<Result<(), HomeMoveError>>;

impl World {
    /// The slices that have not left and are not about to.
    pub(super) fn staying(&self) -> Vec<usize> {
        let leaver = self.leaves.as_ref().and_then(|leaves| leaves.leaver);
        let all = 0..self.slices.len();
        all.filter(|at| !self.slices[*at].gone && Some(*at) != leaver).collect()
    }

    /// Has a slice leave, if it is time.
    pub(super) fn look_at_leaves(&mut self, events: u64) -> Result<(), Failure> {
        let staying = self.staying();
        let Some(leaves) = &mut self.leaves else { return Ok(()) };
        if events < leaves.next || staying.len() < 2 {
            return Ok(());
        }
        leaves.next = events + leaves.random.below(EVENTS_BETWEEN);
        let mut any = |of: &[usize]| {
            let count = u64::try_from(of.len()).expect("few");
            of[usize::try_from(leaves.random.below(count)).expect("few")]
        };
        // The first slice has homes move.
        let leaver = any(&staying[1..]);
        let others: Vec<usize> = staying.into_iter().filter(|at| *at != leaver).collect();
        let heir = any(&others);
        leaves.leaver = Some(leaver);
        self.rest_all()?;
        for vcpu in self.guests().vcpus.iter_mut().filter(|vcpu| vcpu.slice == leaver) {
            vcpu.slice = heir;
        }
        self.go_on();
        while !self.is_gone(leaver, heir)? {}
        if let Some(leaves) = &mut self.leaves {
            leaves.leaver = None;
        }
        Ok(())
    }

    /// Empties a slice, and has it leave. False if an engine refuses.
    fn is_gone(&mut self, leaver: usize, heir: usize) -> Result<bool, Failure> {
        let from = SliceId(u16::try_from(leaver).expect("few"));
        let to = SliceId(u16::try_from(heir).expect("few"));
        let homes = self.slices[0].stepped.homes();
        let moves = homes.ranges().iter().filter(|range| range.home == from).map(|range| {
            let placement = self.moves.as_mut().map_or(0, |moves| {
                moves.placement += 1;
                moves.placement
            });
            self.slices[0].stepped.move_home(range.frames.clone(), to, Epoch(placement))
        });
        let moves: Vec<Moved> = moves.collect();
        self.await_all(moves)?;
        let homes = self.slices[0].stepped.homes();
        let pulls = homes.ranges().iter().filter(|range| range.home != from).map(|range| {
            let home = &self.slices[usize::from(range.home.0)];
            home.stepped.pull_home(range.frames.clone(), from)
        });
        let pulls: Vec<Moved> = pulls.collect();
        self.await_all(pulls)?;
        self.rest_all()?;
        let staying = self.staying();
        let refused = |at: &usize| self.slices[*at].stepped.may_part_with(from).is_err();
        let parts = !staying.iter().any(refused);
        if parts {
            for at in staying {
                let parted = self.slices[at].stepped.part_with(from);
                parted.or_else(|error| self.fail(&error))?;
            }
            self.left += 1;
            self.slices[leaver].gone = true;
            self.guests().hosts[leaver].gone = true;
            let states = self.save().or_else(|error| self.fail(&error.to_string()))?;
            check_all(&states).or_else(|error| self.fail(&error.to_string()))?;
        }
        self.go_on();
        Ok(parts)
    }

    /// Lets all go on until homes have moved.
    fn await_all(&mut self, mut answers: Vec<Moved>) -> Result<(), Failure> {
        self.staying().into_iter().for_each(|at| self.turn_soon(at));
        loop {
            let mut failed = None;
            answers.retain(|answer| match answer.try_recv() {
                Ok(Ok(())) => false,
                Err(TryRecvError::Empty) => true,
                Ok(Err(error)) => {
                    failed = Some(error.to_string());
                    false
                }
                Err(error) => {
                    failed = Some(error.to_string());
                    false
                }
            });
            if let Some(failed) = failed {
                return self.fail(&failed);
            }
            if answers.is_empty() {
                return Ok(());
            }
            let Some(((at, _), event)) = self.calendar.pop_first() else {
                return self.fail("homes do not move");
            };
            self.happen(at, event)?;
        }
    }

    /// Brings all to rest. No vCPU runs.
    pub(super) fn rest_all(&mut self) -> Result<(), Failure> {
        self.guests().stopped = true;
        self.come_to_rest()
    }

    /// All go on.
    pub(super) fn go_on(&mut self) {
        for at in 0..self.slices.len() {
            self.slices[at].stepped.go_on();
            self.turn_soon(at);
        }
        self.guests().start_again();
        let count = self.guests().vcpus.len();
        for vcpu in 0..count {
            if self.guests().vcpus[vcpu].state != State::Ends {
                self.plan(vcpu, 500);
            }
        }
    }
}
