//! A local APIC goes on as one of the other kind: in user space instead of in the kernel, or the other way round. Pure.
//!
//! | register | kernel -> user space | user space -> kernel |
//! |---|---|---|
//! | IRR, ISR, TMR, TPR, ICR, ESR | the same | the same |
//! | id, logical id | those of its vCPU | written out |
//! | DFR | no meaning in x2APIC mode | all ones, as after reset |
//! | SVR | suppressed EOI broadcasts are refused, "focus checking" is dropped, which no processor does | the same |
//! | LVT | delivery status and remote IRR are dropped: nothing is connected | the same |
//! | LVT of corrected machine checks | refused if it is in use | none |
//! | deadline | the model-specific register, which is zero from now on | into that register |
//! | running count | begins so long ago that as much is left | what is left at this moment |
//! | count that has run out | is due at once: KVM does not tell whether its interrupt has come (see [`KernelApic`]) | none: its initial count reads as zero, or KVM would raise it again |
//!
//! The version differs (`KVM_GET_LAPIC` has the EOI broadcast suppression, our APIC has not); a guest that reads it again
//! sees that. Counts are nanoseconds in both.

use super::lapic::{LVT_MASKED, Lapic, LapicState, SVR_ENABLED, SVR_WRITABLE};
use super::routing::logical_id;
use super::saved::KernelApic;
use super::timer::{DIVIDE_BITS, LapicTimer, TimerState};
use migrate::Invalid;
use wire::VcpuId;

/// In the spurious-vector register: the IOAPIC is not told of ends of interrupts.
const SVR_NO_BROADCAST: u32 = 1 << 12;
/// In an entry of the local vector table: delivery status and remote IRR, which are read-only (SDM vol. 3, figure 12-8).
const LVT_READ_ONLY: u32 = 1 << 12 | 1 << 14;
/// Modes of the timer: deadline, and the reserved one.
const DEADLINE: u32 = 2;
const RESERVED: u32 = 3;

/// When a state goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The guest's time stamp counter.
    pub ticks: u64,
    /// Its frequency in kHz.
    pub khz: u32,
}

/// The mode of the timer, by its entry in the local vector table.
fn mode(entry: u32) -> Result<u32, Invalid> {
    let mode = entry >> 17 & 3;
    Invalid::unless(mode != RESERVED, "apic", "the reserved mode of the timer")?;
    Ok(mode)
}

impl KernelApic {
    /// The same APIC in user space, in x2APIC mode. `deadline` is that of its timer, or 0.
    ///
    /// # Errors
    /// It has something that an APIC in user space has not.
    pub fn in_user_space(&self, deadline: u64, at: Moment) -> Result<LapicState, Invalid> {
        let unless = |holds, why| Invalid::unless(holds, "apic", why);
        let broadcasts = self.svr & SVR_NO_BROADCAST == 0;
        unless(broadcasts, "the guest tells the IOAPIC itself of ends of interrupts")?;
        let checks = matches!(self.lvt_cmci, 0 | LVT_MASKED);
        unless(checks, "an interrupt of corrected machine checks")?;
        let tpr = u8::try_from(self.tpr);
        let tpr = tpr.map_err(|_| Invalid::new("apic", "reserved bits of the task priority"))?;
        let svr = self.svr & SVR_WRITABLE;
        // KVM has an open LINT0 of the boot vCPU after reset, which nothing is connected to.
        let forced = if svr & SVR_ENABLED == 0 { LVT_MASKED } else { 0 };
        let state = LapicState {
            irr: self.irr,
            isr: self.isr,
            tmr: self.tmr,
            tpr,
            svr,
            esr: self.esr,
            icr: self.icr,
            lvt: self.lvt.map(|entry| entry & !LVT_READ_ONLY | forced),
            timer: self.timer_in_user_space(deadline, at)?,
        };
        state.check()?;
        Ok(state)
    }

    fn timer_in_user_space(&self, deadline: u64, at: Moment) -> Result<TimerState, Invalid> {
        let mode = mode(self.lvt[0])?;
        let (divide, initial) = (self.divide & DIVIDE_BITS, self.initial_count);
        let set = TimerState { divide, initial, started: None, deadline: 0 };
        if mode == DEADLINE {
            return Ok(TimerState { deadline, ..set });
        }
        let mut timer = LapicTimer::restored(at.khz, mode, set);
        timer.set_left(self.current_count, at.ticks);
        Ok(timer.save())
    }
}

impl LapicState {
    /// The same APIC, of this vCPU, in the kernel; and the deadline of its timer, or 0. What is due of a count is requested.
    ///
    /// # Errors
    /// No APIC can be in this state, or it has something that one in the kernel has not.
    pub fn in_kernel(&self, vcpu: u32, at: Moment) -> Result<(KernelApic, u64), Invalid> {
        let counts = mode(self.lvt[0])? != DEADLINE;
        let id = VcpuId(vcpu);
        let mut lapic = Lapic::restored(id, at.khz, self)?;
        if counts {
            lapic.expire_timer(at.ticks);
        }
        let left = lapic.timer().current_count(at.ticks);
        let Self { irr, isr, tmr, tpr, svr, esr, icr, lvt, timer } = lapic.save();
        let (initial_count, current_count) = match timer.started {
            // To KVM, nothing that is left is a count that has run out.
            Some(_) => (timer.initial, left.max(1)),
            None if counts => (0, 0),
            None => (timer.initial, 0),
        };
        let apic = KernelApic {
            id: vcpu,
            tpr: tpr.into(),
            ldr: logical_id(id),
            dfr: u32::MAX,
            svr,
            isr,
            tmr,
            irr,
            esr,
            icr,
            lvt_cmci: 0,
            lvt,
            initial_count,
            current_count,
            divide: timer.divide,
        };
        Ok((apic, timer.deadline))
    }
}

#[cfg(test)]
#[path = "conversion_tests.rs"]
mod tests;
