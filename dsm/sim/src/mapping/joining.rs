//! Slices that join, one after another.
//!
//! ```text
//!   rest --> all that are there take the newcomer in, its engine starts from the form that they give
//!     --> vCPUs go to it, and all go on
//! ```

use super::world::{Failure, World};
use dsm::JoinError;
use dsm::simulate::SteppedSlice;
use dsm_protocol::saved::{NodeState, check_all};
use dsm_protocol::{Gfn, SliceId};
use std::error::Error;
use std::sync::Arc;

/// The most events between two slices that join.
const EVENTS_BETWEEN: u64 = 3_000;
const PAGE: usize = 4096;

impl World {
    /// Has a slice join, if it is time.
    pub(super) fn look_at_joins(&mut self, events: u64) -> Result<(), Failure> {
        let gone: Vec<u16> =
            (0..).zip(&self.slices).filter(|(_, at)| at.gone).map(|(at, _)| at).collect();
        let Some(joins) = &mut self.joins else { return Ok(()) };
        if events < joins.next || gone.is_empty() {
            return Ok(());
        }
        joins.next = events + joins.random.below(EVENTS_BETWEEN);
        let joiner = joins.pick(&gone);
        self.rest_all()?;
        let Some(forms) = self.take_in(SliceId(joiner))? else {
            // Engines that rest hold moves of homes back. It is tried again.
            self.go_on();
            return Ok(());
        };
        let begun = self.begin(joiner, &forms[0]);
        begun.or_else(|error| self.fail(&format!("slice{joiner} does not join: {error}")))?;
        self.joined += 1;
        let states = self.save().or_else(|error| self.fail(&error.to_string()))?;
        check_all(&states).or_else(|error| self.fail(&error.to_string()))?;
        self.go_on();
        Ok(())
    }

    /// All that are there take the slice in, unless homes move.
    fn take_in(&mut self, joiner: SliceId) -> Result<Option<Vec<NodeState>>, Failure> {
        let there = self.staying();
        let mut forms = Vec::new();
        for at in &there {
            match self.slices[*at].stepped.may_join_with(joiner) {
                Ok(form) => forms.push(form),
                Err(JoinError::HomesMove) => return Ok(None),
                Err(refusal) => return self.fail(&refusal.to_string()),
            }
        }
        for at in there {
            match self.slices[at].stepped.join_with(joiner) {
                Ok(form) => forms.push(form),
                Err(error) => return self.fail(&error),
            }
        }
        if forms.iter().any(|form| *form != forms[0]) {
            return self.fail("engines give different forms of a newcomer");
        }
        Ok(Some(forms))
    }

    /// The newcomer's engine starts, and vCPUs go there.
    fn begin(&mut self, joiner: u16, form: &NodeState) -> Result<(), Box<dyn Error>> {
        let at = usize::from(joiner);
        let mailbox = Arc::clone(&self.slices[at].mailbox);
        let mut config = self.config(joiner, &mailbox)?;
        // The placement that is in force then says where homes are.
        config.node.homes = self.slices[0].stepped.homes();
        config.node.epoch = form.epoch;
        let frames: Vec<Gfn> = config.frames.iter().cloned().flatten().map(Gfn).collect();
        let stepped = SteppedSlice::restored(config, form, &|ram| {
            // Nobody sees what is there.
            frames
                .iter()
                .filter(|gfn| gfn.0 % 3 == 0)
                .for_each(|gfn| ram.write(*gfn, 0, &[0xee; PAGE]));
        })?;
        self.replace(at, stepped);
        self.slices[at].gone = false;
        let count = self.guests().vcpus.len();
        let Some(joins) = &mut self.joins else { return Ok(()) };
        let moved: Vec<usize> = (0..count).filter(|_| joins.random.one_in(3)).collect();
        for vcpu in moved {
            self.guests().vcpus[vcpu].slice = at;
        }
        Ok(())
    }
}
