//! One vCPU leaves this machine, or comes to it, while the others run on. Who decides is `migrate::handover`; here is
//! what it wants done.
//!
//! ```text
//!             release, once the placement says so
//!   Stopped --------------------------------------> Elsewhere: its ghost runs, or nothing does
//!    ^   |                                            |   ^
//!   stop resume                                 install  discard
//!    |   v                                            v   |
//!   Here: its thread runs <------------------------ Installed
//!             run, once the placement says so
//! ```
//! `prepare` comes before `install` where time counts: the ghost has ended then, and KVM vCPU and thread are there. `discard`
//! undoes it as well.
//!
//! | effect of the hand-over | call |
//! |---|---|
//! | `Stop`, `Resume`, `Forget` | `stop_vcpu`, `resume_vcpu`, `release_vcpu` |
//! | `Prepare`, `Install` | `prepare_vcpu`, `install_vcpu` |
//! | `Discard`, `Run` | `discard_vcpu`, `run_vcpu` |
//! | `Deliver` | `deliver_local` |
//!
//! **What comes for a vCPU that is stopped** waits where it always arrives: in the kernel's APIC, into which other vCPUs
//! here send without an exit, or in its mailbox. The saved state has none of it, and the APIC nothing that the state has
//! (`interrupts::ghost::Pending`): the copy elsewhere may take its own at any time. `resume_vcpu` lets the vCPU take
//! it in, `release_vcpu` has it forwarded. The same holds between `install_vcpu` and `run_vcpu` or `discard_vcpu`.
//!
//! **Others leave the guest for a moment.** The kernel's APIC can only be set as a whole, which would overwrite what comes
//! meanwhile. So when a vCPU is stopped or installed the other vCPUs here are out of the guest while its APIC is set,
//! as for a step of the clock, and nobody sends to it from user space. With mailboxes they are not disturbed.
//!
//! **The timer** is part of the state. Its deadline is disarmed in whatever does not run, so it fires once. A timer that
//! counts may tick once more on hosts with posted timer interrupts.
//!
//! **A ghost ends** when it has no more work; what has come until the APIC is set is forwarded. An INIT without its
//! start-up cannot be taken out of a ghost, hence `install_vcpu` refuses meanwhile.
//!
//! A stopped vCPU is no member of the gate: clocks step, and the machine comes to rest, without it. `Rest::save` has no
//! state of it.

use super::gate::Refused;
use super::handover_times::HandoverTimes;
use super::orders::NotStopped;
use super::saved::VcpuState;
use super::slot::{Held, Phase, Slot};
use super::{HandoverRefusal, Machine, MachineError, Shared};
use crate::interrupts::VcpuEvent;
use crate::interrupts::ghost::{Before, Pending};
use crate::interrupts::lapic::TSC_DEADLINE;
use crate::interrupts::saved::ApicState;
use crate::vcpu::kvm::set_tsc_offset;
use crate::vcpu::stats::Counters;
use crate::vcpu::{StateError, VcpuCore};
use kvm_ioctls::VcpuFd;
use migrate::SavedState;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use wire::VcpuId;

/// From an INIT until its start-up, of a guest whose clock may be slow: Linux waits for 10 ms of its own at most. Some INITs
/// have none behind them, as those by which a kernel parks its processors.
const START_UP_LIMIT: Duration = Duration::from_secs(10);

/// Puts this into a state as what is pending.
fn set_pending(state: &mut VcpuState, pending: Pending) {
    let ApicState::Kernel(apic) = &mut state.apic else { return };
    apic.irr = pending.vectors;
    state.events.nmi_pending = pending.nmis;
    state.msrs.change(TSC_DEADLINE, pending.deadline);
}

impl Shared {
    /// On the vCPU's thread: the vCPU, whose state was saved, is to stay out of the guest. From now on only the state has
    /// what was pending. The others leave the guest for a moment.
    pub(super) fn hold(
        &self,
        (place, fd): (usize, &VcpuFd),
        state: &mut VcpuState,
        limit: Duration,
    ) -> Result<Held, StateError> {
        self.interrupts.hold(fd, state.running.to_kvm())?;
        if self.interrupts.sends_without_exit() {
            let take = || {
                if let Some(started) = self.started_from_here() {
                    return Err(StateError::StartsAnother(started));
                }
                let _set = self.slots[place].is_set();
                self.interrupts.take_pending(fd)
            };
            let taken = self.gate.aside(limit, || self.ring_vcpus(), take);
            match taken.unwrap_or(Err(StateError::Others)) {
                Ok(pending) => set_pending(state, pending),
                Err(error) => {
                    self.interrupts.let_go(fd, state.running.to_kvm())?;
                    return Err(error);
                }
            }
        }
        Ok(Held::of(state))
    }

    /// A vCPU elsewhere that some vCPU here has just sent an INIT, and no start-up.
    fn started_from_here(&self) -> Option<VcpuId> {
        let mut calls = self.slots.iter().filter_map(Slot::call);
        calls.find(|call| call.is_starting(START_UP_LIMIT)).map(|call| call.vcpu())
    }

    /// The vCPU is about to go on.
    pub(super) fn let_go(&self, id: VcpuId, fd: &VcpuFd, held: &Held) -> Result<(), StateError> {
        self.interrupts.put_pending(id, fd, &held.pending)?;
        self.interrupts.let_go(fd, held.running.to_kvm())
    }
}

/// One step for one vCPU.
struct Step<'a> {
    machine: &'a Machine,
    core: &'a Arc<VcpuCore>,
    slot: &'a Slot,
    action: &'static str,
}

impl Step<'_> {
    fn refused(&self, refusal: HandoverRefusal) -> MachineError {
        MachineError::Handover { vcpu: self.core.id, action: self.action, refusal }
    }

    fn state_error(&self, source: StateError) -> MachineError {
        MachineError::State { vcpu: self.core.id, action: self.action, source }
    }

    /// The placement must say that the vCPU is here, or elsewhere.
    fn require_place(&self, here: bool) -> Result<(), MachineError> {
        match (self.machine.is_here(self.core), here) {
            (true, false) => Err(self.refused(HandoverRefusal::Placed("here"))),
            (false, true) => Err(self.refused(HandoverRefusal::Placed("elsewhere"))),
            _ => Ok(()),
        }
    }

    fn has_bus(&self) -> bool {
        self.machine.shared.bus.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Runs `work` on the KVM vCPU, which no thread has.
    fn with_fd<T>(
        &self,
        work: impl FnOnce(&mut VcpuFd) -> Result<T, StateError>,
    ) -> Result<T, MachineError> {
        let mut fd = self.core.fd.lock().unwrap_or_else(PoisonError::into_inner);
        let fd = fd.as_mut().ok_or(MachineError::NotStopped {
            vcpu: self.core.id,
            action: "go on with the hand-over",
        })?;
        work(fd).map_err(|source| self.state_error(source))
    }

    fn forward(&self, event: VcpuEvent) {
        Counters::add(&self.core.counters.interrupts_out);
        self.machine.shared.remote.forward(self.core.id, event);
    }

    /// The vCPU is elsewhere from now on.
    fn leave(&self, phase: &mut Phase, held: Held) -> Result<(), MachineError> {
        *phase = Phase::Elsewhere;
        self.slot.is_installed.store(false, SeqCst);
        self.core.forget_cr3();
        self.machine.shared.interrupts.set_here(self.core.id, false);
        self.machine.start_ghost(self.core, held.before())
    }

    /// Ends the ghost, if there is one.
    fn end_ghost(&self, limit: Duration) -> Result<(), MachineError> {
        let Some(call) = self.slot.call() else { return Ok(()) };
        call.ask_to_leave();
        let end = Instant::now() + limit;
        if !self.slot.orders.wait_for_end(Some(end)) && call.stay() {
            return Err(self.refused(HandoverRefusal::Ghost(limit)));
        }
        self.slot.orders.wait_for_end(None);
        Ok(())
    }

    /// Makes the KVM vCPU if there is none.
    fn create(&self) -> Result<(), MachineError> {
        let shared = &self.machine.shared;
        let mut slot = self.core.fd.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let (id, cpuid) = (self.core.id, &shared.cpuid[self.core.place]);
            let mut fd = super::create::create_vcpu(&shared.vm, id, cpuid)?;
            let kept = shared.interrupts.keep_reset_state(id, &mut fd);
            kept.map_err(|source| self.state_error(source))?;
            *slot = Some(fd);
        }
        Ok(())
    }

    /// Has the KVM vCPU, which no thread has, take the state. What has come for the vCPU until then is forwarded. False while
    /// a start-up is under way.
    fn take_state(&self, state: &VcpuState) -> Result<bool, MachineError> {
        let shared = &self.machine.shared;
        let _set = self.slot.is_set();
        self.with_fd(|fd| {
            let Some(waiting) = shared.interrupts.collect(self.core.id, fd)? else {
                return Ok(false);
            };
            waiting.into_iter().for_each(|event| self.forward(event));
            let mut quiet = state.clone();
            set_pending(&mut quiet, Pending::default());
            let restored = shared.restore(fd, &quiet);
            let held = restored.and_then(|()| shared.interrupts.hold(fd, state.running.to_kvm()));
            if held.is_err() {
                shared.interrupts.empty(fd)?;
            }
            held.map(|()| true)
        })
    }

    /// The vCPU cannot come, so its ghost takes its place again. What is wrong then.
    fn ghost_again(&self, error: MachineError) -> MachineError {
        let vcpu = self.core.id;
        let ghost = self.machine.start_ghost(self.core, Before::Vcpu { waits_for_startup: false });
        ghost.map_or_else(
            |source| MachineError::NoGhost { vcpu, source: Box::new(source) },
            |()| error,
        )
    }

    /// The same while no other vCPU here is in the guest, if they could send it interrupts without an exit.
    fn take_state_aside(&self, state: &VcpuState, limit: Duration) -> Result<(), MachineError> {
        let shared = &self.machine.shared;
        let taken = if shared.interrupts.sends_without_exit() {
            let ring = || shared.ring_vcpus();
            shared.gate.aside(limit, ring, || self.take_state(state)).unwrap_or_else(|refused| {
                let over = refused == Refused::Over;
                let refusal =
                    if over { HandoverRefusal::NoThread } else { HandoverRefusal::Others(limit) };
                Err(self.refused(refusal))
            })
        } else {
            self.take_state(state)
        };
        taken.and_then(
            |taken| {
                if taken { Ok(()) } else { Err(self.refused(HandoverRefusal::StartUp)) }
            },
        )
    }
}

impl Machine {
    /// What the hand-overs of vCPUs have taken so far, step by step.
    #[must_use]
    pub fn handover_times(&self) -> HandoverTimes {
        self.shared.handovers.times()
    }

    fn step(&self, id: VcpuId, action: &'static str) -> Result<Step<'_>, MachineError> {
        let place = usize::try_from(id.0).ok().filter(|at| *at < self.shared.cores.len());
        let place = place.ok_or(MachineError::UnknownVcpu { vcpu: id })?;
        let (core, slot) = (&self.shared.cores[place], &self.shared.slots[place]);
        Ok(Step { machine: self, core, slot, action })
    }

    /// Brings a vCPU out of the guest, finishes its last exit and gives its state. The others run on. What arrives for it
    /// from now on waits, and is not part of the state.
    ///
    /// # Errors
    /// The vCPU is not here, or stopped already; or it does not leave the guest within `limit`, or has no state: then it
    /// runs on.
    pub fn stop_vcpu(&self, id: VcpuId, limit: Duration) -> Result<VcpuState, MachineError> {
        let step = self.step(id, "stop")?;
        let mut phase = step.slot.phase();
        let Phase::Here = *phase else { return Err(step.refused(phase.refusal())) };
        let stopped = step.slot.orders.stop(limit, || step.core.doorbell.ring());
        let (state, since) = stopped.map_err(|error| match error {
            NotStopped::NoThread => step.refused(HandoverRefusal::NoThread),
            NotStopped::Late => step.refused(HandoverRefusal::Late(limit)),
            NotStopped::State(source) => step.state_error(source),
        })?;
        self.shared.handovers.collect.since(since);
        *phase = Phase::Stopped(Held::of(&state));
        Ok(state)
    }

    /// Lets a vCPU that was stopped go on: the hand-over is given up. It takes in what has come meanwhile.
    ///
    /// # Errors
    /// It is not stopped.
    pub fn resume_vcpu(&self, id: VcpuId) -> Result<(), MachineError> {
        let step = self.step(id, "resume")?;
        let mut phase = step.slot.phase();
        let Phase::Stopped(_) = *phase else { return Err(step.refused(phase.refusal())) };
        // By the next step of the clock, or the next rest, it is waited for.
        let offset = self.shared.gate.join(id);
        step.slot.orders.go(offset, || step.core.doorbell.ring());
        *phase = Phase::Here;
        Ok(())
    }

    /// A vCPU that was stopped runs elsewhere, and the placement says so. Its thread ends, and what has come for it
    /// meanwhile is forwarded, as is all that comes later.
    ///
    /// # Errors
    /// It is not stopped, or is here by the placement. Others are fatal: no thread can be made for its ghost.
    pub fn release_vcpu(&self, id: VcpuId) -> Result<(), MachineError> {
        let step = self.step(id, "release")?;
        let mut phase = step.slot.phase();
        let Phase::Stopped(held) = *phase else { return Err(step.refused(phase.refusal())) };
        step.require_place(false)?;
        step.slot.orders.leave(|| step.core.doorbell.ring());
        step.slot.orders.wait_for_end(None);
        step.leave(&mut phase, held)
    }

    /// Makes what a vCPU needs that is about to come: its ghost ends, and its KVM vCPU and a thread are made. What comes for it
    /// until it is installed waits.
    ///
    /// # Errors
    /// The machine was not started, the vCPU is here or installed, its ghost takes longer than `limit`, or KVM or the host
    /// refuse. The vCPU is elsewhere then, as before. Fatal is [`MachineError::NoGhost`].
    pub fn prepare_vcpu(&self, id: VcpuId, limit: Duration) -> Result<(), MachineError> {
        let step = self.step(id, "prepare")?;
        let mut phase = step.slot.phase();
        let Phase::Elsewhere = *phase else { return Err(step.refused(phase.refusal())) };
        step.require_place(false)?;
        if !step.has_bus() {
            return Err(step.refused(HandoverRefusal::NoThread));
        }
        let spare = self.shared.spare.prepare();
        spare.map_err(|source| MachineError::Thread { vcpu: id, source })?;
        let begin = Instant::now();
        step.end_ghost(limit)?;
        self.shared.handovers.end_ghost.since(begin);
        if let Err(error) = step.create() {
            return Err(step.ghost_again(error));
        }
        *phase = Phase::Prepared;
        Ok(())
    }

    /// Gives a vCPU that is elsewhere the state that it was saved with. It does not run yet. What had come for it here
    /// is forwarded. The others leave the guest for a moment if their interrupts do not exit.
    ///
    /// # Errors
    /// The machine was not started, the vCPU is here, installed already or being started, its ghost or the others take
    /// longer than `limit`, or the state does not fit. The vCPU is elsewhere then, as before. Fatal is
    /// [`MachineError::NoGhost`].
    pub fn install_vcpu(&self, state: &VcpuState, limit: Duration) -> Result<(), MachineError> {
        let step = self.step(VcpuId(state.vcpu), "install")?;
        let mut phase = step.slot.phase();
        let (Phase::Elsewhere | Phase::Prepared) = *phase else {
            return Err(step.refused(phase.refusal()));
        };
        step.require_place(false)?;
        if !step.has_bus() {
            return Err(step.refused(HandoverRefusal::NoThread));
        }
        if let Phase::Elsewhere = *phase {
            step.end_ghost(limit)?;
        }
        let begin = Instant::now();
        let checked = state.check().map_err(|invalid| step.state_error(invalid.into()));
        let taken = checked.and_then(|()| step.create());
        if let Err(error) = taken.and_then(|()| step.take_state_aside(state, limit)) {
            *phase = Phase::Elsewhere;
            return Err(step.ghost_again(error));
        }
        self.shared.interrupts.set_here(step.core.id, true);
        step.slot.is_installed.store(true, SeqCst);
        self.shared.handovers.restore.since(begin);
        *phase = Phase::Installed(Held::of(state));
        Ok(())
    }

    /// Undoes [`Machine::prepare_vcpu`] and [`Machine::install_vcpu`]: the hand-over is given up. What has come for the vCPU
    /// since is forwarded.
    ///
    /// # Errors
    /// It is neither prepared nor installed, or is here by the placement. Others are fatal: no thread can be made for its ghost.
    pub fn discard_vcpu(&self, id: VcpuId) -> Result<(), MachineError> {
        let step = self.step(id, "discard")?;
        let mut phase = step.slot.phase();
        match *phase {
            Phase::Installed(held) => {
                step.require_place(false)?;
                step.leave(&mut phase, held)
            }
            Phase::Prepared => {
                *phase = Phase::Elsewhere;
                self.start_ghost(step.core, Before::Vcpu { waits_for_startup: false })
            }
            other => Err(step.refused(other.refusal())),
        }
    }

    /// Runs a vCPU that was installed, and is here by the placement.
    ///
    /// # Errors
    /// It is not installed, or is elsewhere by the placement. Others are fatal: KVM refuses, or no thread can be made.
    pub fn run_vcpu(&self, id: VcpuId) -> Result<(), MachineError> {
        let step = self.step(id, "run")?;
        let mut phase = step.slot.phase();
        let Phase::Installed(held) = *phase else { return Err(step.refused(phase.refusal())) };
        step.require_place(true)?;
        let bus = self.shared.bus.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let bus = bus.ok_or_else(|| step.refused(HandoverRefusal::NoThread))?;
        if let Some(offset) = self.shared.gate.join(id) {
            let offset = offset.wrapping_add_signed(held.tsc_ahead);
            self.with_vcpu(id, "set the TSC offset", |fd| set_tsc_offset(fd, offset))?;
        }
        step.with_fd(|fd| self.shared.let_go(id, fd, &held))?;
        self.start_vcpu(step.core, bus)?;
        step.slot.is_installed.store(false, SeqCst);
        *phase = Phase::Here;
        Ok(())
    }
}

#[cfg(test)]
mod kvm_tests;
