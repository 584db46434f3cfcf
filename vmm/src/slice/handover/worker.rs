//! The thread that does to the machine what hand-overs want, one thing after the other.

use super::{State, VcpuInput};
use crate::machine::saved::VcpuState;
use crate::machine::{HandoverRefusal, Machine, MachineError};
use crate::slice::one_line;
use crossbeam_channel::{Receiver, Sender, bounded};
use migrate::handover::Input;
use migrate::saved::{decode, encode};
use std::io;
use std::thread;
use std::time::Duration;
use wire::VcpuId;
use wire::control::VCPU_STATE_BYTES_MAX;

/// What may wait. A vCPU is in one move at a time, which has few steps.
const ORDERS_MAX: usize = 64;
/// For a vCPU to leave the guest, and for its place to be taken.
const STEP_LIMIT: Duration = Duration::from_secs(5);

/// What the machine is to do to a vCPU; the numbers are those of moves.
#[derive(Debug)]
pub(super) enum Order {
    /// Leave the guest, and give the state.
    Stop(u64),
    /// Go on after that.
    Resume,
    /// Take over a state.
    Install(u64, State),
    /// Undo that.
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
        for (vcpu, order) in orders {
            match obey(&machine, vcpu, order) {
                Ok(Some(input)) => answer(vcpu, input),
                Ok(None) => {}
                Err(error) => fail(one_line(&error)),
            }
        }
    };
    thread::Builder::new().name("handover".into()).spawn(run)?;
    Ok(sender)
}

/// What has come of it, if anybody wants to know.
fn obey(machine: &Machine, vcpu: VcpuId, order: Order) -> Result<Option<VcpuInput>, MachineError> {
    match order {
        Order::Stop(number) => Ok(Some(Input::Saved(number, stop(machine, vcpu)))),
        Order::Install(number, state) => {
            Ok(Some(Input::Restored(number, install(machine, vcpu, &state))))
        }
        Order::Resume => undo(machine.resume_vcpu(vcpu), "here"),
        Order::Discard => undo(machine.discard_vcpu(vcpu), "elsewhere"),
        Order::Run => machine.run_vcpu(vcpu).map(|()| None),
        Order::Forget => machine.release_vcpu(vcpu).map(|()| None),
    }
}

fn stop(machine: &Machine, vcpu: VcpuId) -> Result<State, String> {
    let state = machine.stop_vcpu(vcpu, STEP_LIMIT).map_err(|error| one_line(&error))?;
    let bytes = encode(&state).map_err(|error| one_line(&error))?;
    if bytes.len() > VCPU_STATE_BYTES_MAX {
        let bytes = bytes.len();
        return Err(format!("its state has {bytes} bytes, {VCPU_STATE_BYTES_MAX} are possible"));
    }
    Ok(bytes)
}

fn install(machine: &Machine, vcpu: VcpuId, bytes: &[u8]) -> Result<(), String> {
    let state: VcpuState = decode(bytes).map_err(|error| one_line(&error))?;
    if state.vcpu != vcpu.0 {
        return Err(format!("the state is of vCPU {}", state.vcpu));
    }
    machine.install_vcpu(&state, STEP_LIMIT).map_err(|error| one_line(&error))
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
