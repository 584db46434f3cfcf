//! The thread that does to the machine what hand-overs want, one thing after the other.

use super::{State, VcpuInput};
use crate::machine::saved::VcpuState;
use crate::machine::{HandoverRefusal, Machine, MachineError, Timers};
use crate::slice::one_line;
use crossbeam_channel::{Receiver, Sender, bounded};
use dsm::schedule;
use migrate::handover::Input;
use migrate::saved::{decode, encode};
use std::io;
use std::thread;
use std::time::{Duration, Instant};
use wire::VcpuId;
use wire::control::VCPU_STATE_BYTES_MAX;

/// What may wait. A vCPU is in one move at a time, which has few steps.
const ORDERS_MAX: usize = 64;
/// For a vCPU to leave the guest, and for its place to be taken.
const STEP_LIMIT: Duration = Duration::from_secs(5);

/// What the machine is to do to a vCPU; the numbers are those of moves.
#[derive(Debug)]
pub(super) enum Order {
    /// Make what a vCPU needs that comes.
    Prepare(u64),
    /// Leave the guest, and give the state.
    Stop(u64),
    /// Go on after that.
    Resume,
    /// Take over a state.
    Install(u64, State),
    /// Undo that, and what was made before.
    Discard,
    /// Run with it.
    Run,
    /// Run no more: it runs elsewhere.
    Forget,
}

/// Starts the thread. `answer` takes what has come of an order, `fail` why this slice cannot go on. It ends with the
/// last sender.
///
/// # Errors
/// There is no thread for it.
pub(super) fn start(
    machine: Machine,
    answer: impl Fn(VcpuId, VcpuInput) + Send + 'static,
    fail: impl Fn(String) + Send + 'static,
) -> io::Result<Sender<(VcpuId, Order)>> {
    let (sender, orders): (_, Receiver<(VcpuId, Order)>) = bounded(ORDERS_MAX);
    let run = move || {
        // A vCPU stands still while it works. The threads of vCPUs that it starts are ordinary ones.
        schedule::prefer_this_thread_only();
        let mut worker = Worker { machine, last: Instant::now() };
        for (vcpu, order) in orders {
            match worker.obey(vcpu, order) {
                Ok(Some(input)) => answer(vcpu, input),
                Ok(None) => {}
                Err(error) => fail(one_line(&error)),
            }
        }
    };
    thread::Builder::new().name("handover".into()).spawn(run)?;
    Ok(sender)
}

struct Worker {
    machine: Machine,
    /// The end of the last step. One vCPU moves at a time.
    last: Instant,
}

impl Worker {
    fn times(&self) -> &Timers {
        &self.machine.shared.handovers
    }

    /// What has come of it, if anybody wants to know.
    fn obey(&mut self, vcpu: VcpuId, order: Order) -> Result<Option<VcpuInput>, MachineError> {
        match order {
            Order::Prepare(number) => {
                let prepared = given_up(self.machine.prepare_vcpu(vcpu, STEP_LIMIT))?;
                Ok(Some(Input::Prepared(number, prepared)))
            }
            Order::Stop(number) => Ok(Some(Input::Saved(number, self.stop(vcpu)))),
            Order::Install(number, state) => {
                Ok(Some(Input::Restored(number, self.install(vcpu, &state)?)))
            }
            Order::Resume => undo(self.machine.resume_vcpu(vcpu), "here"),
            Order::Discard => undo(self.machine.discard_vcpu(vcpu), "elsewhere"),
            Order::Run => {
                let heard = self.times().flip.since(self.last);
                self.machine.run_vcpu(vcpu)?;
                self.times().run.since(heard);
                Ok(None)
            }
            Order::Forget => {
                self.times().away.since(self.last);
                self.machine.release_vcpu(vcpu).map(|()| None)
            }
        }
    }

    fn stop(&mut self, vcpu: VcpuId) -> Result<State, String> {
        let state = self.machine.stop_vcpu(vcpu, STEP_LIMIT).map_err(|error| one_line(&error))?;
        let begin = Instant::now();
        let bytes = encode(&state).map_err(|error| one_line(&error))?;
        if bytes.len() > VCPU_STATE_BYTES_MAX {
            let bytes = bytes.len();
            return Err(format!(
                "its state has {bytes} bytes, {VCPU_STATE_BYTES_MAX} are possible"
            ));
        }
        self.last = self.times().encode.since(begin);
        Ok(bytes)
    }

    fn install(&mut self, vcpu: VcpuId, bytes: &[u8]) -> Result<Result<(), String>, MachineError> {
        let begin = Instant::now();
        let state: VcpuState = match decode(bytes) {
            Ok(state) => state,
            Err(error) => return Ok(Err(one_line(&error))),
        };
        if state.vcpu != vcpu.0 {
            return Ok(Err(format!("the state is of vCPU {}", state.vcpu)));
        }
        self.times().decode.since(begin);
        let installed = given_up(self.machine.install_vcpu(&state, STEP_LIMIT))?;
        self.last = Instant::now();
        Ok(installed)
    }
}

/// A step that fails gives the hand-over up, and the vCPU runs on where it was. Not if this slice could not send to it then.
fn given_up(result: Result<(), MachineError>) -> Result<Result<(), String>, MachineError> {
    match result {
        Err(error @ MachineError::NoGhost { .. }) => Err(error),
        result => Ok(result.map_err(|error| one_line(&error))),
    }
}

/// A step that had failed need not be undone: the vCPU is as it was before.
fn undo(
    result: Result<(), MachineError>,
    before: &'static str,
) -> Result<Option<VcpuInput>, MachineError> {
    match result {
        Err(MachineError::Handover { refusal: HandoverRefusal::Is(now), .. }) if now == before => {
            Ok(None)
        }
        result => result.map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_that_leaves_no_ghost_is_no_mere_refusal() {
        let vcpu = VcpuId(1);
        let refused = MachineError::UnknownVcpu { vcpu };
        let text = one_line(&refused);
        assert_eq!(given_up(Err(refused)).unwrap(), Err(text));

        let source = Box::new(MachineError::UnknownVcpu { vcpu });
        let error = given_up(Err(MachineError::NoGhost { vcpu, source })).unwrap_err();
        assert!(matches!(error, MachineError::NoGhost { .. }), "{error}");
    }
}
