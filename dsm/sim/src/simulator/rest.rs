//! All nodes at rest, saved, and new ones in their place.
//!
//! ```text
//!   no vCPU runs on --all messages come--> a release on each slice --all messages come--> save, encode
//!        --decode, check_all--> contents of each page from its keeper --> new stores, new nodes --> vCPUs run on
//! ```
//! A vCPU that has pinned a page goes on until it gives it back, as a device's copy would.

use super::report::Failure;
use super::saves::REST;
use super::workload::Step;
use super::world::{Event, Slice, Vcpu, World};
use crate::store::Page;
use dsm_protocol::saved::{FrameRuns, NodeState, check_all};
use dsm_protocol::{Config, Gfn, Input, Node};
use migrate::saved::{decode, encode};
use std::collections::BTreeMap;

/// True between pin and unpin.
fn has_pin(vcpu: &Vcpu) -> bool {
    let has = |wanted: &dyn Fn(&Step) -> bool| vcpu.plan.iter().any(wanted);
    has(&|step| matches!(step, Step::Unpin(_))) && !has(&|step| matches!(step, Step::Pin(..)))
}

impl World {
    /// Puts new nodes, made from what the nodes of now save, in their place.
    pub(super) fn save_and_restore(&mut self) -> Result<(), Failure> {
        let stopped = self.rest_all()?;
        let states = self.save()?;
        if let Err(disagreement) = check_all(&states) {
            return self.fail(&disagreement.to_string());
        }
        self.count();
        self.restore(&states)?;
        self.report.saves += 1;
        self.report.saved_replicas += u64::try_from(states[0].replicas.len()).expect("few tables");
        self.resume(stopped);
        Ok(())
    }

    /// Brings all nodes to rest, with nothing on its way. Gives back the vCPUs that want to run.
    pub(super) fn rest_all(&mut self) -> Result<Vec<usize>, Failure> {
        let mut stopped = Vec::new();
        self.slices.iter_mut().for_each(|slice| slice.node.set_resting(true));
        self.come_to_rest(&mut stopped)?;
        for slice in self.members() {
            self.step(slice, Input::Release { tokens: REST..REST + 1 }, None)?;
        }
        self.come_to_rest(&mut stopped)?;
        Ok(stopped)
    }

    /// All go on.
    pub(super) fn resume(&mut self, stopped: Vec<usize>) {
        self.slices.iter_mut().for_each(|slice| slice.node.set_resting(false));
        self.plan_move();
        for vcpu in stopped {
            let soon = self.now + self.random.below(3_000);
            self.at(soon, Event::Run(vcpu));
        }
    }

    /// Lets happen all that happens without vCPUs. Those that want to run are noted.
    pub(super) fn come_to_rest(&mut self, stopped: &mut Vec<usize>) -> Result<(), Failure> {
        while let Some(((at, _), event)) = self.calendar.pop_first() {
            self.now = at;
            match event {
                Event::Run(vcpu) if !has_pin(&self.vcpus[vcpu]) => stopped.push(vcpu),
                Event::MoveHome | Event::Leave => {}
                event => self.happen(event)?,
            }
        }
        match self.vcpus.iter().find_map(|vcpu| vcpu.waits_for) {
            Some(gfn) => self.fail(&format!("a vCPU waits for {gfn}, which does not come")),
            None => Ok(()),
        }
    }

    /// The forms of all nodes, as they are read back.
    pub(super) fn save(&self) -> Result<Vec<NodeState>, Failure> {
        let state = |slice: &Slice| {
            let state = slice.node.save(&slice.store).map_err(|error| error.to_string())?;
            let bytes = encode(&state).map_err(|error| error.to_string())?;
            let read: NodeState = decode(&bytes).map_err(|error| error.to_string())?;
            if read == state { Ok(read) } else { Err("another form is read back".to_owned()) }
        };
        let states: Result<Vec<NodeState>, String> = self.living().map(state).collect();
        states.or_else(|why| self.fail(&why))
    }

    fn restore(&mut self, states: &[NodeState]) -> Result<(), Failure> {
        let image = self.image(states);
        for state in states {
            let at = usize::from(state.slice.0);
            let mut store = self.empty_store();
            let replicas = state.replicas.iter().map(|replica| replica.page);
            let here = state.shared.frames().chain(state.exclusive.frames()).chain(replicas);
            for gfn in here {
                store.put_page(gfn, image.get(&gfn).cloned().unwrap_or_default());
            }
            // The placement that is in force then says where homes are.
            let homes = self.slices[at].node.homes().clone();
            let config = Config { homes, ..self.slices[at].config.clone() };
            match Node::restored(config, state, &mut store) {
                Ok(node) => {
                    let slice = &mut self.slices[at];
                    (slice.node, slice.store, slice.tick) = (node, store, None);
                }
                Err(invalid) => return self.fail(&invalid.to_string()),
            }
            let again = self.slices[at].node.save(&self.slices[at].store);
            if self.setup.planted.is_none() && again.as_ref() != Ok(state) {
                return self.fail("a node that was restored saves another state");
            }
        }
        Ok(())
    }

    /// The contents of memory, each page from the slice that has the truth about it.
    fn image(&self, states: &[NodeState]) -> BTreeMap<Gfn, Page> {
        let keepers = states.iter().flat_map(NodeState::keepers);
        let pages = keepers.flat_map(|(slice, frames): (_, FrameRuns)| {
            let store = &self.slices[usize::from(slice.0)].store;
            frames.frames().map(|gfn| (gfn, store.page(gfn))).collect::<Vec<_>>()
        });
        pages.collect()
    }
}
