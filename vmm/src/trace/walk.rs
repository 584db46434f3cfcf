//! A walk of the guest's page tables that waits for nothing.

use super::Memory;
use kvm_bindings::kvm_sregs;
use wire::Gfn;

/// Bits of the control registers (SDM vol. 3, 2.5 and 4.1.1).
const CR0_PG: u64 = 1 << 31;
const CR4_LA57: u64 = 1 << 12;
const EFER_LMA: u64 = 1 << 10;

const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
/// The address in CR3 and in entries.
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// Where an address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    /// The frames of the tables that were used, zero where there is none.
    tables: [u64; 5],
    /// Guest-physical address; none where nothing is mapped, or a table was never here.
    pub(super) physical: Option<u64>,
}

impl Walk {
    /// Translates a linear address. Only long mode and no paging at all are known.
    pub(super) fn of(memory: &impl Memory, sregs: &kvm_sregs, address: u64) -> Self {
        let mut walk = Self { tables: [0; 5], physical: None };
        if sregs.cr0 & CR0_PG == 0 {
            walk.physical = Some(address);
            return walk;
        }
        if sregs.efer & EFER_LMA == 0 {
            return walk;
        }
        let levels: u32 = if sregs.cr4 & CR4_LA57 == 0 { 4 } else { 5 };
        let mut entry = sregs.cr3;
        for (level, used) in (0..levels).rev().zip(&mut walk.tables) {
            let table = entry & FRAME;
            *used = table >> 12;
            let shift = 12 + 9 * level;
            let mut bytes = [0; 8];
            if !memory.peek(table + (address >> shift & 511) * 8, &mut bytes) {
                return walk;
            }
            entry = u64::from_le_bytes(bytes);
            if entry & PRESENT == 0 {
                return walk;
            }
            let large = entry & LARGE != 0 && (1..=2).contains(&level);
            if level == 0 || large {
                let offset = (1 << shift) - 1;
                walk.physical = Some(entry & FRAME & !offset | address & offset);
                return walk;
            }
        }
        walk
    }

    /// Whether one of the tables is this page.
    pub(super) fn uses(&self, gfn: Gfn) -> bool {
        gfn.0 != 0 && self.tables.contains(&gfn.0)
    }
}
