//! Page tables and descriptors of a microguest, in its private memory.
//!
//! Everything is open to user mode (CPL 3), and all bits that a processor would set are set: page
//! walks write nothing. The tables are each slice's own, so no walk ever meets the DSM.

use anyhow::{Context, Result, ensure};
use kvm_bindings::{kvm_dtable, kvm_segment, kvm_sregs};
use microguest::layout::{IMAGE, PRIVATE_BYTES, SHARED, TABLES, VECTOR_BYTES};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// How the guest maps the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestPages {
    /// In pages of 4 KiB.
    Small,
    /// In pages of 2 MiB.
    Large,
}

const PML4: u64 = TABLES;
const PDPT: u64 = TABLES + 0x1000;
const GDT: u64 = TABLES + 0x2000;
const IDT: u64 = TABLES + 0x2800;
const TSS: u64 = TABLES + 0x3000;
/// First of the page directories and page tables.
const FREE: u64 = TABLES + 0x6000;

const GIB: u64 = 1 << 30;
const LARGE: u64 = 2 << 20;
/// Present, writable, user, accessed, dirty (SDM vol. 3A, 4-level paging).
const ENTRY: u64 = 0x67;
const LARGE_PAGE: u64 = 0x80;

const CODE_SELECTOR: u16 = 0x33;
const DATA_SELECTOR: u16 = 0x2b;
const TSS_SELECTOR: u16 = 0x38;
/// Descriptors of user code and data, 64-bit.
const CODE: u64 = 0x00af_fb00_0000_ffff;
const DATA: u64 = 0x00cf_f300_0000_ffff;
/// Present, DPL 3, 64-bit trap gate.
const TRAP_GATE: u64 = 0xef;
const EXCEPTIONS: u64 = 32;
/// Where the I/O bitmap begins in the TSS, and the last byte of the TSS with all ports permitted.
const IO_BITMAP: u16 = 0x68;
const TSS_LIMIT: u32 = 0x2068;

/// Writes tables and descriptors that map `shared` bytes from [`SHARED`] on.
///
/// # Errors
/// More shared memory than the private memory has room for tables of.
pub fn write(memory: &GuestMemoryMmap, shared: u64, pages: GuestPages) -> Result<()> {
    let put = |at: u64, value: u64| {
        memory.write_obj(value, GuestAddress(at)).context("write the tables of the microguest")
    };
    let mut next = FREE;
    let mut table = || {
        next += 0x1000;
        ensure!(next <= IMAGE, "no room for page tables of {shared} bytes");
        Ok(next - 0x1000)
    };
    put(PML4, PDPT | ENTRY)?;
    let low = table()?;
    put(PDPT, low | ENTRY)?;
    for at in 0..PRIVATE_BYTES / LARGE {
        put(low + at * 8, (at * LARGE) | ENTRY | LARGE_PAGE)?;
    }
    for gib in 0..shared.div_ceil(GIB) {
        let directory = table()?;
        put(PDPT + (SHARED / GIB + gib) * 8, directory | ENTRY)?;
        for part in 0..(shared - gib * GIB).min(GIB).div_ceil(LARGE) {
            let address = SHARED + gib * GIB + part * LARGE;
            let entry = match pages {
                GuestPages::Large => address | LARGE_PAGE,
                GuestPages::Small => {
                    let leaf = table()?;
                    for page in 0..512 {
                        put(leaf + page * 8, (address + page * 4096) | ENTRY)?;
                    }
                    leaf
                }
            };
            put(directory + part * 8, entry | ENTRY)?;
        }
    }
    descriptors(&put)
}

fn descriptors(put: &dyn Fn(u64, u64) -> Result<()>) -> Result<()> {
    put(GDT + u64::from(DATA_SELECTOR & !7), DATA)?;
    put(GDT + u64::from(CODE_SELECTOR & !7), CODE)?;
    for number in 0..EXCEPTIONS {
        let entry = IMAGE + number * VECTOR_BYTES;
        let low = entry & 0xffff | u64::from(CODE_SELECTOR) << 16 | TRAP_GATE << 40;
        put(IDT + number * 16, low | (entry >> 16 & 0xffff) << 48)?;
        put(IDT + number * 16 + 8, entry >> 32)?;
    }
    // The bitmap itself is zero, all ports permitted; a byte of ones must end it.
    put(TSS + 0x60, u64::from(IO_BITMAP) << 48)?;
    put(TSS + u64::from(TSS_LIMIT), 0xff)
}

/// System registers of a vCPU in 64-bit user mode.
#[must_use]
pub fn user_mode(sregs: kvm_sregs) -> kvm_sregs {
    let code = kvm_segment {
        limit: 0xffff_ffff,
        selector: CODE_SELECTOR,
        type_: 11,
        present: 1,
        dpl: 3,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { selector: DATA_SELECTOR, type_: 3, l: 0, db: 1, ..code };
    let tr = kvm_segment {
        base: TSS,
        limit: TSS_LIMIT,
        selector: TSS_SELECTOR,
        type_: 11,
        present: 1,
        ..Default::default()
    };
    let table = |base, limit| kvm_dtable { base, limit, ..Default::default() };
    kvm_sregs {
        // Paging, write protection, numeric errors; SSE; long mode.
        cr0: 0x8001_0033,
        cr3: PML4,
        cr4: 0x620,
        efer: 0xd01,
        cs: code,
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ss: data,
        tr,
        gdt: table(GDT, 0x3f),
        idt: table(IDT, 0x1ff),
        ..sregs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(shared: u64, pages: GuestPages) -> GuestMemoryMmap {
        let size = usize::try_from(PRIVATE_BYTES).unwrap();
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), size)]).unwrap();
        write(&memory, shared, pages).unwrap();
        memory
    }

    /// Walks as a processor does; the physical address.
    fn walk(memory: &GuestMemoryMmap, address: u64) -> Option<u64> {
        let mut table = PML4;
        for shift in [39, 30, 21, 12] {
            let at = table + (address >> shift & 511) * 8;
            let entry: u64 = memory.read_obj(GuestAddress(at)).unwrap();
            if entry & ENTRY != ENTRY {
                return None;
            }
            let frame = entry & 0x000f_ffff_ffff_f000;
            if shift == 12 || entry & LARGE_PAGE != 0 {
                let mask = (1 << shift) - 1;
                return Some(frame & !mask | address & mask);
            }
            table = frame;
        }
        None
    }

    #[test]
    fn walk_of_every_mapped_address_gives_itself() {
        for pages in [GuestPages::Small, GuestPages::Large] {
            let memory = tables(6 << 20, pages);
            for address in [0x1008, IMAGE, PRIVATE_BYTES - 8, SHARED, SHARED + (6 << 20) - 8] {
                assert_eq!(walk(&memory, address), Some(address), "{address:#x} {pages:?}");
            }
            assert_eq!(walk(&memory, PRIVATE_BYTES), None);
            assert_eq!(walk(&memory, SHARED + (6 << 20)), None);
        }
    }

    #[test]
    fn more_memory_than_tables_fit_is_refused() {
        let size = usize::try_from(PRIVATE_BYTES).unwrap();
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), size)]).unwrap();
        assert!(write(&memory, 64 << 30, GuestPages::Small).is_err());
    }
}
