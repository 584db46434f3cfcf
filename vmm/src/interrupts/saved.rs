//! The saved form of a local APIC, for both back ends.

use super::lapic::LapicState;
use kvm_bindings::kvm_lapic_state;
use migrate::Invalid;
use serde::{Deserialize, Serialize};
use std::array::from_fn;

/// Registers of the APIC page by their offset (SDM vol. 3, table 12-1).
const ID: usize = 0x20;
const TPR: usize = 0x80;
const LDR: usize = 0xd0;
const DFR: usize = 0xe0;
const SVR: usize = 0xf0;
const ISR: usize = 0x100;
const TMR: usize = 0x180;
const IRR: usize = 0x200;
const ESR: usize = 0x280;
const LVT_CMCI: usize = 0x2f0;
const ICR_LOW: usize = 0x300;
const ICR_HIGH: usize = 0x310;
const LVT: usize = 0x320;
const INITIAL_COUNT: usize = 0x380;
const CURRENT_COUNT: usize = 0x390;
const DIVIDE: usize = 0x3e0;
/// Distance of two registers.
const STRIDE: usize = 0x10;

/// The local APIC of a vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApicState {
    /// In the kernel. The deadline of its timer is among the model-specific registers, and whether the vCPU waits for an
    /// interrupt or a start-up is told by KVM.
    Kernel(KernelApic),
    /// In user space.
    Userspace(UserspaceApic),
}

impl ApicState {
    /// Whether the fields can be those of the APIC with this id; `x2apic` says that it is in this mode.
    ///
    /// # Errors
    /// The first that cannot.
    pub fn check(&self, id: u32, x2apic: bool) -> Result<(), Invalid> {
        match self {
            Self::Kernel(apic) => {
                let own = !x2apic || apic.id == id;
                Invalid::unless(own, "apic", "the id is that of another vCPU")?;
                let counts = apic.current_count <= apic.initial_count;
                Invalid::unless(counts, "apic", "more of the count is left than there was")
            }
            Self::Userspace(apic) => apic.lapic.check(),
        }
    }
}

/// What `KVM_GET_LAPIC` tells, without what KVM works out itself (version and priority of the processor).
///
/// A one-shot count that has run out says nothing about its interrupt: KVM raises it when the state is restored, so it
/// may come once more, but never too few times. Deadlines come exactly once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelApic {
    /// The id; in xAPIC mode in the upper byte.
    pub id: u32,
    /// Task priority.
    pub tpr: u32,
    /// Logical destination.
    pub ldr: u32,
    /// Destination format, for xAPIC mode.
    pub dfr: u32,
    /// Spurious vector, and whether the APIC is enabled.
    pub svr: u32,
    /// In service, 32 vectors a word.
    pub isr: [u32; 8],
    /// Level-triggered.
    pub tmr: [u32; 8],
    /// Requested.
    pub irr: [u32; 8],
    /// Errors.
    pub esr: u32,
    /// Interrupt command: destination in the upper half.
    pub icr: u64,
    /// Local vector table entry of corrected machine checks.
    pub lvt_cmci: u32,
    /// Local vector table: timer, thermal, performance counters, LINT0, LINT1, error.
    pub lvt: [u32; 6],
    /// Initial count of the timer.
    pub initial_count: u32,
    /// What is left of it.
    pub current_count: u32,
    /// Divider of the timer.
    pub divide: u32,
}

impl From<&kvm_lapic_state> for KernelApic {
    fn from(page: &kvm_lapic_state) -> Self {
        let register = |at: usize| {
            let byte = |n: usize| page.regs[at + n].cast_unsigned();
            u32::from_le_bytes(from_fn(byte))
        };
        let set = |first: usize| from_fn(|word| register(first + word * STRIDE));
        Self {
            id: register(ID),
            tpr: register(TPR),
            ldr: register(LDR),
            dfr: register(DFR),
            svr: register(SVR),
            isr: set(ISR),
            tmr: set(TMR),
            irr: set(IRR),
            esr: register(ESR),
            icr: u64::from(register(ICR_HIGH)) << 32 | u64::from(register(ICR_LOW)),
            lvt_cmci: register(LVT_CMCI),
            lvt: from_fn(|entry| register(LVT + entry * STRIDE)),
            initial_count: register(INITIAL_COUNT),
            current_count: register(CURRENT_COUNT),
            divide: register(DIVIDE),
        }
    }
}

impl From<&KernelApic> for kvm_lapic_state {
    fn from(apic: &KernelApic) -> Self {
        let mut page = Self::default();
        let mut put = |at: usize, value: u32| {
            for (slot, byte) in page.regs[at..].iter_mut().zip(value.to_le_bytes()) {
                *slot = byte.cast_signed();
            }
        };
        let [low, high] = [apic.icr, apic.icr >> 32].map(|half| {
            let [a, b, c, d, ..] = half.to_le_bytes();
            u32::from_le_bytes([a, b, c, d])
        });
        let single = [
            (ID, apic.id),
            (TPR, apic.tpr),
            (LDR, apic.ldr),
            (DFR, apic.dfr),
            (SVR, apic.svr),
            (ESR, apic.esr),
            (LVT_CMCI, apic.lvt_cmci),
            (ICR_LOW, low),
            (ICR_HIGH, high),
            (INITIAL_COUNT, apic.initial_count),
            (CURRENT_COUNT, apic.current_count),
            (DIVIDE, apic.divide),
        ];
        single.into_iter().for_each(|(at, value)| put(at, value));
        let lists: [(usize, &[u32]); 4] =
            [(ISR, &apic.isr), (TMR, &apic.tmr), (IRR, &apic.irr), (LVT, &apic.lvt)];
        for (first, list) in lists {
            for (place, value) in list.iter().enumerate() {
                put(first + place * STRIDE, *value);
            }
        }
        page
    }
}

/// Whether a vCPU with its APIC in user space runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activity {
    /// It has not been started since power-on, and has had no INIT.
    PowerOn,
    /// It has had an INIT, and waits for a start-up.
    WaitForStartup,
    /// It runs guest code.
    Running,
    /// It waits for an interrupt.
    Halted,
}

impl Activity {
    /// Whether a start-up has it run.
    #[must_use]
    pub fn waits_for_startup(self) -> bool {
        matches!(self, Self::PowerOn | Self::WaitForStartup)
    }
}

/// An APIC in user space, and what its thread knows. What was in the mailbox has been taken in before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserspaceApic {
    /// Registers and timer.
    pub lapic: LapicState,
    /// Whether the vCPU runs.
    pub activity: Activity,
    /// An NMI was handed to KVM, and it is not known yet whether the guest has taken it.
    pub nmi_sent: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// All that has a name is kept, wherever it lies in the page; the rest is KVM's.
        #[test]
        fn page_of_the_kernel_is_kept_by_names(
            words in prop::collection::vec(any::<u32>(), 33..34), icr: u64
        ) {
            let set = |first: usize| from_fn(|n| words[first + n]);
            let apic = KernelApic {
                id: words[0], tpr: words[1], ldr: words[2], dfr: words[3], svr: words[4],
                isr: set(5), tmr: set(13), irr: set(21), esr: words[29], icr,
                lvt_cmci: words[30], lvt: from_fn(|n| words[n]),
                initial_count: words[31], current_count: words[32], divide: words[0],
            };
            let page = kvm_lapic_state::from(&apic);
            prop_assert_eq!(KernelApic::from(&page), apic);
        }
    }

    #[test]
    fn registers_lie_where_the_manual_says() {
        let mut page = kvm_lapic_state::default();
        page.regs[0x233] = 0x40; // vector 0x7e is requested
        page.regs[0x322] = 4; // deadline mode
        page.regs[0x310] = 9;
        let apic = KernelApic::from(&page);
        assert_eq!(apic.irr, [0, 0, 0, 1 << 30, 0, 0, 0, 0]);
        assert_eq!((apic.lvt[0], apic.icr), (2 << 17, 9 << 32));
    }

    #[test]
    fn ids_of_others_and_counts_that_grew_are_refused() {
        let own = KernelApic { id: 3, initial_count: 7, current_count: 7, ..Default::default() };
        let check = |apic, x2apic| ApicState::Kernel(apic).check(3, x2apic);
        check(own, true).unwrap();
        assert!(check(KernelApic { id: 4, ..own }, true).is_err());
        check(KernelApic { id: 3 << 24, ..own }, false).unwrap();
        assert!(check(KernelApic { current_count: 8, ..own }, true).is_err());
    }
}
