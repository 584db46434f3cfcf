//! What may happen next in each state.

use super::properties;
use super::scenario::Scenario;
use super::world::World;
use migrate::supervise::Cause;
use stateright::{Model, Property};
use std::collections::BTreeSet;

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// What is due comes.
    Pass,
    /// Of the hosts that were asked, these answer: slice 1's, and the spare.
    Answer(bool, bool),
    /// The guest runs.
    Run,
    /// The process ends.
    End(Cause),
    /// A checkpoint is on the disk.
    Write,
    /// Whoever asked for it is told what came of it.
    Tell,
    /// One on the disk is damaged.
    Damage(u64),
    /// The user wants the end.
    Stop,
    /// The process is stopped from outside.
    Halt,
    /// And goes on.
    Continue,
    /// A user restores the VM elsewhere.
    RestoreElsewhere,
}

impl Scenario {
    fn ends(&self, state: &World, actions: &mut Vec<Action>) {
        let Some(process) = &state.process else { return };
        let is_damaged = state.is_from_damaged();
        if !process.killed && !process.halted && !process.runs && state.is_overtaken() {
            actions.push(Action::End(Cause::Overtaken));
            return;
        }
        if process.killed {
            actions.push(Action::End(Cause::Lost));
            return;
        }
        if process.halted {
            return;
        }
        if !process.runs && is_damaged {
            actions.push(Action::End(Cause::Damaged));
            // Perhaps it is of memory that is read later.
            actions.extend(process.lazy.then_some(Action::Run));
            return;
        }
        if !process.runs {
            actions.push(Action::Run);
        }
        if process.runs && process.lazy && is_damaged {
            actions.push(Action::End(Cause::Lost));
        }
        if state.losses > 0 {
            actions.push(Action::End(Cause::Lost));
            actions.extend((!process.runs).then_some(Action::End(Cause::Refused)));
        }
        actions
            .extend((!process.runs && process.asked_to_stop).then_some(Action::End(Cause::Wanted)));
        if process.runs && (self.ends || process.asked_to_stop) {
            actions.extend([Cause::Wanted, Cause::Panicked, Cause::Overtaken].map(Action::End));
        }
    }

    fn writes(&self, state: &World, actions: &mut Vec<Action>) {
        let Some((_, _, is_written)) = state.writing else { return };
        // No checkpoint before all memory is there.
        let loads = state.process.is_some_and(|process| process.lazy) && state.is_from_damaged();
        let may_write = !is_written && state.process.is_some() && state.writes > 0 && !loads;
        actions.extend(may_write.then_some(Action::Write));
        if is_written || state.process.is_none() || state.failures > 0 {
            actions.push(Action::Tell);
        }
    }
}

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        if state.over.is_some() {
            return;
        }
        let writes = state.process.is_some_and(|process| !process.halted);
        let is_bounded = !writes || state.writes > 0 || state.failures > 0;
        let is_late = state.writing.is_some() && !state.is_to_be_killed();
        if state.machine.due().is_some() && is_bounded && (!is_late || state.lates > 0) {
            actions.push(Action::Pass);
        }
        if state.asked {
            actions.push(Action::Answer(true, false));
            if state.silences > 0 {
                actions.push(Action::Answer(false, false));
                actions.extend(self.spare.then_some(Action::Answer(false, true)));
            }
        }
        self.ends(state, actions);
        self.writes(state, actions);
        if state.damages > 0 {
            let whole = state.files.iter().filter(|(_, file)| file.is_told && !file.is_damaged);
            actions.extend(whole.map(|(number, _)| Action::Damage(*number)));
        }
        if self.ends && !state.unwanted {
            actions.push(Action::Stop);
        }
        if state.takeovers > 0 && state.has_run && state.had_one {
            actions.push(Action::RestoreElsewhere);
        }
        if let Some(process) = state.process.filter(|process| !process.killed) {
            if process.halted {
                actions.push(Action::Continue);
            } else if state.halts > 0 {
                actions.push(Action::Halt);
            }
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut state = last.clone();
        match action {
            Action::Pass => state.pass()?,
            Action::Answer(first, spare) => {
                let others: BTreeSet<u16> =
                    first.then_some(1).into_iter().chain(spare.then_some(2)).collect();
                state.answer(others);
            }
            Action::Run => state.run()?,
            Action::End(cause) => {
                let of_damage =
                    state.process.is_some_and(|it| it.runs && it.lazy) && state.is_from_damaged();
                let is_loss = matches!(cause, Cause::Lost | Cause::Refused) && !of_damage;
                let killed = state.process.is_some_and(|process| process.killed);
                state.losses -= u8::from(is_loss && !killed);
                state.end(cause, self.on_panic)?;
            }
            Action::Write => state.write()?,
            Action::Tell => state.tell()?,
            Action::Damage(number) => {
                state.damages -= 1;
                state.files.get_mut(&number)?.is_damaged = true;
            }
            Action::Stop => state.stop(),
            Action::Halt => state.halt(true)?,
            Action::Continue => state.halt(false)?,
            Action::RestoreElsewhere => state.restore_elsewhere(),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
