//! A slice of the model: its part in the protocol, and the vCPU if it is here.

use migrate::handover::{Effect, Input, Member, VcpuEvent};
use std::collections::VecDeque;
use wire::SliceId;

/// What a sender sends: who, and which of its events this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Event(pub(crate) SliceId, pub(crate) u8);

impl VcpuEvent for Event {
    fn resets(&self) -> bool {
        false
    }
}

/// The state of the vCPU that counts: what has arrived, in this order.
pub(crate) type State = Vec<Event>;

/// The vCPU as a slice has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Vcpu {
    /// A ghost.
    Elsewhere,
    Running(State),
    /// Out of the guest; what arrives now is part of no saved state.
    Stopped(State),
}

/// What a slice has done.
pub(crate) enum Done {
    Nothing,
    /// The protocol must be told.
    Tell(Input<Event, State>),
    /// The vCPU cannot do that now.
    Wrong,
}

/// One slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slice {
    pub(crate) member: Member<Event, State>,
    pub(crate) vcpu: Vcpu,
    /// What it is still to do.
    pub(crate) todo: VecDeque<Effect<Event, State>>,
    /// Events that its sender has sent.
    pub(crate) sent: u8,
}

impl Slice {
    /// Does the next thing. `fails`: the thing cannot be done.
    pub(crate) fn act(&mut self, fails: bool) -> Done {
        let Some(effect) = self.todo.pop_front() else { return Done::Nothing };
        let refused = || if fails { Err("it cannot".to_owned()) } else { Ok(()) };
        match effect {
            Effect::Prepare(one) => return Done::Tell(Input::Prepared(one.number, refused())),
            Effect::Stop(number) => {
                let Vcpu::Running(state) = self.vcpu.clone() else { return Done::Wrong };
                if fails {
                    return Done::Tell(Input::Saved(number, Err("it cannot".into())));
                }
                self.vcpu = Vcpu::Stopped(state.clone());
                return Done::Tell(Input::Saved(number, Ok(state)));
            }
            Effect::Install(number, state) => {
                if self.vcpu != Vcpu::Elsewhere {
                    return Done::Wrong;
                }
                if !fails {
                    self.vcpu = Vcpu::Stopped(state);
                }
                return Done::Tell(Input::Restored(number, refused()));
            }
            Effect::Discard | Effect::Forget => {
                if matches!(self.vcpu, Vcpu::Running(_)) {
                    return Done::Wrong;
                }
                self.vcpu = Vcpu::Elsewhere;
            }
            Effect::Resume => match std::mem::replace(&mut self.vcpu, Vcpu::Elsewhere) {
                Vcpu::Stopped(state) | Vcpu::Running(state) => self.vcpu = Vcpu::Running(state),
                Vcpu::Elsewhere => return Done::Wrong,
            },
            Effect::Run => match std::mem::replace(&mut self.vcpu, Vcpu::Elsewhere) {
                Vcpu::Stopped(state) => self.vcpu = Vcpu::Running(state),
                _ => return Done::Wrong,
            },
            Effect::Deliver(event) => match &mut self.vcpu {
                Vcpu::Running(state) | Vcpu::Stopped(state) => state.push(event),
                Vcpu::Elsewhere => return Done::Wrong,
            },
            Effect::Place(..) | Effect::Send { .. } => {}
        }
        Done::Nothing
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.vcpu, Vcpu::Running(_))
    }
}
