//! State of the boot vCPU at the 64-bit entry point, and the tables behind it.
//!
//! The boot protocol asks for long mode, the memory of kernel, zero page and command line mapped
//! one to one, `__BOOT_CS` (0x10) and `__BOOT_DS` (0x18) flat, and interrupts off.

use super::image::KernelKind;
use super::{Payload, ZERO_PAGE};
use kvm_bindings::{kvm_dtable, kvm_regs, kvm_segment, kvm_sregs};
use std::ops::Range;

const GDT: u64 = 0x500;
const STACK_TOP: u64 = 0x8ff0;
const PML4: u64 = 0x9000;
const PDPT: u64 = 0xa000;
const DIRECTORIES: u64 = 0xb000;
/// One directory for each of the first 4 GiB.
const DIRECTORY_COUNT: u64 = 4;
const PAGE: u64 = 4096;

const CODE_SELECTOR: u16 = 0x10;
const DATA_SELECTOR: u16 = 0x18;
/// 64-bit code and flat data, each present, ring 0 (Intel SDM vol. 3, 3.4.5).
const DESCRIPTORS: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

/// Page table entry: present and writable.
const TABLE: u64 = 0x3;
/// Present, writable, 2 MiB page.
const LARGE_PAGE: u64 = 0x83;

/// PE, MP, ET, NE, WP, AM, PG.
const CR0: u64 = 0x8005_0033;
/// PAE.
const CR4: u64 = 0x20;
/// LME, LMA.
const EFER: u64 = 0x500;
/// Only the bit that is always set: interrupts are off.
const RFLAGS: u64 = 0x2;

/// Registers of the boot vCPU at its first instruction; all others are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootState {
    /// Entry point.
    pub rip: u64,
    /// Guest-physical address of the zero page.
    pub rsi: u64,
    /// A small stack.
    pub rsp: u64,
    /// Control register 0.
    pub cr0: u64,
    /// Guest-physical address of the identity page tables.
    pub cr3: u64,
    /// Control register 4.
    pub cr4: u64,
    /// Extended feature register.
    pub efer: u64,
    /// Guest-physical address of the GDT.
    pub gdt_base: u64,
    /// Its last byte.
    pub gdt_limit: u16,
    /// Format of the kernel.
    pub kernel: KernelKind,
    /// The PVH entry point of an ELF kernel that has one; not used.
    pub pvh_entry: Option<u64>,
    /// Guest-physical ranges of the payload.
    pub written: Vec<Range<u64>>,
}

impl BootState {
    pub(super) fn new(entry: u64, kernel: KernelKind, pvh_entry: Option<u64>) -> Self {
        Self {
            rip: entry,
            rsi: ZERO_PAGE,
            rsp: STACK_TOP,
            cr0: CR0,
            cr3: PML4,
            cr4: CR4,
            efer: EFER,
            gdt_base: GDT,
            gdt_limit: 31,
            kernel,
            pvh_entry,
            written: Vec::new(),
        }
    }

    /// Puts the state into KVM's structures. The APIC base, and what else the caller has read from
    /// KVM, stays.
    pub fn apply(&self, sregs: &mut kvm_sregs, regs: &mut kvm_regs) {
        let code = segment(CODE_SELECTOR, 0xb, true);
        let data = segment(DATA_SELECTOR, 0x3, false);
        sregs.cs = code;
        for register in [&mut sregs.ds, &mut sregs.es, &mut sregs.fs, &mut sregs.gs, &mut sregs.ss]
        {
            *register = data;
        }
        // A busy 64-bit task state: VMX refuses to enter long mode with any other kind.
        sregs.tr = kvm_segment { limit: 0x67, type_: 0xb, present: 1, ..kvm_segment::default() };
        sregs.ldt = kvm_segment { unusable: 1, type_: 2, ..kvm_segment::default() };
        sregs.gdt = kvm_dtable { base: self.gdt_base, limit: self.gdt_limit, padding: [0; 3] };
        sregs.idt = kvm_dtable::default();
        (sregs.cr0, sregs.cr3, sregs.cr4) = (self.cr0, self.cr3, self.cr4);
        (sregs.cr2, sregs.efer) = (0, self.efer);
        *regs = kvm_regs {
            rip: self.rip,
            rsi: self.rsi,
            rsp: self.rsp,
            rflags: RFLAGS,
            ..kvm_regs::default()
        };
    }
}

/// A flat segment, accessed already (so that the processor need not write the descriptor).
fn segment(selector: u16, type_: u8, long: bool) -> kvm_segment {
    kvm_segment {
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        s: 1,
        l: u8::from(long),
        db: u8::from(!long),
        g: 1,
        ..kvm_segment::default()
    }
}

/// GDT and identity page tables.
pub(super) fn tables() -> Vec<Payload> {
    // Whole pages, so that nothing depends on what was there before.
    let page = |mut entries: Vec<u64>| {
        entries.resize(512, 0);
        entries
    };
    let table = |gpa, entries: Vec<u64>, what| Payload {
        gpa,
        bytes: entries.into_iter().flat_map(u64::to_le_bytes).collect(),
        what,
    };
    let directories = (0..DIRECTORY_COUNT).map(|number| (DIRECTORIES + number * PAGE) | TABLE);
    let large_pages = (0..DIRECTORY_COUNT * 512).map(|number| number << 21 | LARGE_PAGE);
    vec![
        table(GDT, DESCRIPTORS.to_vec(), "GDT"),
        table(PML4, page(vec![PDPT | TABLE]), "page tables"),
        table(PDPT, page(directories.collect()), "page tables"),
        table(DIRECTORIES, large_pages.collect(), "page tables"),
    ]
}
