//! General and system registers of a vCPU (Intel SDM vol. 3, chapters 2 and 3; AMD APM vol. 2, chapters 3 and 4).

use kvm_bindings::{
    KVM_SREGS2_FLAGS_PDPTRS_VALID, kvm_dtable, kvm_regs, kvm_segment, kvm_sregs, kvm_sregs2,
};
use migrate::Invalid;
use serde::{Deserialize, Serialize};

const CR0_PROTECTED: u64 = 1;
const CR0_EXTENSION_TYPE: u64 = 1 << 4;
const CR0_NOT_WRITE_THROUGH: u64 = 1 << 29;
const CR0_CACHE_DISABLE: u64 = 1 << 30;
const CR0_PAGING: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LONG_ENABLE: u64 = 1 << 8;
const EFER_LONG_ACTIVE: u64 = 1 << 10;
/// Flags of the APIC base register: x2APIC mode, and enabled.
const APIC_X2APIC: u64 = 3 << 10;
/// Types of segments (SDM vol. 3, tables 3-1 and 3-2): accessed data and code, which KVM has after a reset, a local
/// descriptor table, and a task that is busy.
const DATA: u8 = 3;
const CODE: u8 = 11;
const LDT: u8 = 2;
const BUSY_TASK: u8 = 11;

/// General registers, instruction pointer and flags, by their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each field is the register of that name")]
pub struct General {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
}

/// Where a processor would begin after a reset, and flags without any (SDM vol. 3, table 10-1).
const RESET_RIP: u64 = 0xfff0;
const FLAGS_NONE: u64 = 2;

impl General {
    /// As an INIT leaves them, but for the processor's signature in RDX, which firmware reads and a start-up code does not.
    pub const AFTER_INIT: Self = Self {
        rax: 0,
        rbx: 0,
        rcx: 0,
        rdx: 0,
        rsi: 0,
        rdi: 0,
        rsp: 0,
        rbp: 0,
        r8: 0,
        r9: 0,
        r10: 0,
        r11: 0,
        r12: 0,
        r13: 0,
        r14: 0,
        r15: 0,
        rip: RESET_RIP,
        rflags: FLAGS_NONE,
    };
}

// Both directions name every field: one that is forgotten does not compile.
macro_rules! same_fields {
    ($own:ident, $kvm:ident { $($field:ident),* $(,)? }) => {
        impl From<$kvm> for $own {
            fn from($kvm { $($field),* }: $kvm) -> Self {
                Self { $($field),* }
            }
        }

        impl From<$own> for $kvm {
            fn from($own { $($field),* }: $own) -> Self {
                Self { $($field),* }
            }
        }
    };
}

same_fields!(
    General,
    kvm_regs {
        rax,
        rbx,
        rcx,
        rdx,
        rsi,
        rdi,
        rsp,
        rbp,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        rip,
        rflags,
    }
);

/// A segment register with its hidden part (SDM vol. 3, 3.4.3 and 3.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "the flags of a descriptor")]
pub struct Segment {
    /// First byte, as a linear address.
    pub base: u64,
    /// Last byte, as an offset.
    pub limit: u32,
    /// The visible part.
    pub selector: u16,
    /// Type field, 4 bits.
    pub kind: u8,
    /// Privilege level, 0 to 3.
    pub dpl: u8,
    /// Present.
    pub present: bool,
    /// Code or data, not a system segment.
    pub s: bool,
    /// 32-bit operations.
    pub db: bool,
    /// 64-bit code.
    pub l: bool,
    /// The limit was given in pages.
    pub g: bool,
    /// For software.
    pub avl: bool,
    /// The register holds no segment (SDM vol. 3, 25.4.1).
    pub unusable: bool,
}

impl Segment {
    fn check(&self) -> Result<(), Invalid> {
        Invalid::unless(self.kind < 16, "system", "the type of a segment has 4 bits")?;
        Invalid::unless(self.dpl < 4, "system", "the privilege level of a segment has 2 bits")
    }
}

impl From<kvm_segment> for Segment {
    fn from(from: kvm_segment) -> Self {
        let kvm_segment { base, limit, selector, type_, present, dpl, db, s, l, g, .. } = from;
        let is = |flag: u8| flag != 0;
        let (present, s, db, l, g) = (is(present), is(s), is(db), is(l), is(g));
        let (avl, unusable) = (is(from.avl), is(from.unusable));
        Self { base, limit, selector, kind: type_, dpl, present, s, db, l, g, avl, unusable }
    }
}

impl From<Segment> for kvm_segment {
    fn from(from: Segment) -> Self {
        let Segment { base, limit, selector, kind, dpl, present, s, db, l, g, avl, unusable } =
            from;
        let (present, s, db) = (u8::from(present), u8::from(s), u8::from(db));
        let (l, g, avl, unusable) = (u8::from(l), u8::from(g), u8::from(avl), u8::from(unusable));
        let type_ = kind;
        Self { base, limit, selector, type_, present, dpl, db, s, l, g, avl, unusable, padding: 0 }
    }
}

/// A descriptor table register (SDM vol. 3, 2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// First byte, as a linear address.
    pub base: u64,
    /// Last byte, as an offset.
    pub limit: u16,
}

impl From<kvm_dtable> for Table {
    fn from(kvm_dtable { base, limit, padding: _ }: kvm_dtable) -> Self {
        Self { base, limit }
    }
}

impl From<Table> for kvm_dtable {
    fn from(Table { base, limit }: Table) -> Self {
        Self { base, limit, ..Self::default() }
    }
}

/// System registers, by their names. An interrupt that KVM is about to inject is among the events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each field is the register of that name")]
pub struct System {
    pub cs: Segment,
    pub ds: Segment,
    pub es: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub ss: Segment,
    pub tr: Segment,
    pub ldt: Segment,
    pub gdt: Table,
    pub idt: Table,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    /// Task priority: 4 bits.
    pub cr8: u64,
    pub efer: u64,
    pub apic_base: u64,
    /// The entries of a 32-bit guest's uppermost table, which a vCPU keeps (SDM vol. 3, 4.4.1). None where they are not
    /// in use, or where KVM does not tell them and reads them from memory again.
    pub pdptrs: Option<[u64; 4]>,
}

impl System {
    /// Whether paging with PAE, but without long mode, is on.
    fn uses_pdptrs(&self) -> bool {
        self.cr0 & CR0_PAGING != 0 && self.cr4 & CR4_PAE != 0 && self.efer & EFER_LONG_ACTIVE == 0
    }

    /// Whether the local APIC is in x2APIC mode.
    #[must_use]
    pub fn is_x2apic(&self) -> bool {
        self.apic_base & APIC_X2APIC == APIC_X2APIC
    }

    /// As an INIT leaves them (SDM vol. 3, table 10-1): caches stay as they are set up, and so does the mode of the APIC.
    #[must_use]
    pub fn after_init(&self) -> Self {
        let of_kind = |kind| Segment { limit: 0xffff, kind, present: true, ..Segment::default() };
        let data = Segment { s: true, ..of_kind(DATA) };
        let code = Segment { base: 0xffff_0000, selector: 0xf000, s: true, ..of_kind(CODE) };
        let table = Table { base: 0, limit: 0xffff };
        Self {
            cs: code,
            ds: data,
            es: data,
            fs: data,
            gs: data,
            ss: data,
            tr: of_kind(BUSY_TASK),
            ldt: of_kind(LDT),
            gdt: table,
            idt: table,
            cr0: CR0_EXTENSION_TYPE | self.cr0 & (CR0_CACHE_DISABLE | CR0_NOT_WRITE_THROUGH),
            apic_base: self.apic_base,
            ..Self::default()
        }
    }

    /// What no vCPU can have (SDM vol. 3, 2.5 and 4.1.2).
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let segments = [self.cs, self.ds, self.es, self.fs, self.gs, self.ss, self.tr, self.ldt];
        segments.iter().try_for_each(Segment::check)?;
        let unless = |holds, why| Invalid::unless(holds, "system", why);
        let has = |register: u64, flag: u64| register & flag != 0;
        let paging = has(self.cr0, CR0_PAGING);
        unless(self.cr8 < 16, "CR8 has 4 bits")?;
        unless(self.cr0 >> 32 == 0, "CR0 has 32 bits")?;
        unless(!paging || has(self.cr0, CR0_PROTECTED), "paging without protected mode")?;
        let write_back = !has(self.cr0, CR0_NOT_WRITE_THROUGH) || has(self.cr0, CR0_CACHE_DISABLE);
        unless(write_back, "CR0.NW without CR0.CD")?;
        let (enabled, active) =
            (has(self.efer, EFER_LONG_ENABLE), has(self.efer, EFER_LONG_ACTIVE));
        unless(active == (enabled && paging), "EFER.LMA is not EFER.LME with paging")?;
        unless(!active || has(self.cr4, CR4_PAE), "long mode without PAE")?;
        unless(active || !self.cs.l, "64-bit code outside long mode")?;
        let fits = self.pdptrs.is_none() || self.uses_pdptrs();
        unless(fits, "page directory pointers that are not in use")
    }
}

impl From<kvm_sregs2> for System {
    fn from(from: kvm_sregs2) -> Self {
        let valid = from.flags & u64::from(KVM_SREGS2_FLAGS_PDPTRS_VALID) != 0;
        Self {
            cs: from.cs.into(),
            ds: from.ds.into(),
            es: from.es.into(),
            fs: from.fs.into(),
            gs: from.gs.into(),
            ss: from.ss.into(),
            tr: from.tr.into(),
            ldt: from.ldt.into(),
            gdt: from.gdt.into(),
            idt: from.idt.into(),
            cr0: from.cr0,
            cr2: from.cr2,
            cr3: from.cr3,
            cr4: from.cr4,
            cr8: from.cr8,
            efer: from.efer,
            apic_base: from.apic_base,
            pdptrs: valid.then_some(from.pdptrs),
        }
    }
}

impl From<System> for kvm_sregs2 {
    fn from(from: System) -> Self {
        let flags = from.pdptrs.map_or(0, |_| u64::from(KVM_SREGS2_FLAGS_PDPTRS_VALID));
        Self {
            cs: from.cs.into(),
            ds: from.ds.into(),
            es: from.es.into(),
            fs: from.fs.into(),
            gs: from.gs.into(),
            ss: from.ss.into(),
            tr: from.tr.into(),
            ldt: from.ldt.into(),
            gdt: from.gdt.into(),
            idt: from.idt.into(),
            cr0: from.cr0,
            cr2: from.cr2,
            cr3: from.cr3,
            cr4: from.cr4,
            cr8: from.cr8,
            efer: from.efer,
            apic_base: from.apic_base,
            flags,
            pdptrs: from.pdptrs.unwrap_or_default(),
        }
    }
}

/// For a KVM without `KVM_GET_SREGS2` (before Linux 5.14).
impl From<kvm_sregs> for System {
    fn from(from: kvm_sregs) -> Self {
        let kvm_sregs {
            cs, ds, es, fs, gs, ss, tr, ldt, gdt, idt, cr0, cr2, cr3, cr4, cr8, ..
        } = from;
        let kvm_sregs { efer, apic_base, .. } = from;
        let (flags, pdptrs) = (0, [0; 4]);
        kvm_sregs2 {
            cs,
            ds,
            es,
            fs,
            gs,
            ss,
            tr,
            ldt,
            gdt,
            idt,
            cr0,
            cr2,
            cr3,
            cr4,
            cr8,
            efer,
            apic_base,
            flags,
            pdptrs,
        }
        .into()
    }
}

impl From<System> for kvm_sregs {
    fn from(from: System) -> Self {
        let kvm_sregs2 {
            cs,
            ds,
            es,
            fs,
            gs,
            ss,
            tr,
            ldt,
            gdt,
            idt,
            cr0,
            cr2,
            cr3,
            cr4,
            cr8,
            efer,
            apic_base,
            ..
        } = from.into();
        Self {
            cs,
            ds,
            es,
            fs,
            gs,
            ss,
            tr,
            ldt,
            gdt,
            idt,
            cr0,
            cr2,
            cr3,
            cr4,
            cr8,
            efer,
            apic_base,
            interrupt_bitmap: [0; 4],
        }
    }
}
