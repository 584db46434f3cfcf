//! What may happen next: the `Model` of stateright.

use super::cluster::{Cluster, Wait, Wire};
use super::properties;
use super::scenario::{Op, Scenario};
use dsm_protocol::{Access, Gfn};
use stateright::{Model, Property};

/// The most hold windows that a slice goes through, where there are any.
const WINDOWS_MAX: u64 = 4;

/// One thing that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A vCPU goes on.
    Run(usize),
    /// A vCPU decides what to touch, and tries.
    Choose(usize, Gfn, Access),
    /// The next message on a wire arrives.
    Deliver(Wire),
    /// The hold window that a slice's recall waits for ends.
    Tick(u16),
    /// A slice is lost.
    Lose(u16),
    /// The next home is to move.
    MoveHome,
    /// A home asks for what the slice has that is to leave.
    Pull(u16),
    /// A slice begins nothing any more.
    Rest(u16),
    /// All are at rest: the slice leaves, unless one refuses. Then all go on.
    Leave,
    /// All are at rest: the slice joins, unless one refuses. Then all go on.
    Join,
}

impl Scenario {
    fn vcpu_actions(&self, state: &Cluster, actions: &mut Vec<Action>) {
        for (at, vcpu) in self.vcpus.iter().enumerate() {
            let progress = &state.vcpus[at];
            let slice = state.slice(vcpu.slice);
            if progress.wait != Wait::None || slice.lost || slice.node.is_resting() {
                continue;
            }
            match vcpu.ops.get(progress.at) {
                Some(Op::Any(pages)) if !state.has_chosen(at) => {
                    for gfn in *pages {
                        for access in [Access::Read, Access::Write] {
                            actions.push(Action::Choose(at, Gfn(*gfn), access));
                        }
                    }
                }
                Some(op) if !state.spins(vcpu.slice, *op) => actions.push(Action::Run(at)),
                _ => {}
            }
        }
    }
}

impl Model for Scenario {
    type State = Cluster;
    type Action = Action;

    fn init_states(&self) -> Vec<Cluster> {
        vec![Cluster::new(self)]
    }

    fn actions(&self, state: &Cluster, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        self.vcpu_actions(state, actions);
        actions.extend(state.wires.keys().map(|wire| Action::Deliver(*wire)));
        for slice in 0..self.slices {
            if !state.slice(slice).lost && state.slice(slice).node.next_tick_ns().is_some() {
                actions.push(Action::Tick(slice));
            }
        }
        let may_begin = self.moves_after.is_none_or(|number| state.raised & (1 << number) != 0);
        let next = self.moves.get(state.moves.0).filter(|(_, _, to)| !state.slice(*to).lost);
        if may_begin && state.moves.0 == state.moves.1 && next.is_some() {
            actions.push(Action::MoveHome);
        }
        self.leave_actions(state, actions);
        self.join_actions(state, actions);
        if self.lose && state.slices.iter().all(|slice| !slice.lost) {
            actions.extend((0..self.slices).map(Action::Lose));
        }
    }

    fn next_state(&self, last: &Cluster, action: Action) -> Option<Cluster> {
        let mut next = last.clone();
        match action {
            Action::Run(vcpu) => next.run_next(vcpu, self),
            Action::Choose(vcpu, gfn, access) => next.choose(vcpu, gfn, access, self),
            Action::Deliver(wire) => next.deliver(wire, self),
            Action::Tick(slice) => next.tick(slice, self),
            Action::Lose(slice) => next.lose(slice),
            Action::MoveHome => next.move_home(self),
            Action::Pull(home) => next.pull(home, self),
            Action::Rest(slice) => next.rest(slice, self),
            Action::Leave => next.leave(self),
            Action::Join => next.join(self),
        }
        Some(next)
    }

    /// A page may change hands for ever before a vCPU gets on; with a clock that is endlessly many
    /// states, so the number of windows is bounded.
    fn within_boundary(&self, state: &Cluster) -> bool {
        state.slices.iter().all(|slice| slice.now <= WINDOWS_MAX * self.hold_ns)
            || self.hold_ns == 0
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all(self)
    }
}
