//! Slices that join, one after another.
//!
//! ```text
//!   all come to rest --> all that are there take the newcomer in, it starts from the form that they give
//!     --> vCPUs go to it, and all go on
//! ```

use super::joins::EVENTS_BETWEEN;
use super::report::Failure;
use super::world::World;
use dsm_protocol::saved::{NodeState, check_all};
use dsm_protocol::{Config, Node, SliceId};

impl World {
    /// Has a slice join, if it is time and none is to leave.
    pub(super) fn look_at_joins(&mut self, events: u64) -> Result<(), Failure> {
        let gone: Vec<u16> =
            self.slices.iter().filter(|at| at.gone).map(|at| at.config.local.0).collect();
        let is_busy = self.leaves.as_ref().is_some_and(|leaves| leaves.leaver.is_some());
        let is_over = self.calendar.is_empty();
        let Some(joins) = &mut self.joins else { return Ok(()) };
        if events < joins.next || gone.is_empty() || is_busy || is_over {
            return Ok(());
        }
        joins.next = events + joins.random.below(EVENTS_BETWEEN);
        let joiner = joins.pick(&gone);
        let stopped = self.rest_all()?;
        let forms = self.take_in(SliceId(joiner))?;
        self.begin(joiner, &forms)?;
        self.bring_vcpus(joiner);
        self.report.joined += 1;
        if self.setup.planted.is_none() {
            let states = self.save()?;
            if let Err(disagreement) = check_all(&states) {
                return self.fail(&disagreement.to_string());
            }
        }
        self.resume(stopped);
        Ok(())
    }

    /// All that are there take the slice in. At rest none refuses.
    fn take_in(&mut self, joiner: SliceId) -> Result<Vec<NodeState>, Failure> {
        let may = self.living().map(|at| at.node.may_join_with(joiner, &at.store));
        let mut forms = match may.collect::<Result<Vec<_>, _>>() {
            Ok(forms) => forms,
            Err(refusal) => return self.fail(&refusal.to_string()),
        };
        for at in self.members() {
            let slice = &mut self.slices[usize::from(at)];
            match slice.node.join_with(joiner, &mut slice.store) {
                Ok(form) => forms.push(form),
                Err(refusal) => return self.fail(&refusal.to_string()),
            }
            slice.config.slices.clone_from(&forms[0].slices);
        }
        if forms.iter().any(|form| *form != forms[0]) {
            return self.fail("members give different forms of a newcomer");
        }
        Ok(forms)
    }

    /// The newcomer starts.
    fn begin(&mut self, joiner: u16, forms: &[NodeState]) -> Result<(), Failure> {
        let at = usize::from(joiner);
        // The placement that is in force then says where homes are.
        let homes = self.slices[usize::from(self.owner())].node.homes().clone();
        let (slices, epoch) = (forms[0].slices.clone(), forms[0].epoch);
        let config = Config { slices, homes, epoch, ..self.slices[at].config.clone() };
        let mut store = self.empty_store();
        match Node::restored(config.clone(), &forms[0], &mut store) {
            Ok(node) => {
                let slice = &mut self.slices[at];
                (slice.node, slice.store, slice.config) = (node, store, config);
                (slice.tick, slice.gone) = (None, false);
                Ok(())
            }
            Err(invalid) => self.fail(&invalid.to_string()),
        }
    }

    /// All vCPUs of one slice go to the newcomer, in the middle of what they do; or some, between what they do.
    fn bring_vcpus(&mut self, joiner: u16) {
        let others: Vec<u16> = self.members().into_iter().filter(|at| *at != joiner).collect();
        let Some(joins) = &mut self.joins else { return };
        if joins.random.one_in(3) {
            let from = joins.pick(&others);
            self.vcpus.iter_mut().filter(|at| at.slice == from).for_each(|at| at.slice = joiner);
            self.kernel.hand_over(from, joiner);
            return;
        }
        for vcpu in self.vcpus.iter_mut().filter(|vcpu| vcpu.plan.is_empty()) {
            if joins.random.one_in(2) {
                vcpu.slice = joiner;
            }
        }
    }
}
