//! What all hosts have in common.
//!
//! | kind of leaf | result |
//! |---|---|
//! | feature bits | bitwise AND |
//! | highest leaf or subleaf, address widths | minimum |
//! | XSAVE components | AND; offsets and sizes must agree; total size recomputed |
//! | everything else (brand, caches) | from the first host; Linux only shows it |

use super::{Cpuid, CpuidLeaf};
use thiserror::Error;

/// Hosts that cannot run one VM.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CpuidError {
    /// There is no host.
    #[error("cannot intersect the CPUID of no hosts")]
    NoHost,
    /// A table without the leaves that every processor has.
    #[error("CPUID of host {host} has no leaf {function:#x}")]
    Missing {
        /// Position of the host in the list.
        host: usize,
        /// The leaf.
        function: u32,
    },
    /// Different makers.
    #[error("processor of host {host} is of another vendor than that of host 0")]
    Vendor {
        /// Position of the host in the list.
        host: usize,
    },
    /// Different families, whose errata and MSRs differ.
    #[error("processor of host {host} is of family {family:#x}, that of host 0 of {first:#x}")]
    Family {
        /// Position of the host in the list.
        host: usize,
        /// Its family.
        family: u32,
        /// Family of the first.
        first: u32,
    },
    /// A component of the extended state lies elsewhere in memory.
    #[error("XSAVE component {component} of host {host} has another offset or size than on host 0")]
    Xsave {
        /// Position of the host in the list.
        host: usize,
        /// Bit number in XCR0.
        component: u32,
    },
}

const XSAVE: u32 = 0xd;
/// Legacy region and header of an XSAVE area in bytes (Intel SDM vol. 1, 13.4).
const XSAVE_MINIMUM: u32 = 576;

/// The table that every one of these hosts can give to a guest.
///
/// # Errors
///
/// No host, a table without leaf 0 or 1, another vendor or family, or another XSAVE layout.
pub fn intersect(hosts: &[Cpuid]) -> Result<Cpuid, CpuidError> {
    let (first, others) = hosts.split_first().ok_or(CpuidError::NoHost)?;
    let mut result = first.clone();
    check(0, first, first)?;
    for (host, other) in (1..).zip(others) {
        check(host, first, other)?;
        result.leaves.retain(|leaf| other.get(leaf.function, leaf.index).is_some());
        for leaf in &mut result.leaves {
            if let Some(with) = other.get(leaf.function, leaf.index) {
                merge(leaf, with);
            }
        }
    }
    finish_xsave(&mut result);
    Ok(result)
}

/// The leaves of a VM's table that a host cannot give whole, by what both have in common: none if the VM can run there.
#[must_use]
pub fn lacks(vm: &Cpuid, common: &Cpuid) -> Vec<String> {
    let whole = |leaf: &CpuidLeaf| common.get(leaf.function, leaf.index) == Some(leaf);
    let missing = vm.leaves.iter().filter(|leaf| !whole(leaf));
    missing.map(|leaf| format!("CPUID {:#x}.{}", leaf.function, leaf.index)).collect()
}

fn check(host: usize, first: &Cpuid, other: &Cpuid) -> Result<(), CpuidError> {
    let leaf = |table: &Cpuid, function| {
        table.get(function, 0).copied().ok_or(CpuidError::Missing { host, function })
    };
    let vendor = |leaf: CpuidLeaf| (leaf.ebx, leaf.ecx, leaf.edx);
    if vendor(leaf(first, 0)?) != vendor(leaf(other, 0)?) {
        return Err(CpuidError::Vendor { host });
    }
    let (ours, family) = (family(leaf(first, 1)?.eax), family(leaf(other, 1)?.eax));
    if ours != family {
        return Err(CpuidError::Family { host, family, first: ours });
    }
    for component in 2..63 {
        if let (Some(ours), Some(theirs)) =
            (first.get(XSAVE, component), other.get(XSAVE, component))
            && (ours.eax, ours.ebx) != (theirs.eax, theirs.ebx)
            && ours.eax != 0
            && theirs.eax != 0
        {
            return Err(CpuidError::Xsave { host, component });
        }
    }
    Ok(())
}

/// Display family (Intel SDM vol. 2, CPUID, leaf 1).
fn family(signature: u32) -> u32 {
    let base = signature >> 8 & 0xf;
    if base == 0xf { base + (signature >> 20 & 0xff) } else { base }
}

/// Merges one leaf.
fn merge(leaf: &mut CpuidLeaf, other: &CpuidLeaf) {
    let and = |a: &mut u32, b: u32| *a &= b;
    let min = |a: &mut u32, b: u32| *a = (*a).min(b);
    match (leaf.function, leaf.index) {
        (0 | 0x4000_0000 | 0x8000_0000, _) => min(&mut leaf.eax, other.eax),
        (1, _) => {
            // The older model: a guest might take a newer one for granted.
            min(&mut leaf.eax, other.eax);
            and(&mut leaf.ecx, other.ecx);
            and(&mut leaf.edx, other.edx);
        }
        // EAX of these is the highest subleaf.
        (7 | 0x14 | 0x24, 0) => {
            min(&mut leaf.eax, other.eax);
            and(&mut leaf.ebx, other.ebx);
            and(&mut leaf.ecx, other.ecx);
            and(&mut leaf.edx, other.edx);
        }
        (XSAVE, 0) => {
            and(&mut leaf.eax, other.eax);
            and(&mut leaf.edx, other.edx);
        }
        (XSAVE, 1) => {
            and(&mut leaf.eax, other.eax);
            and(&mut leaf.ecx, other.ecx);
            and(&mut leaf.edx, other.edx);
        }
        (0x8000_0001, _) => {
            and(&mut leaf.ecx, other.ecx);
            and(&mut leaf.edx, other.edx);
        }
        (0x8000_0008, _) => {
            let widths = leaf.eax.to_le_bytes().into_iter().zip(other.eax.to_le_bytes());
            let mut least = [0; 4];
            for (slot, (a, b)) in least.iter_mut().zip(widths) {
                *slot = a.min(b);
            }
            leaf.eax = u32::from_le_bytes(least);
            and(&mut leaf.ebx, other.ebx);
        }
        (5 | 6 | 7 | 0xa | 0x12 | 0x14 | 0x19 | 0x23 | 0x24, _)
        | (0x4000_0001 | 0x8000_0007 | 0x8000_000a | 0x8000_001f | 0x8000_0021, _) => {
            and(&mut leaf.eax, other.eax);
            and(&mut leaf.ebx, other.ebx);
            and(&mut leaf.ecx, other.ecx);
            and(&mut leaf.edx, other.edx);
        }
        _ => {}
    }
}

/// Drops the parts of component groups that are no longer whole, then the leaves of components
/// that are gone, and computes the sizes anew.
fn finish_xsave(table: &mut Cpuid) {
    let Some(main) = table.get(XSAVE, 0).copied() else { return };
    let supervisor = table.get(XSAVE, 1).map_or(0, |leaf| wide(leaf.ecx, leaf.edx));
    let mut user = wide(main.eax, main.edx);
    // MPX, AVX-512 and AMX are enabled all together or not at all (Intel SDM vol. 1, 13.3).
    for group in [0b11_u64 << 3, 0b111 << 5, 0b11 << 17] {
        if user & group != group {
            user &= !group;
        }
    }
    let kept = user | supervisor;
    table.leaves.retain(|leaf| {
        leaf.function != XSAVE || leaf.index < 2 || kept >> leaf.index.min(63) & 1 != 0
    });
    let ends = table.leaves.iter().filter(|leaf| {
        leaf.function == XSAVE && leaf.index >= 2 && user >> leaf.index.min(63) & 1 != 0
    });
    let size = ends.map(|leaf| leaf.ebx.saturating_add(leaf.eax)).max().unwrap_or(0);
    if let Some(leaf) = table.get_mut(XSAVE, 0) {
        leaf.eax = u32::try_from(user & u64::from(u32::MAX)).unwrap_or(0);
        leaf.edx = u32::try_from(user >> 32).unwrap_or(0);
        leaf.ecx = size.max(XSAVE_MINIMUM);
        // The size for the components enabled now: KVM keeps it up to date.
        leaf.ebx = leaf.ebx.min(leaf.ecx);
    }
}

fn wide(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}
