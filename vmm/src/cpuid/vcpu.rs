//! The table of one vCPU.

use super::{Cpuid, CpuidLeaf};

/// What the tables of all vCPUs depend on, besides the common features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Number of vCPUs; their x2APIC ids are 0, 1, ...
    pub vcpus: u32,
    /// TSC frequency in kHz to tell the guest, if it shall be told by CPUID. Only Linux on Intel
    /// listens; elsewhere `tsc_early_khz=` and the PM timer say it.
    pub guest_tsc_khz: Option<u32>,
    /// Offer `KVM_FEATURE_MSI_EXT_DEST_ID`: devices reach x2APIC ids above 254.
    pub msi_ext_dest_id: bool,
}

const SIGNATURE: u32 = 0x4000_0000;
const FEATURES: u32 = 0x4000_0001;
/// "KVMKVMKVM" in EBX, ECX, EDX.
const KVM_SIGNATURE: [u32; 3] = [0x4b4d_564b, 0x564b_4d56, 0x4d];
const MSI_EXT_DEST_ID: u32 = 1 << 15;

/// Functions that a guest of several hosts never sees. Monitor; cache monitoring and allocation
/// (0xf, 0x10); SGX (0x12); processor trace (0x14); last branch records (0x1c), performance
/// counters (0x23, AMD 0x8000_0022); AMD: SVM, lightweight profiling, IBS, SEV, quality of
/// service.
const REMOVED: [u32; 13] = [
    0x5,
    0xf,
    0x10,
    0x12,
    0x14,
    0x1c,
    0x23,
    0x8000_000a,
    0x8000_001b,
    0x8000_001c,
    0x8000_001f,
    0x8000_0020,
    0x8000_0022,
];

/// Bits from their numbers.
const fn bits<const N: usize>(numbers: [u32; N]) -> u32 {
    let mut mask = 0;
    let mut at = 0;
    while at < N {
        mask |= 1 << numbers[at];
        at += 1;
    }
    mask
}

/// The table of this vCPU. Deterministic: every slice computes the same.
#[must_use]
pub fn for_vcpu(base: &Cpuid, vcpu: u32, topology: &Topology) -> Cpuid {
    let mut table = base.clone();
    table.remove(&REMOVED);
    features(&mut table, vcpu);
    extended_features(&mut table, vcpu);
    places(&mut table, vcpu);
    frequency(&mut table, topology.guest_tsc_khz);
    paravirtual(&mut table, topology.msi_ext_dest_id);
    table
}

/// Leaves 1, 6, 7 and 0xa.
fn features(table: &mut Cpuid, vcpu: u32) {
    let [id, ..] = vcpu.to_le_bytes();
    let leaf = table.entry(1);
    leaf.ebx = leaf.ebx & 0xff00 | 1 << 16 | u32::from(id) << 24;
    // Off: DTES64, MONITOR, DS-CPL, VMX, SMX, EIST, TM2, SDBG, PDCM, DCA.
    leaf.ecx &= !bits([2, 3, 4, 5, 6, 7, 8, 11, 15, 18]);
    // On: x2APIC, TSC-deadline timer, hypervisor.
    leaf.ecx |= bits([21, 24, 31]);
    // Off: DS, ACPI, HTT (there is one logical processor in a package), TM, PBE.
    leaf.edx &= !bits([21, 22, 28, 29, 31]);
    // On: APIC.
    leaf.edx |= bits([9]);
    // Thermal and power: only ARAT, the local APIC timer that never stops.
    *table.entry(6) = CpuidLeaf { function: 6, eax: bits([2]), ..CpuidLeaf::default() };
    *table.entry(0xa) = CpuidLeaf { function: 0xa, ..CpuidLeaf::default() };
    if let Some(leaf) = table.get_mut(7, 0) {
        // Off: SGX, RDT monitoring, RDT allocation, processor trace.
        leaf.ebx &= !bits([2, 12, 15, 25]);
        // Off: WAITPKG (a long wait of one vCPU is invisible to its host), LA57, bus lock
        // detection, ENQCMD, SGX launch control.
        leaf.ecx &= !bits([5, 16, 24, 29, 30]);
        // Off: user interrupts, hybrid, PCONFIG, architectural LBR, core capabilities.
        leaf.edx &= !bits([5, 15, 18, 19, 30]);
    }
}

/// AMD's leaves, which Intel has in part.
fn extended_features(table: &mut Cpuid, vcpu: u32) {
    if let Some(leaf) = table.get_mut(0x8000_0001, 0) {
        // Off: CmpLegacy, SVM, IBS, SKINIT, watchdog, LWP, NodeId MSR, core, north bridge and
        // last level performance counters, performance TSC, MONITORX.
        leaf.ecx &= !bits([1, 2, 10, 12, 13, 15, 19, 23, 24, 27, 28, 29]);
    }
    if table.get(0x8000_0000, 0).is_some_and(|leaf| leaf.eax >= 0x8000_0007) {
        // Power management: only the invariant TSC.
        *table.entry(0x8000_0007) =
            CpuidLeaf { function: 0x8000_0007, edx: bits([8]), ..CpuidLeaf::default() };
    }
    if let Some(leaf) = table.get_mut(0x8000_0006, 0) {
        // No L3: some AMD models would share it between eight neighbouring ids, whatever their
        // node.
        leaf.edx = 0;
    }
    if let Some(leaf) = table.get_mut(0x8000_0008, 0) {
        // One core in the package.
        leaf.ecx = 0;
    }
    if let Some(leaf) = table.get_mut(0x8000_001e, 0) {
        // Extended APIC id; core 0 with one thread; the node of a package with one node.
        (leaf.eax, leaf.ebx, leaf.ecx, leaf.edx) = (vcpu, 0, vcpu & 0xff, 0);
    }
}

/// Topology and cache leaves: this vCPU shares nothing.
fn places(table: &mut Cpuid, vcpu: u32) {
    for leaf in &mut table.leaves {
        match leaf.function {
            // EAX: threads sharing the cache (25:14) and cores in the package (31:26), minus one.
            4 => leaf.eax &= 0x3fff,
            0x8000_001d => leaf.eax &= 0x3fff,
            _ => {}
        }
    }
    // A third level cache (EAX 7:5) of AMD goes with its entry in leaf 0x80000006.
    table.leaves.retain(|leaf| leaf.function != 0x8000_001d || leaf.eax >> 5 & 7 != 3);
    let had_v2 = table.get(0x1f, 0).is_some();
    table.remove(&[0xb, 0x1f]);
    for function in [0xb, 0x1f] {
        if function == 0xb || had_v2 {
            table.leaves.extend(levels(function, vcpu));
        }
    }
    let highest = table.entry(0);
    highest.eax = highest.eax.max(0xb);
}

/// Thread and core level, each of one, and the end of the list (Intel SDM vol. 2, leaf 0x1f).
fn levels(function: u32, vcpu: u32) -> impl Iterator<Item = CpuidLeaf> {
    // EBX: logical processors at this level; ECX: kind of the level and its index.
    [(1, 1 << 8), (1, 2 << 8 | 1), (0, 2)].into_iter().zip(0..).map(move |((ebx, ecx), index)| {
        CpuidLeaf { function, index, indexed: true, eax: 0, ebx, ecx, edx: vcpu }
    })
}

/// Leaves 0x15 and 0x16 with the guest's frequency, or none, never the host's.
fn frequency(table: &mut Cpuid, khz: Option<u32>) {
    /// Crystal clock in Hz. Low, because Linux multiplies its kHz with EBX in 32 bits.
    const CRYSTAL_HZ: u32 = 100_000;
    table.remove(&[0x15, 0x16]);
    let Some(khz) = khz else { return };
    // TSC = crystal * EBX / EAX.
    let (eax, ebx, ecx) = (CRYSTAL_HZ / 1000, khz, CRYSTAL_HZ);
    table.leaves.push(CpuidLeaf { function: 0x15, eax, ebx, ecx, ..CpuidLeaf::default() });
    // Base, maximum and bus frequency in MHz, 16 bits each.
    let mhz = (khz / 1000).min(0xffff);
    let (eax, ebx, ecx) = (mhz, mhz, 100);
    table.leaves.push(CpuidLeaf { function: 0x16, eax, ebx, ecx, ..CpuidLeaf::default() });
    let highest = table.entry(0);
    highest.eax = highest.eax.max(0x16);
}

/// KVM's leaves: the signature without features, but for one that writes no memory.
fn paravirtual(table: &mut Cpuid, msi_ext_dest_id: bool) {
    table.leaves.retain(|leaf| leaf.function >> 16 != 0x4000);
    let [ebx, ecx, edx] = KVM_SIGNATURE;
    let signature =
        CpuidLeaf { function: SIGNATURE, eax: FEATURES, ebx, ecx, edx, ..CpuidLeaf::default() };
    let eax = if msi_ext_dest_id { MSI_EXT_DEST_ID } else { 0 };
    table.leaves.push(signature);
    table.leaves.push(CpuidLeaf { function: FEATURES, eax, ..CpuidLeaf::default() });
}
