//! One local APIC in x2APIC mode, as pure state (Intel SDM vol. 3, chapter 12; AMD APM vol. 2,
//! chapter 16). Registers are model-specific registers; time is the guest's time stamp counter.
//!
//! ```text
//!   raise(v) -> IRR --(v above PPR)--> deliverable() --> accept() -> ISR --> EOI --> gone
//! ```
//!
//! The state belongs to the vCPU's own thread, so nothing here is shared or locked: events from
//! elsewhere come through the mailbox of the back end.

use super::routing::{Shorthand, logical_id};
use super::timer::LapicTimer;
use super::vectors::VectorSet;
use devices::{DeliveryMode, InterruptMessage};
use wire::VcpuId;

/// First model-specific register of the x2APIC.
pub const X2APIC_FIRST: u32 = 0x800;
/// Last model-specific register of the x2APIC.
pub const X2APIC_LAST: u32 = 0x8ff;
/// `IA32_TSC_DEADLINE`.
pub const TSC_DEADLINE: u32 = 0x6e0;

const ID: u32 = 0x802;
const VERSION: u32 = 0x803;
const TPR: u32 = 0x808;
const PPR: u32 = 0x80a;
const EOI: u32 = 0x80b;
const LDR: u32 = 0x80d;
const SVR: u32 = 0x80f;
const ISR: u32 = 0x810;
const TMR: u32 = 0x818;
const IRR: u32 = 0x820;
const ESR: u32 = 0x828;
const ICR: u32 = 0x830;
const LVT_TIMER: u32 = 0x832;
const LVT_ERROR: u32 = 0x837;
const INITIAL_COUNT: u32 = 0x838;
const CURRENT_COUNT: u32 = 0x839;
const DIVIDE: u32 = 0x83e;
const SELF_IPI: u32 = 0x83f;

/// Version 0x14, six local vector table entries, no suppression of EOI broadcasts.
const VERSION_VALUE: u32 = 0x0005_0014;
/// Bits of each local vector table entry that can be written (SDM vol. 3, figure 12-8): vector and mask of all; the
/// timer's mode; delivery mode of thermal, performance counters and LINT0 and 1, and polarity and trigger mode of these two.
pub(super) const LVT_WRITABLE: [u32; 6] =
    [0x7_00ff, 0x1_07ff, 0x1_07ff, 0x1_a7ff, 0x1_a7ff, 0x1_00ff];
pub(super) const LVT_MASKED: u32 = 1 << 16;
pub(super) const SVR_ENABLED: u32 = 1 << 8;
pub(super) const SVR_WRITABLE: u32 = 0x1ff;
const ESR_ILLEGAL_SEND: u32 = 1 << 5;
/// Vectors below this are reserved for exceptions and never delivered by an APIC.
const FIRST_VECTOR: u8 = 16;

/// The access is a general-protection fault: no such register, or reserved bits set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectionFault;

/// An interrupt that a vCPU sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Who it is for, if not the message's destination.
    pub shorthand: Shorthand,
    /// What is sent.
    pub message: InterruptMessage,
}

/// What a register write asks of the world around the APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Send an interrupt.
    Send(Command),
    /// The interrupt with this vector is ended; `level` when it was level-triggered.
    Ended {
        /// The vector.
        vector: u8,
        /// The IOAPIC must hear of it.
        level: bool,
        /// It was the timer's interrupt.
        timer: bool,
    },
    /// The timer changed: arm it anew.
    Timer,
}

/// A local APIC.
#[derive(Clone, Debug)]
pub struct Lapic {
    id: VcpuId,
    irr: VectorSet,
    isr: VectorSet,
    tmr: VectorSet,
    tpr: u8,
    svr: u32,
    esr: u32,
    icr: u64,
    lvt: [u32; 6],
    timer: LapicTimer,
}

impl Lapic {
    /// An APIC as after reset, in x2APIC mode, with a time stamp counter of this frequency in kHz.
    #[must_use]
    pub fn new(id: VcpuId, khz: u32) -> Self {
        Self {
            id,
            irr: VectorSet::default(),
            isr: VectorSet::default(),
            tmr: VectorSet::default(),
            tpr: 0,
            svr: 0xff,
            esr: 0,
            icr: 0,
            lvt: [LVT_MASKED; 6],
            timer: LapicTimer::new(khz),
        }
    }

    /// What INIT does to the APIC.
    pub fn reset(&mut self) {
        *self = Self::new(self.id, self.timer.khz());
    }

    /// The timer.
    #[must_use]
    pub fn timer(&self) -> &LapicTimer {
        &self.timer
    }

    fn enabled(&self) -> bool {
        self.svr & SVR_ENABLED != 0
    }

    /// A maskable interrupt arrives. Dropped when the APIC is disabled or the vector reserved.
    pub fn raise(&mut self, vector: u8, level: bool) {
        if !self.enabled() || vector < FIRST_VECTOR {
            return;
        }
        self.irr.insert(vector);
        if level {
            self.tmr.insert(vector);
        } else {
            self.tmr.remove(vector);
        }
    }

    /// Processor priority: the higher class of task priority and interrupt in service.
    #[must_use]
    pub fn ppr(&self) -> u8 {
        let in_service = self.isr.highest().unwrap_or(0) & 0xf0;
        if self.tpr & 0xf0 >= in_service { self.tpr } else { in_service }
    }

    /// The pending vector that may be delivered now.
    #[must_use]
    pub fn deliverable(&self) -> Option<u8> {
        let vector = self.irr.highest()?;
        (self.enabled() && vector & 0xf0 > self.ppr() & 0xf0).then_some(vector)
    }

    /// The vCPU takes the interrupt.
    pub fn accept(&mut self, vector: u8) {
        self.irr.remove(vector);
        self.isr.insert(vector);
    }

    /// Task priority, for the vCPU's CR8.
    #[must_use]
    pub fn cr8(&self) -> u8 {
        self.tpr >> 4
    }

    /// The guest wrote CR8.
    pub fn set_cr8(&mut self, cr8: u8) {
        if self.cr8() != cr8 {
            self.tpr = cr8 << 4;
        }
    }

    /// True when `vector` is the timer's.
    #[must_use]
    pub fn is_timer_vector(&self, vector: u8) -> bool {
        self.lvt[0] & 0xff == u32::from(vector)
    }

    /// Raises the timer's interrupt if it is due at `now`; true when it was due.
    pub fn expire_timer(&mut self, now: u64) -> bool {
        if !self.timer.expire(now) {
            return false;
        }
        if self.lvt[0] & LVT_MASKED == 0 {
            self.raise(self.lvt[0].to_le_bytes()[0], false);
        }
        true
    }

    /// Reads a register.
    ///
    /// # Errors
    /// A protection fault when there is no such register.
    pub fn read(&self, index: u32, now: u64) -> Result<u64, ProtectionFault> {
        Ok(match index {
            ID => u64::from(self.id.0),
            VERSION => u64::from(VERSION_VALUE),
            TPR => u64::from(self.tpr),
            PPR => u64::from(self.ppr()),
            LDR => u64::from(logical_id(self.id)),
            SVR => u64::from(self.svr),
            ISR..=0x817 => word(&self.isr, index - ISR),
            TMR..=0x81f => word(&self.tmr, index - TMR),
            IRR..=0x827 => word(&self.irr, index - IRR),
            ESR => u64::from(self.esr),
            ICR => self.icr,
            LVT_TIMER..=LVT_ERROR => u64::from(self.lvt[place(index, LVT_TIMER)]),
            INITIAL_COUNT => u64::from(self.timer.initial_count()),
            CURRENT_COUNT => u64::from(self.timer.current_count(now)),
            DIVIDE => u64::from(self.timer.divide()),
            TSC_DEADLINE => self.timer.deadline(),
            _ => return Err(ProtectionFault),
        })
    }

    /// Writes a register at time `now`.
    ///
    /// # Errors
    /// A protection fault when the register does not exist, is read-only, or reserved bits are set.
    pub fn write(&mut self, index: u32, value: u64, now: u64) -> Result<Effect, ProtectionFault> {
        if index == TSC_DEADLINE {
            self.timer.set_deadline(value);
            return Ok(Effect::Timer);
        }
        if index == ICR {
            return self.send(value);
        }
        let value = u32::try_from(value).map_err(|_| ProtectionFault)?;
        let byte = || u8::try_from(value).map_err(|_| ProtectionFault);
        match index {
            TPR => self.tpr = byte()?,
            EOI if value == 0 => return Ok(self.end_of_interrupt()),
            SVR => self.set_svr(value),
            ESR if value == 0 => self.esr = 0,
            LVT_TIMER..=LVT_ERROR => return Ok(self.set_lvt(index, value)),
            INITIAL_COUNT => {
                self.timer.set_initial_count(value, now);
                return Ok(Effect::Timer);
            }
            DIVIDE => {
                self.timer.set_divide(value, now);
                return Ok(Effect::Timer);
            }
            SELF_IPI => self.raise(byte()?, false),
            _ => return Err(ProtectionFault),
        }
        Ok(Effect::None)
    }

    fn set_svr(&mut self, value: u32) {
        self.svr = value & SVR_WRITABLE;
        if !self.enabled() {
            // SDM 12.4.7.2: a disabled APIC masks its local vector table.
            self.lvt.iter_mut().for_each(|entry| *entry |= LVT_MASKED);
        }
    }

    fn set_lvt(&mut self, index: u32, value: u32) -> Effect {
        let forced = if self.enabled() { 0 } else { LVT_MASKED };
        let place = place(index, LVT_TIMER);
        self.lvt[place] = value & LVT_WRITABLE[place] | forced;
        if index != LVT_TIMER {
            return Effect::None;
        }
        self.timer.set_mode(value >> 17 & 3);
        Effect::Timer
    }

    fn end_of_interrupt(&mut self) -> Effect {
        let Some(vector) = self.isr.highest() else { return Effect::None };
        self.isr.remove(vector);
        let level = self.tmr.contains(vector);
        Effect::Ended { vector, level, timer: self.is_timer_vector(vector) }
    }

    /// A write to the interrupt command register (SDM vol. 3, 12.12.9).
    fn send(&mut self, value: u64) -> Result<Effect, ProtectionFault> {
        self.icr = value;
        let vector = value.to_le_bytes()[0];
        let mode = match value >> 8 & 7 {
            0 => DeliveryMode::Fixed,
            1 => DeliveryMode::LowestPriority,
            4 => DeliveryMode::Nmi,
            // Bit 15 set and bit 14 clear is INIT de-assert, which only older APICs know.
            5 if value >> 14 & 3 == 2 => return Ok(Effect::None),
            5 => DeliveryMode::Init,
            6 => DeliveryMode::Startup,
            _ => return Err(ProtectionFault),
        };
        let maskable = matches!(mode, DeliveryMode::Fixed | DeliveryMode::LowestPriority);
        if maskable && vector < FIRST_VECTOR {
            self.esr |= ESR_ILLEGAL_SEND;
            return Ok(Effect::None);
        }
        let shorthand = match value >> 18 & 3 {
            0 => Shorthand::None,
            1 => Shorthand::This,
            2 => Shorthand::All,
            _ => Shorthand::Others,
        };
        let destination = u32::try_from(value >> 32).map_err(|_| ProtectionFault)?;
        let logical = value >> 11 & 1 != 0;
        let message = InterruptMessage { destination, logical, mode, vector };
        Ok(Effect::Send(Command { shorthand, message }))
    }
}

fn place(index: u32, first: u32) -> usize {
    usize::try_from(index - first).expect("the match arm bounds the register index")
}

fn word(set: &VectorSet, offset: u32) -> u64 {
    u64::from(set.word(place(offset, 0)))
}

#[path = "lapic_saved.rs"]
mod saved;
pub use saved::LapicState;

#[cfg(test)]
#[path = "lapic_tests.rs"]
mod tests;
