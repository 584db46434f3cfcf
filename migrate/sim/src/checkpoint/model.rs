//! What may happen next in each state.

use super::cluster::Cluster;
use super::properties;
use super::scenario::Scenario;
use super::slice::Frame;
use stateright::{Model, Property};

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A checkpoint begins.
    Begin,
    /// Nobody wants it any more.
    GiveUp,
    /// Its cut takes too long.
    EndCut,
    /// The manifest is written.
    Commit,
    /// It cannot be.
    FailToCommit,
    /// The oldest frame between two slices arrives: of checkpoints, or of anything else.
    Arrive(u16, u16, bool),
    /// A slice's file is made, or has one page more.
    Work(u16),
    /// Its disk is full.
    Fail(u16),
    /// A slice's vCPU moves a token from page to page.
    Shift(u16),
    /// It sends one to the next slice.
    Give(u16),
    /// The last slice is lost.
    Lose,
    /// A user has the VM pause, by a cut that is no checkpoint's.
    Pause,
    /// And go on.
    Resume,
}

impl Model for Scenario {
    type State = Cluster;
    type Action = Action;

    fn init_states(&self) -> Vec<Cluster> {
        vec![Cluster::new(self)]
    }

    fn actions(&self, state: &Cluster, actions: &mut Vec<Action>) {
        let is_idle = state.checkpoints.is_idle();
        if state.left > 0 && is_idle {
            actions.push(Action::Begin);
        }
        if self.give_up && !state.given_up && !is_idle {
            actions.push(Action::GiveUp);
        }
        if state.failures > 0 && state.cuts.asking().is_some() {
            actions.push(Action::EndCut);
        }
        if state.committing.is_some() {
            actions.push(Action::Commit);
            actions.extend((state.failures > 0).then_some(Action::FailToCommit));
        }
        let arrives = |way: &(u16, u16, bool)| Action::Arrive(way.0, way.1, way.2);
        actions.extend(state.channels.keys().map(arrives));
        for slice in &state.slices {
            if slice.at_work().is_some() {
                actions.push(Action::Work(slice.id));
                actions.extend((state.failures > 0).then_some(Action::Fail(slice.id)));
            }
            if slice.can_move() {
                actions.extend([Action::Shift(slice.id), Action::Give(slice.id)]);
            }
        }
        if state.pauses > 0 && state.cuts.is_idle() {
            actions.push(Action::Pause);
        }
        if state.paused && state.cuts.is_at_rest() {
            actions.push(Action::Resume);
        }
        if self.lose && state.slices.iter().all(|slice| !slice.lost) {
            actions.push(Action::Lose);
        }
    }

    fn next_state(&self, last: &Cluster, action: Action) -> Option<Cluster> {
        let mut state = last.clone();
        match action {
            Action::Begin => state.begin()?,
            Action::GiveUp => {
                (state.given_up, state.reason) = (true, true);
                let verdict = state.checkpoints.failed("");
                state.execute(verdict);
            }
            Action::EndCut => {
                state.failures -= 1;
                state.reason = true;
                let verdict = state.cuts.go_on("");
                state.judge(verdict);
            }
            Action::Commit => state.end_commit(true)?,
            Action::FailToCommit => state.end_commit(false)?,
            Action::Arrive(from, to, kind) => state.arrive((from, to, kind)),
            Action::Work(id) => {
                let done = state.slices[usize::from(id)].work();
                state.tell(id, done);
            }
            Action::Fail(id) => state.fail(id),
            Action::Shift(id) => state.slices[usize::from(id)].shift(),
            Action::Give(id) => {
                let slice = &mut state.slices[usize::from(id)];
                let to = slice.give();
                slice.sent[usize::from(to)] += 1;
                state.post(id, to, Frame::Token);
            }
            Action::Lose => state.lose(),
            Action::Pause => {
                state.pauses -= 1;
                state.paused = true;
                let verdict = state.cuts.begin().ok()?;
                state.judge(verdict);
            }
            Action::Resume => {
                state.paused = false;
                let verdict = state.cuts.go_on("");
                state.judge(verdict);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
