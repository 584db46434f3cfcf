//! A machine at rest: its vCPUs are out of the guest, with nothing of their last exits left to do, and stay out until
//! it goes on. Meanwhile they can be saved.
//!
//! Interrupts that arrive at rest wait: in the kernel's APIC, or in the mailbox of the vCPU. A state that is saved has
//! those that came before. Ghosts go on, but nothing is left in them: what was sent before the rest has been forwarded.

use super::gate::Refused;
use super::saved::{self, VcpuState};
use super::slot::Slot;
use super::{Machine, MachineError, Shared};
use crate::tsc::host_ticks;
use crate::vcpu::{StateError, VcpuCore};
use kvm_ioctls::VcpuFd;
use migrate::SavedState;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use wire::VcpuId;

/// A machine did not come to rest. It runs on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestError {
    /// Some vCPUs did not leave the guest: they wait for a page or a device.
    #[error("{missing:?} did not come to rest within {limit:?}")]
    Missing {
        /// Which.
        missing: Vec<VcpuId>,
        /// How long was waited.
        limit: Duration,
    },
    /// It is at rest already, or its clock was stepped all the time.
    #[error("the machine is at rest already, and did not go on within {limit:?}")]
    Busy {
        /// How long was waited.
        limit: Duration,
    },
    /// Something for these vCPUs of other slices has not been forwarded, or they wait for a start-up.
    #[error("the ghosts of {ghosts:?} did not come to rest within {limit:?}")]
    Ghosts {
        /// Which.
        ghosts: Vec<VcpuId>,
        /// How long was waited.
        limit: Duration,
    },
    /// It was stopped.
    #[error("the machine stops")]
    Stopped,
}

/// All vCPUs of a machine here are at rest. They go on when it is dropped.
#[derive(Debug)]
#[must_use = "the vCPUs go on at once"]
pub struct Rest {
    machine: Machine,
    ticks: u64,
}

impl Rest {
    /// The guest's counter when all had come to rest. It does not stop.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// The state of each vCPU here, by id. They stay at rest and could be saved again.
    ///
    /// # Errors
    /// The first vCPU whose state cannot be taken, or which has ended, was not started, or is handed over.
    pub fn save(&self) -> Result<Vec<VcpuState>, MachineError> {
        let shared = &self.machine.shared;
        let take = |core: &VcpuCore| {
            shared.saved[core.place].lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        shared.here().for_each(|core| drop(take(core)));
        shared.gate.save();
        let each = |core: &Arc<VcpuCore>| {
            let vcpu = core.id;
            let state = take(core).ok_or(MachineError::NotAtRest { vcpu })?;
            state.map_err(|source| MachineError::State { vcpu, action: "save", source })
        };
        shared.here().map(each).collect()
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.machine.shared.gate.open_up();
    }
}

impl Shared {
    pub(super) fn restore(&self, fd: &mut VcpuFd, state: &VcpuState) -> Result<(), StateError> {
        state.check()?;
        let id = VcpuId(state.vcpu);
        self.interrupts.keep_reset_state(id, fd)?;
        let apic = |fd: &mut VcpuFd| self.interrupts.restore(id, fd, &state.apic);
        saved::put(fd, state, &self.host, self.clock.offset(), apic)
    }
}

impl Machine {
    /// Brings all vCPUs here to rest: out of the guest, their last exits finished. They stay until the rest is dropped
    /// or the machine stops. What they had sent to vCPUs of other slices has left this one.
    ///
    /// A ghost between INIT and start-up cannot tell whether the start-up has come, so there is no rest until it has.
    ///
    /// # Errors
    /// Names those that did not come within `limit`; all go on then.
    pub fn rest(&self, limit: Duration) -> Result<Rest, RestError> {
        let end = Instant::now() + limit;
        self.shared.gate.rest(limit, || self.shared.ring_vcpus()).map_err(
            |refused| match refused {
                Refused::Missing(missing) => RestError::Missing { missing, limit },
                Refused::Busy => RestError::Busy { limit },
                Refused::Over => RestError::Stopped,
            },
        )?;
        let rest = Rest { machine: self.clone(), ticks: self.shared.clock.now() };
        self.empty_ghosts(end, limit)?;
        Ok(rest)
    }

    /// Waits until nothing is left in the ghosts. Nothing new comes, for the vCPUs here are at rest.
    fn empty_ghosts(&self, end: Instant, limit: Duration) -> Result<(), RestError> {
        let calls: Vec<_> = self.shared.slots.iter().filter_map(Slot::call).collect();
        let calls = || calls.iter();
        calls().for_each(|call| call.ask());
        let ghosts: Vec<_> =
            calls().filter(|call| !call.wait(end)).map(|call| call.vcpu()).collect();
        if self.shared.stop.load(SeqCst) {
            return Err(RestError::Stopped);
        }
        if ghosts.is_empty() { Ok(()) } else { Err(RestError::Ghosts { ghosts, limit }) }
    }

    /// Has the guest's counter show `ticks` now, on all vCPUs. Before they are restored, for their timers go by it.
    ///
    /// A KVM that runs guests without hardware support (PVM) shows them the host's counter and takes no offset, without
    /// a word. Then the machine's clock stays the host's too, and the guest sees the time pass that it did not run.
    ///
    /// # Errors
    /// A vCPU runs already, or KVM refuses.
    pub fn set_clock(&self, ticks: u64) -> Result<(), MachineError> {
        let offset = ticks.wrapping_sub(host_ticks());
        self.set_tsc_offset(offset)?;
        let taken = self.tsc_offset()?;
        if taken != offset {
            tracing::warn!(offset, taken, "this KVM does not move the guest's counter");
            self.shared.clock.set_offset(taken);
        }
        Ok(())
    }

    /// The state of a vCPU here that does not run, as [`Machine::restore_vcpu`] takes it.
    ///
    /// # Errors
    /// The vCPU runs or is not here, or KVM refuses a step.
    pub fn save_vcpu(&self, id: VcpuId) -> Result<VcpuState, MachineError> {
        let action = "save";
        let core = self.core(id)?;
        let mut fd = core.fd.lock().unwrap_or_else(PoisonError::into_inner);
        let fd = fd.as_mut().filter(|_| self.is_here(core));
        let fd = fd.ok_or(MachineError::NotStopped { vcpu: id, action })?;
        let Shared { interrupts, host, clock, .. } = &*self.shared;
        let apic = interrupts.vcpu_apic(id);
        let mut apic = apic.map_err(|source| MachineError::Vcpu { vcpu: id, action, source })?;
        let state = saved::get(id, fd, apic.as_mut(), host, clock.offset());
        state.map_err(|source| MachineError::State { vcpu: id, action, source })
    }

    /// Gives a vCPU here, which has just been made and does not run, a state that was saved. The machine's memory,
    /// CPUID and kind of APIC are those of the machine it was saved in, and its clock is set.
    ///
    /// # Errors
    /// The vCPU runs or is not here, the state does not fit, or KVM refuses a step. The machine is of no use then.
    pub fn restore_vcpu(&self, state: &VcpuState) -> Result<(), MachineError> {
        let (id, action) = (VcpuId(state.vcpu), "restore");
        let core = self.core(id)?;
        let mut fd = core.fd.lock().unwrap_or_else(PoisonError::into_inner);
        let fd = fd.as_mut().filter(|_| self.is_here(core));
        let fd = fd.ok_or(MachineError::NotStopped { vcpu: id, action: "restore the state" })?;
        let result = self.shared.restore(fd, state);
        result.map_err(|source| MachineError::State { vcpu: id, action, source })
    }
}
