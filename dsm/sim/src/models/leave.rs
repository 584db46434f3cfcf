//! A slice leaves: what may happen until it is gone.

use super::actions::Action;
use super::cluster::{Cluster, Slice, Violation, Wait};
use super::scenario::{REST, Scenario};
use dsm_protocol::saved::{NodeState, check_all};
use dsm_protocol::{Gfn, Input, SliceId};
use std::sync::Arc;

impl Scenario {
    fn pages(&self) -> u16 {
        u16::try_from(self.homes.len()).expect("few pages")
    }

    /// Pages are pulled off the slice, all come to rest, each at any moment at which its vCPUs do not wait, and then the
    /// slice leaves or all go on.
    pub(super) fn leave_actions(&self, state: &Cluster, actions: &mut Vec<Action>) {
        let is_there = |leaver: &u16| !state.slice(*leaver).lost && !state.left;
        let Some(leaver) = self.leaver.filter(is_there) else { return };
        let of = |slice: u16| {
            let all = self.vcpus.iter().zip(&state.vcpus);
            all.filter(move |(vcpu, _)| vcpu.slice == slice)
        };
        let is_over = of(leaver).all(|(vcpu, at)| at.at == vcpu.ops.len());
        if !is_over || state.moves.1 < self.moves.len() {
            return;
        }
        for slice in 0..self.slices {
            let Slice { node, lost, .. } = state.slice(slice);
            if *lost || node.is_resting() {
                continue;
            }
            let pulled = |gfn: &Gfn| node.is_pulled(*gfn, SliceId(leaver));
            if slice != leaver && (0..u64::from(self.pages())).map(Gfn).any(|gfn| pulled(&gfn)) {
                actions.push(Action::Pull(slice));
            }
            if self.may_rest(state, slice) {
                actions.push(Action::Rest(slice));
            }
        }
        if state.is_cut() {
            actions.push(Action::Leave);
        }
    }

    /// A slice comes to rest when none of its vCPUs waits.
    pub(super) fn may_rest(&self, state: &Cluster, slice: u16) -> bool {
        let Slice { node, lost, .. } = state.slice(slice);
        let mut of = self.vcpus.iter().zip(&state.vcpus).filter(|(vcpu, _)| vcpu.slice == slice);
        !lost && !node.is_resting() && of.all(|(_, at)| at.wait == Wait::None)
    }
}

impl Cluster {
    /// All are at rest, and nothing is on its way.
    pub(super) fn is_cut(&self) -> bool {
        let is_at_rest = |slice: &Slice| {
            slice.lost || slice.node.is_resting() && slice.node.in_flight().is_none()
        };
        self.wires.is_empty() && self.slices.iter().all(is_at_rest)
    }

    pub(super) fn pull(&mut self, home: u16, scenario: &Scenario) {
        let from = SliceId(scenario.leaver.expect("a slice leaves"));
        let input = Input::Pull { gfn: Gfn(0), pages: scenario.pages(), from };
        self.step(home, input, None, scenario);
    }

    pub(super) fn rest(&mut self, slice: u16, scenario: &Scenario) {
        Arc::make_mut(&mut self.slices[usize::from(slice)].node).set_resting(true);
        self.step(slice, Input::Release { tokens: REST..REST + 1 }, None, scenario);
    }

    /// Either all that stay part with the slice, or none does. Then all go on.
    pub(super) fn leave(&mut self, scenario: &Scenario) {
        let leaver = scenario.leaver.expect("a slice leaves");
        let (gone, id) = (usize::from(leaver), SliceId(leaver));
        let stays = |at: usize, slice: &Slice| at != gone && !slice.lost;
        let all_agree = (0..).zip(&self.slices).filter(|(at, slice)| stays(*at, slice));
        let all_agree = all_agree.map(|(_, slice)| slice.node.may_part_with(id)).all(|r| r.is_ok());
        let mut refused = None;
        for (at, slice) in (0..).zip(&mut self.slices) {
            let parts = all_agree && stays(at, slice);
            let node = Arc::make_mut(&mut slice.node);
            if parts {
                let parted = node.part_with(id, Arc::make_mut(&mut slice.store));
                refused = refused.or_else(|| parted.err());
            }
            node.set_resting(false);
        }
        if let Some(refused) = refused {
            self.fail(Violation::Protocol(refused.to_string()));
        }
        if all_agree {
            self.slices[gone].lost = true;
            self.left = true;
            if scenario.planted.is_none() {
                self.check_forms();
            }
        }
    }

    /// The nodes that stay are those of one memory.
    pub(super) fn check_forms(&mut self) {
        let living = self.slices.iter().filter(|slice| !slice.lost);
        let forms: Result<Vec<NodeState>, _> =
            living.map(|slice| slice.node.save(&*slice.store)).collect();
        let wrong = match forms {
            Ok(forms) => check_all(&forms).err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(wrong) = wrong {
            self.fail(Violation::Protocol(wrong));
        }
    }
}
