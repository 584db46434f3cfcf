//! The saved form of an APIC in user space.

use super::{ESR_ILLEGAL_SEND, FIRST_VECTOR, LVT_MASKED, LVT_WRITABLE, Lapic};
use super::{SVR_ENABLED, SVR_WRITABLE, VectorSet};
use crate::interrupts::timer::{LapicTimer, TimerState};
use migrate::Invalid;
use serde::{Deserialize, Serialize};
use wire::VcpuId;

/// Registers and timer of a local APIC in x2APIC mode. Id and logical id are those of its vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LapicState {
    /// Requested, 32 vectors a word.
    pub irr: [u32; 8],
    /// In service.
    pub isr: [u32; 8],
    /// Level-triggered.
    pub tmr: [u32; 8],
    /// Task priority.
    pub tpr: u8,
    /// Spurious vector, and whether the APIC is enabled.
    pub svr: u32,
    /// Errors.
    pub esr: u32,
    /// The last interrupt command.
    pub icr: u64,
    /// Local vector table: timer (with its mode), thermal, performance counters, LINT0, LINT1, error.
    pub lvt: [u32; 6],
    /// The timer.
    pub timer: TimerState,
}

/// The timer's mode, by its entry in the local vector table.
fn mode(entry: u32) -> u32 {
    entry >> 17 & 3
}

impl LapicState {
    /// Whether an APIC can be in this state.
    ///
    /// # Errors
    /// The first field that cannot.
    pub fn check(&self) -> Result<(), Invalid> {
        let unless = |holds, why| Invalid::unless(holds, "apic", why);
        let reserved = (1_u32 << FIRST_VECTOR) - 1;
        let low = self.irr[0] | self.isr[0] | self.tmr[0];
        unless(low & reserved == 0, "a vector of exceptions")?;
        unless(self.svr & !SVR_WRITABLE == 0, "reserved bits of the spurious vector register")?;
        unless(self.esr & !ESR_ILLEGAL_SEND == 0, "errors that never happen")?;
        let entries = || self.lvt.iter();
        let mut writable = entries().zip(LVT_WRITABLE);
        let in_order = writable.all(|(entry, writable)| entry & !writable == 0);
        unless(in_order, "reserved bits of a vector entry")?;
        let enabled = self.svr & SVR_ENABLED != 0;
        let masked = entries().all(|entry| entry & LVT_MASKED != 0);
        unless(enabled || masked, "an open vector entry of a disabled APIC")?;
        self.timer.check(mode(self.lvt[0]))
    }
}

impl Lapic {
    /// The state now.
    #[must_use]
    pub fn save(&self) -> LapicState {
        LapicState {
            irr: self.irr.words(),
            isr: self.isr.words(),
            tmr: self.tmr.words(),
            tpr: self.tpr,
            svr: self.svr,
            esr: self.esr,
            icr: self.icr,
            lvt: self.lvt,
            timer: self.timer.save(),
        }
    }

    /// The APIC of a vCPU in a state that was saved, with a time stamp counter of this frequency in kHz.
    ///
    /// # Errors
    /// No APIC can be in this state.
    pub fn restored(id: VcpuId, khz: u32, state: &LapicState) -> Result<Self, Invalid> {
        state.check()?;
        let LapicState { irr, isr, tmr, tpr, svr, esr, icr, lvt, timer } = *state;
        Ok(Self {
            id,
            irr: VectorSet::from_words(irr),
            isr: VectorSet::from_words(isr),
            tmr: VectorSet::from_words(tmr),
            tpr,
            svr,
            esr,
            icr,
            lvt,
            timer: LapicTimer::restored(khz, mode(lvt[0]), timer),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupts::lapic::{TSC_DEADLINE, X2APIC_FIRST};
    use proptest::prelude::*;

    const KHZ: u32 = 2_400_000;

    /// What can happen to an APIC.
    #[derive(Clone, Debug)]
    enum Step {
        Write(u32, u64),
        Raise(u8, bool),
        Accept,
        Expire(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let register = prop_oneof![
            Just(TSC_DEADLINE),
            Just(X2APIC_FIRST + 0xf),
            Just(X2APIC_FIRST + 0x32),
            X2APIC_FIRST..X2APIC_FIRST + 0x40
        ];
        let value = prop_oneof![any::<u64>(), 0_u64..0x1000, (0_u64..1 << 19)];
        prop_oneof![
            4 => (register, value).prop_map(|(index, value)| Step::Write(index, value)),
            2 => (any::<u8>(), any::<bool>()).prop_map(|(vector, level)| Step::Raise(vector, level)),
            1 => Just(Step::Accept),
            1 => (0_u64..1 << 40).prop_map(Step::Expire),
        ]
    }

    fn take(lapic: &mut Lapic, step: &Step, now: u64) {
        match *step {
            Step::Write(index, value) => drop(lapic.write(index, value, now)),
            Step::Raise(vector, level) => lapic.raise(vector, level),
            Step::Accept => {
                if let Some(vector) = lapic.deliverable() {
                    lapic.accept(vector);
                }
            }
            Step::Expire(later) => drop(lapic.expire_timer(later)),
        }
    }

    fn registers(lapic: &Lapic, now: u64) -> Vec<Option<u64>> {
        let all = (X2APIC_FIRST..X2APIC_FIRST + 0x40).chain([TSC_DEADLINE]);
        all.map(|index| lapic.read(index, now).ok()).collect()
    }

    proptest! {
        /// Whatever has happened to it, a restored APIC looks the same, is due at the same time, and goes on the same.
        #[test]
        fn restored_apic_goes_on_as_the_old_one(
            before in prop::collection::vec(step(), 0..60),
            after in prop::collection::vec(step(), 0..20),
        ) {
            let mut old = Lapic::new(VcpuId(5), KHZ);
            old.write(X2APIC_FIRST + 0xf, 0x1ff, 0).unwrap();
            before.iter().for_each(|step| take(&mut old, step, 1000));
            let state = old.save();
            let mut new = Lapic::restored(VcpuId(5), KHZ, &state).unwrap();
            prop_assert_eq!(new.save(), state);
            for (step, now) in after.iter().zip(2000..) {
                take(&mut old, step, now);
                take(&mut new, step, now);
                prop_assert_eq!(registers(&new, now), registers(&old, now));
                prop_assert_eq!(new.timer().due(), old.timer().due());
                prop_assert_eq!(new.deliverable(), old.deliverable());
            }
        }
    }

    #[test]
    fn states_that_no_apic_is_in_are_refused() {
        let mut lapic = Lapic::new(VcpuId(0), KHZ);
        lapic.write(X2APIC_FIRST + 0xf, 0x1ff, 0).unwrap();
        let good = lapic.save();
        good.check().unwrap();
        let bad = |change: fn(&mut LapicState)| {
            let mut state = good;
            change(&mut state);
            assert!(Lapic::restored(VcpuId(0), KHZ, &state).is_err(), "{state:x?}");
        };
        bad(|state| state.irr[0] = 1);
        bad(|state| state.isr[0] = 1 << 15);
        bad(|state| state.svr = 0x200);
        bad(|state| state.esr = 1);
        bad(|state| state.lvt[3] = 1 << 31);
        bad(|state| state.lvt[5] |= 1 << 13);
        bad(|state| (state.svr, state.lvt[2]) = (0xff, 0));
        bad(|state| state.timer.divide = 4);
        bad(|state| state.timer.deadline = 1);
        bad(|state| (state.timer.started, state.timer.initial) = (Some(1), 0));
        bad(|state| {
            (state.timer.started, state.timer.initial) = (Some(1), 1);
            state.lvt[0] |= 2 << 17;
        });
    }
}
