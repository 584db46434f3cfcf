//! A slice joins: what may happen until it is there.

use super::actions::Action;
use super::cluster::{Cluster, Slice, Violation};
use super::scenario::Scenario;
use dsm_protocol::saved::NodeState;
use dsm_protocol::{Config, Node, SliceId};
use std::sync::Arc;

impl Scenario {
    /// All come to rest, each at any moment at which its vCPUs do not wait, and then the slice joins or all go on.
    pub(super) fn join_actions(&self, state: &Cluster, actions: &mut Vec<Action>) {
        if self.joiner.is_none() || state.joined {
            return;
        }
        for rest in (0..self.slices).filter(|slice| self.may_rest(state, *slice)).map(Action::Rest)
        {
            if !actions.contains(&rest) {
                actions.push(rest);
            }
        }
        if state.is_cut() {
            actions.push(Action::Join);
        }
    }
}

impl Cluster {
    /// Either the slice joins all that are there, or none. Then all go on.
    pub(super) fn join(&mut self, scenario: &Scenario) {
        let joiner = scenario.joiner.expect("a slice joins");
        let id = SliceId(joiner);
        let there = |slice: &&Slice| !slice.lost;
        let all = self.slices.iter().filter(there);
        let all_agree = all.map(|slice| slice.node.may_join_with(id, &*slice.store));
        let may: Vec<_> = all_agree.collect();
        let all_agree = may.iter().all(Result::is_ok);
        // The newcomer begins with what they say now, or with what they say when they take it in.
        let mut forms = if all_agree { may } else { Vec::new() };
        for slice in self.slices.iter_mut().filter(|slice| !slice.lost) {
            let node = Arc::make_mut(&mut slice.node);
            if all_agree {
                forms.push(node.join_with(id, Arc::make_mut(&mut slice.store)));
            }
            node.set_resting(false);
        }
        if all_agree {
            match forms.into_iter().collect::<Result<Vec<_>, _>>() {
                Ok(forms) => self.begin(joiner, &forms, scenario),
                Err(refused) => self.fail(Violation::Protocol(refused.to_string())),
            }
        }
    }

    /// The newcomer starts from the form that all gave.
    fn begin(&mut self, joiner: u16, forms: &[NodeState], scenario: &Scenario) {
        let form = &forms[0];
        if forms.iter().any(|other| other != form) {
            self.fail(Violation::Protocol("members give different forms of a newcomer".into()));
        }
        // The placement that is in force then says where homes are.
        let homes = self.slices.iter().find(|slice| !slice.lost).map(|slice| slice.node.homes());
        let homes = homes.expect("somebody is there").clone();
        let config = scenario.config(joiner, form.slices.clone());
        let mut store = Self::empty_store(scenario);
        match Node::restored(Config { homes, epoch: form.epoch, ..config }, form, &mut store) {
            Ok(node) => {
                let (node, store) = (Arc::new(node), Arc::new(store));
                self.slices[usize::from(joiner)] = Slice { node, store, now: 0, lost: false };
            }
            Err(invalid) => self.fail(Violation::Protocol(invalid.to_string())),
        }
        self.joined = true;
        if scenario.planted.is_none() {
            self.check_forms();
        }
    }
}
