//! Model-specific registers by KVM's own list (`KVM_GET_MSR_INDEX_LIST`).

use kvm_bindings::{KVM_MAX_MSR_ENTRIES, Msrs, kvm_msr_entry};
use migrate::Invalid;
use serde::{Deserialize, Serialize};

use crate::interrupts::lapic::TSC_DEADLINE;

/// The time stamp counter: saved as its distance from the machine's clock.
pub(super) const TSC: u32 = 0x10;
/// The base of the APIC: saved with the system registers.
pub(super) const APIC_BASE: u32 = 0x1b;
/// Most registers of a state. KVM lists some hundred.
const MSRS_MAX: usize = 512;

/// A model-specific register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Msr {
    /// Its number.
    pub index: u32,
    /// Its value.
    pub value: u64,
}

/// The model-specific registers of a vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MsrSet {
    /// Up to 512, each once, in KVM's order. Neither the time stamp counter nor the base of the APIC is among them.
    pub values: Vec<Msr>,
    /// Registers of KVM's list that KVM refused to read. For people: nothing depends on it.
    pub refused: u32,
}

impl MsrSet {
    /// The value of a register.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<u64> {
        self.values.iter().find(|msr| msr.index == index).map(|msr| msr.value)
    }

    /// Gives a register that is there another value.
    pub(crate) fn change(&mut self, index: u32, value: u64) {
        if let Some(msr) = self.values.iter_mut().find(|msr| msr.index == index) {
            msr.value = value;
        }
    }

    /// Gives a register this value. One that is not there is zero.
    pub(super) fn set(&mut self, index: u32, value: u64) {
        if value != 0 && self.get(index).is_none() {
            self.values.push(Msr { index, value });
        }
        self.change(index, value);
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let unless = |holds, why| Invalid::unless(holds, "msrs", why);
        unless(self.values.len() <= MSRS_MAX, "more than 512")?;
        let mut indices: Vec<u32> = self.values.iter().map(|msr| msr.index).collect();
        indices.sort_unstable();
        unless(indices.windows(2).all(|pair| pair[0] != pair[1]), "one of them twice")?;
        let foreign = |index: &u32| matches!(*index, TSC | APIC_BASE);
        unless(!indices.iter().any(foreign), "one that is saved elsewhere")
    }

    /// The registers in the order in which they are set, as lists that KVM takes: the timer's deadline is last, for
    /// the mode of the timer has to be set before it.
    #[must_use]
    pub fn to_kvm(&self) -> Vec<Msrs> {
        let (deadline, others): (Vec<_>, Vec<_>) =
            self.values.iter().partition(|msr| msr.index == TSC_DEADLINE);
        let ordered: Vec<_> = others.into_iter().chain(deadline).map(entry).collect();
        let lists = ordered.chunks(KVM_MAX_MSR_ENTRIES).map(Msrs::from_entries);
        lists.map(|list| list.expect("a chunk has no more entries than a list")).collect()
    }
}

fn entry(msr: &Msr) -> kvm_msr_entry {
    kvm_msr_entry { index: msr.index, data: msr.value, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(indices: impl IntoIterator<Item = u32>) -> MsrSet {
        let values = indices.into_iter().map(|index| Msr { index, value: 5 }).collect();
        MsrSet { values, refused: 0 }
    }

    #[test]
    fn registers_are_set_in_lists_that_kvm_takes_with_the_deadline_last() {
        let many = set((0x1000..0x1000 + 300).chain([TSC_DEADLINE]).chain(0x2000..0x2000 + 100));
        many.check().unwrap();
        let lists = many.to_kvm();
        let lengths: Vec<_> = lists.iter().map(|list| list.as_slice().len()).collect();
        assert_eq!(lengths, [256, 145]);
        assert_eq!(lists[1].as_slice()[144].index, TSC_DEADLINE);
        assert_eq!(lists[0].as_slice()[0].data, 5);
        assert!(set([]).to_kvm().is_empty());
    }

    #[test]
    fn too_many_twice_or_those_of_other_fields_are_refused() {
        assert!(set(0x1000..0x1000 + 513).check().is_err());
        assert!(set([0x174, 0x175, 0x174]).check().is_err());
        assert!(set([TSC]).check().is_err());
        assert!(set([0x174, APIC_BASE]).check().is_err());
        assert_eq!(set([0x174]).get(0x174), Some(5));
    }
}
