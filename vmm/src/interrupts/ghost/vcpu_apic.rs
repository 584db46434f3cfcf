//! A vCPU that runs here with its APIC in the kernel. Nothing is left to do but to space out its
//! timer, for which a filter makes every write of the TSC deadline an exit.
//!
//! The end of a tick is not visible, but its last act is: the guest writes the next deadline at
//! the end of the handler, so that write stands for both the EOI and the end of the tick.

use crate::interrupts::lapic::{TSC_DEADLINE, X2APIC_FIRST, X2APIC_LAST};
use crate::interrupts::saved::{ApicState, KernelApic};
use crate::interrupts::{MsrAnswer, Next, VcpuApic};
use crate::timer_spacing::{SpacingState, TimerSpacing};
use crate::tsc::GuestTsc;
use crate::vcpu::kvm::set_msr;
use crate::vcpu::stats::Counters;
use crate::vcpu::{VcpuCore, VcpuError};
use kvm_ioctls::VcpuFd;
use std::sync::Arc;

pub(super) struct KernelVcpuApic {
    core: Arc<VcpuCore>,
    clock: Arc<GuestTsc>,
    spacing: SpacingState,
    /// Deadline that KVM has; 0 is none.
    armed: u64,
    /// Deadline that KVM is to get before the next entry.
    wanted: Option<u64>,
}

impl KernelVcpuApic {
    pub(super) fn new(core: Arc<VcpuCore>, clock: Arc<GuestTsc>, policy: TimerSpacing) -> Self {
        let spacing = SpacingState::new(policy, clock.true_khz());
        Self { core, clock, spacing, armed: 0, wanted: None }
    }

    /// The guest asks for a timer interrupt at `deadline`; gives what KVM is to be told.
    fn space(&mut self, deadline: u64, now: u64) -> u64 {
        if self.armed != 0 && self.armed <= now {
            self.spacing.timer_delivered(self.armed);
            self.spacing.timer_eoi(now);
            self.spacing.timer_finished(now);
        }
        if deadline == 0 {
            return 0;
        }
        let earliest = self.spacing.earliest();
        if deadline < earliest {
            Counters::add(&self.core.counters.timer_deferrals);
        }
        deadline.max(earliest)
    }

    /// Gives KVM the deadline that it does not have yet.
    fn arm(&mut self, vcpu: &VcpuFd) -> Result<(), VcpuError> {
        if let Some(deadline) = self.wanted.take() {
            let action = "arm its timer";
            set_msr(vcpu, TSC_DEADLINE, deadline).map_err(|source| VcpuError::Ioctl {
                vcpu: self.core.id,
                action,
                source,
            })?;
            self.armed = deadline;
        }
        Ok(())
    }
}

impl VcpuApic for KernelVcpuApic {
    fn prepare(&mut self, vcpu: &mut VcpuFd) -> Result<Next, VcpuError> {
        self.arm(vcpu)?;
        Ok(Next::Run)
    }

    fn after_run(&mut self, _vcpu: &mut VcpuFd) {}

    fn read_msr(&mut self, index: u32) -> MsrAnswer {
        fault_of_the_apic(index)
    }

    fn write_msr(&mut self, index: u32, value: u64) -> MsrAnswer {
        if index != TSC_DEADLINE {
            return fault_of_the_apic(index);
        }
        let now = self.clock.now();
        self.wanted = Some(self.space(value, now));
        MsrAnswer::Value(0)
    }

    fn halted(&mut self) {}

    fn settle(&mut self, _vcpu: &mut VcpuFd) {}

    fn take_in(&mut self, vcpu: &mut VcpuFd) -> Result<(), VcpuError> {
        self.arm(vcpu)
    }

    fn save(&mut self, vcpu: &VcpuFd) -> Result<ApicState, VcpuError> {
        let (id, action) = (self.core.id, "read the local APIC");
        let error = |source: kvm_ioctls::Error| VcpuError::Ioctl {
            vcpu: id,
            action,
            source: source.into(),
        };
        let page = vcpu.get_lapic().map_err(error)?;
        Ok(ApicState::Kernel(KernelApic::from(&page)))
    }
}

/// What the kernel's APIC refused is a fault in the guest, too.
fn fault_of_the_apic(index: u32) -> MsrAnswer {
    if (X2APIC_FIRST..=X2APIC_LAST).contains(&index) {
        MsrAnswer::Fault
    } else {
        MsrAnswer::NotMine
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tsc::ClockRate;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;
    use wire::VcpuId;

    fn vcpu_apic(policy: TimerSpacing) -> KernelVcpuApic {
        let clock = Arc::new(GuestTsc::new(1_000_000, ClockRate::REAL));
        KernelVcpuApic::new(Arc::new(VcpuCore::new(VcpuId(0))), clock, policy)
    }

    #[test]
    fn deadline_is_moved_behind_the_spacing() {
        let mut apic = vcpu_apic(TimerSpacing::Fixed(Duration::from_millis(50)));
        assert_eq!(apic.space(1000, 10), 1000);
        apic.armed = 1000;
        // The tick of 1000 is over at 2000; the next comes 50 ms after that.
        assert_eq!(apic.space(4_000_000, 2000), 50_002_000);
        assert_eq!(apic.core.counters.timer_deferrals.load(Relaxed), 1);
        apic.armed = 50_002_000;
        assert_eq!(apic.space(90_000_000, 3000), 90_000_000);
        assert_eq!(apic.space(0, 3000), 0);
    }

    #[test]
    fn other_registers_are_not_taken() {
        let mut apic = vcpu_apic(TimerSpacing::Off);
        assert_eq!(apic.write_msr(0x1234, 0), MsrAnswer::NotMine);
        assert_eq!(apic.read_msr(0x831), MsrAnswer::Fault);
    }
}
