//! A vCPU goes on with a local APIC of the other kind. What has no equal there is refused.
//!
//! | besides the APIC itself (`interrupts::conversion`) | in the kernel | in user space |
//! |---|---|---|
//! | whether it runs | MP state | activity; for KVM it always runs |
//! | deadline | model-specific register | timer |
//! | registers after an INIT | KVM has reset them | reset at the start-up |
//!
//! NMIs, an interrupt that is being delivered, and the interrupt shadow are KVM's in both, and stay as they are. So do IOAPIC
//! and messages of devices, which are this program's in both.

use super::{Debug, Events, General, Running, VcpuState};
use crate::interrupts::lapic::TSC_DEADLINE;
use crate::interrupts::saved::{Activity, ApicState, KernelApic, UserspaceApic};
use crate::interrupts::{InterruptBackEnd, Moment};
use migrate::Invalid;

impl VcpuState {
    /// The same vCPU with an APIC of this kind.
    ///
    /// # Errors
    /// It has something that such a vCPU has not.
    pub fn with_interrupts(&self, of: InterruptBackEnd, at: Moment) -> Result<Self, Invalid> {
        let state = match (&self.apic, of) {
            (ApicState::Kernel(_), InterruptBackEnd::Ghost)
            | (ApicState::Userspace(_), InterruptBackEnd::Userspace) => return Ok(self.clone()),
            (ApicState::Kernel(apic), InterruptBackEnd::Userspace) => {
                self.in_user_space(apic, at)?
            }
            (ApicState::Userspace(apic), InterruptBackEnd::Ghost) => self.in_kernel(apic, at)?,
        };
        Ok(state)
    }

    fn is_x2apic(&self) -> Result<(), Invalid> {
        Invalid::unless(self.system.is_x2apic(), "apic", "its APIC is not in x2APIC mode")
    }

    fn in_user_space(&self, apic: &KernelApic, at: Moment) -> Result<Self, Invalid> {
        self.is_x2apic()?;
        let latched = self.events.latched_init;
        Invalid::unless(!latched, "events", "an INIT that waits in system management mode")?;
        let activity = match self.running {
            Running::Runnable => Activity::Running,
            Running::Halted => Activity::Halted,
            Running::Uninitialized => Activity::PowerOn,
            Running::InitReceived => Activity::WaitForStartup,
            Running::ResetHold => {
                return Err(Invalid::new("running", "it waits for its hypervisor to start it"));
            }
        };
        let mut state = self.clone();
        let deadline = self.msrs.get(TSC_DEADLINE).unwrap_or(0);
        state.msrs.change(TSC_DEADLINE, 0);
        let lapic = apic.in_user_space(deadline, at)?;
        state.system.cr8 = u64::from(lapic.tpr >> 4);
        state.running = Running::Runnable;
        // KVM has it; whether the guest has taken it is looked at.
        let nmi_sent = self.events.nmi_pending != 0 || self.events.nmi_injected;
        state.apic = ApicState::Userspace(UserspaceApic { lapic, activity, nmi_sent });
        Ok(state)
    }

    fn in_kernel(&self, apic: &UserspaceApic, at: Moment) -> Result<Self, Invalid> {
        self.is_x2apic()?;
        let mut state = self.clone();
        state.running = match apic.activity {
            Activity::PowerOn => Running::Uninitialized,
            Activity::WaitForStartup => Running::InitReceived,
            Activity::Running => Running::Runnable,
            Activity::Halted => Running::Halted,
        };
        if apic.activity == Activity::WaitForStartup {
            // KVM changes no more than CS and RIP at a start-up.
            state.general = General::AFTER_INIT;
            state.system = self.system.after_init();
            (state.debug, state.events) = (Debug::AFTER_INIT, Events::default());
        }
        let (kernel, deadline) = apic.lapic.in_kernel(self.vcpu, at)?;
        state.msrs.set(TSC_DEADLINE, deadline);
        state.system.cr8 = u64::from(apic.lapic.tpr >> 4);
        state.apic = ApicState::Kernel(kernel);
        Ok(state)
    }
}

#[cfg(test)]
#[path = "conversion_tests.rs"]
mod tests;
