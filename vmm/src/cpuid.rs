//! The processor that the guest sees: what all hosts have in common, and each vCPU's place in it.
//!
//! [`intersect`] runs once, over the `KVM_GET_SUPPORTED_CPUID` of every slice; the result is sent
//! back to all of them. [`for_vcpu`] then makes the table of one vCPU, the same on every host.
//!
//! Every vCPU is a package of its own with one core and no shared cache. vCPUs of one package or
//! cache on different NUMA nodes would make Linux warn and ignore the topology, and x2APIC ids
//! count through slices of any size, so packages of several vCPUs would have no common prefix.
//!
//! Hidden from the guest are: nested virtualisation, performance counters, everything that
//! needs state on one host only, and all paravirtual features of KVM, which write guest memory
//! behind the DSM. KVM's signature stays: with it Linux accepts x2APIC without interrupt
//! remapping.
//!
//! Feature bits that come from MSRs (`IA32_ARCH_CAPABILITIES`) are not in CPUID; whoever sets those
//! MSRs must intersect them too.

mod intersect;
#[cfg(test)]
mod tests;
mod vcpu;

pub use intersect::{CpuidError, intersect, lacks};
pub use vcpu::{Topology, for_vcpu};

use kvm_bindings::{KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};
use serde::{Deserialize, Serialize};

/// One leaf or subleaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuidLeaf {
    /// EAX of the request.
    pub function: u32,
    /// ECX of the request; 0 if it does not matter.
    pub index: u32,
    /// True when the index matters.
    pub indexed: bool,
    /// Result.
    pub eax: u32,
    /// Result.
    pub ebx: u32,
    /// Result.
    pub ecx: u32,
    /// Result.
    pub edx: u32,
}

/// A CPUID table in a form that slices can exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpuid {
    /// Leaves in KVM's order.
    pub leaves: Vec<CpuidLeaf>,
}

impl Cpuid {
    /// From KVM's entries.
    #[must_use]
    pub fn from_kvm(entries: &[kvm_cpuid_entry2]) -> Self {
        let leaf = |entry: &kvm_cpuid_entry2| CpuidLeaf {
            function: entry.function,
            index: entry.index,
            indexed: entry.flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX != 0,
            eax: entry.eax,
            ebx: entry.ebx,
            ecx: entry.ecx,
            edx: entry.edx,
        };
        Self { leaves: entries.iter().map(leaf).collect() }
    }

    /// As entries for `KVM_SET_CPUID2`.
    #[must_use]
    pub fn to_kvm(&self) -> Vec<kvm_cpuid_entry2> {
        let entry = |leaf: &CpuidLeaf| kvm_cpuid_entry2 {
            function: leaf.function,
            index: leaf.index,
            flags: if leaf.indexed { KVM_CPUID_FLAG_SIGNIFCANT_INDEX } else { 0 },
            eax: leaf.eax,
            ebx: leaf.ebx,
            ecx: leaf.ecx,
            edx: leaf.edx,
            padding: [0; 3],
        };
        self.leaves.iter().map(entry).collect()
    }

    /// The leaf of this function and index; the index of a leaf without any is not compared.
    #[must_use]
    pub fn get(&self, function: u32, index: u32) -> Option<&CpuidLeaf> {
        let wanted =
            |leaf: &&CpuidLeaf| leaf.function == function && (!leaf.indexed || leaf.index == index);
        self.leaves.iter().find(wanted)
    }

    /// The leaf, for change.
    fn get_mut(&mut self, function: u32, index: u32) -> Option<&mut CpuidLeaf> {
        let wanted = |leaf: &&mut CpuidLeaf| {
            leaf.function == function && (!leaf.indexed || leaf.index == index)
        };
        self.leaves.iter_mut().find(wanted)
    }

    /// The leaf, made if it is not there.
    fn entry(&mut self, function: u32) -> &mut CpuidLeaf {
        if self.get(function, 0).is_none() {
            self.leaves.push(CpuidLeaf { function, ..CpuidLeaf::default() });
        }
        self.get_mut(function, 0).expect("the leaf has just been made")
    }

    /// Drops all leaves of these functions.
    fn remove(&mut self, functions: &[u32]) {
        self.leaves.retain(|leaf| !functions.contains(&leaf.function));
    }
}
