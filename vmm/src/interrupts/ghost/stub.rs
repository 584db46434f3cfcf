//! The tiny program that a ghost runs, and the memory it runs in.
//!
//! A ghost's only work is to tell which vector reached its APIC. It opens its interrupts, each
//! pending vector makes one port write, and when none is left it writes the port "drained":
//!
//! ```text
//!   drain:      mov rsp, r15 ; sti ; nop ; nop ; out DRAINED, al ; jmp drain
//!   vector v:   mov al, v ; out VECTOR, al ; <EOI> ; jmp drain
//!   NMI:        out NMI, al ; iretq          (no register changes: it may hit a vector's handler)
//! ```
//! Handlers leave by a jump, since `drain` resets the stack. The memory is one region high above
//! guest memory: page tables, descriptor tables and code, then a stack for each ghost. The guest
//! can reach it by address but is not told of it, and a guest that writes there can only confuse
//! its own interrupts: all a ghost can say is which vector goes to the vCPU it stands for.

#![expect(unsafe_code, reason = "the stub's memory is mapped for the guest")]
// UNSAFETY: an anonymous mapping is written once, before any vCPU can see it.

use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};
use std::io;
use std::ptr::{null_mut, slice_from_raw_parts_mut};

/// Port of "this vector came".
pub(crate) const PORT_VECTOR: u16 = 0x77;
/// Port of "an NMI came".
pub(crate) const PORT_NMI: u16 = 0x78;
/// Port of "nothing is left".
pub(crate) const PORT_DRAINED: u16 = 0x7a;

/// Offsets in the region. Each is a page.
const PML4: u64 = 0;
const PDPT: u64 = 0x1000;
const DIRECTORY: u64 = 0x2000;
const GDT: u64 = 0x3000;
const IDT: u64 = 0x4000;
const VECTORS: u64 = 0x5000;
const COMMON: u64 = 0x6000;
const STACKS: u64 = 0x7000;

/// Bytes of stack of each ghost: three nested frames of 40 bytes at most.
const STACK: u64 = 256;
/// Bytes of code per vector.
const ENTRY: u64 = 16;
/// The region is mapped to the guest by one large page.
const LARGEST: u64 = 2 << 20;
/// Selectors of the stub's code and data segments.
pub(crate) const CODE_SELECTOR: u16 = 8;
const DATA_SELECTOR: u16 = 16;
/// The NMI's vector.
const NMI: u64 = 2;

/// The stub's region, mapped in this process.
#[derive(Debug)]
pub(crate) struct StubRegion {
    gpa: u64,
    host: usize,
    bytes: u64,
}

impl StubRegion {
    /// Maps and fills a region for `ghosts` ghosts on a CPU with `address_bits` of guest-physical
    /// address.
    ///
    /// # Errors
    /// They are too many, or the host has no memory.
    pub(crate) fn new(ghosts: u32, address_bits: u32) -> Result<Self, io::Error> {
        let bytes = STACKS + u64::from(ghosts) * STACK;
        let bytes = bytes.next_multiple_of(0x1_0000);
        if bytes > LARGEST {
            return Err(io::Error::other(format!("{ghosts} ghosts are too many")));
        }
        // One GiB below the end of what every CPU of the VM can address.
        let gpa = (1_u64 << address_bits.clamp(33, 40)) - (4 << 30);
        let length = usize::try_from(bytes).expect("at most 2 MiB");
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let address = unsafe { libc::mmap(null_mut(), length, access, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is `length` bytes, zeroed, and nobody else knows of it yet.
        let memory = unsafe { &mut *slice_from_raw_parts_mut(address.cast::<u8>(), length) };
        fill(memory, gpa);
        Ok(Self { gpa, host: address.expose_provenance(), bytes })
    }

    /// Where the guest is to have it, where it is in this process, and its bytes.
    pub(crate) fn slot(&self) -> (u64, usize, u64) {
        (self.gpa, self.host, self.bytes)
    }

    /// Registers that start the stub of ghost number `n`.
    pub(crate) fn registers(&self, n: u32, sregs: &mut kvm_sregs) -> kvm_regs {
        let code = kvm_segment {
            limit: u32::MAX,
            selector: CODE_SELECTOR,
            present: 1,
            type_: 11,
            s: 1,
            l: 1,
            g: 1,
            ..Default::default()
        };
        let data = kvm_segment { type_: 3, selector: DATA_SELECTOR, l: 0, db: 1, ..code };
        let system = |type_| kvm_segment { limit: 0xffff, present: 1, type_, ..Default::default() };
        sregs.cs = code;
        (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
        (sregs.tr, sregs.ldt) = (system(11), system(2));
        (sregs.gdt.base, sregs.gdt.limit) = (self.gpa + GDT, 23);
        (sregs.idt.base, sregs.idt.limit) = (self.gpa + IDT, 0xfff);
        sregs.cr0 = 0x8005_0033;
        sregs.cr3 = self.gpa + PML4;
        sregs.cr4 = 0x20;
        sregs.efer = 0x500;
        let stack = self.gpa + STACKS + u64::from(n + 1) * STACK;
        let rip = self.gpa + COMMON + DRAIN_AT;
        // Bit 1 is always set; bit 9 opens interrupts.
        kvm_regs { rip, rflags: 0x202, rsp: stack, r15: stack, ..Default::default() }
    }
}

impl Drop for StubRegion {
    fn drop(&mut self) {
        let length = usize::try_from(self.bytes).expect("at most 2 MiB");
        let address = std::ptr::with_exposed_provenance_mut(self.host);
        // SAFETY: our own mapping; the owner drops it after the vCPUs that use it.
        unsafe { libc::munmap(address, length) };
    }
}

/// Offsets of the common code.
const END_AT: u64 = 0;
const DRAIN_AT: u64 = 0x20;
const NMI_AT: u64 = 0x40;

/// `xor eax,eax ; xor edx,edx ; mov ecx,0x80b ; wrmsr ; jmp drain`: end of interrupt.
const END: [u8; 13] = [0x31, 0xc0, 0x31, 0xd2, 0xb9, 0x0b, 0x08, 0, 0, 0x0f, 0x30, 0xeb, 0x20 - 13];
/// `mov rsp,r15 ; sti ; nop ; nop ; out DRAINED,al ; jmp drain`.
const DRAIN: [u8; 10] = [0x4c, 0x89, 0xfc, 0xfb, 0x90, 0x90, 0xe6, 0x7a, 0xeb, 0xf6];
/// `out NMI,al ; iretq`.
const NMI_CODE: [u8; 4] = [0xe6, 0x78, 0x48, 0xcf];

/// Writes the stub for a region at `gpa`. Pure but for `memory`.
fn fill(memory: &mut [u8], gpa: u64) {
    let mut put = |offset: u64, bytes: &[u8]| {
        let start = usize::try_from(offset).expect("inside the region");
        memory[start..start + bytes.len()].copy_from_slice(bytes);
    };
    // Present, writable, accessed, dirty: walks then need not write. 0x80 is a large page.
    let entry = |shift: u32| (gpa >> shift & 511) * 8;
    put(PML4 + entry(39), &((gpa + PDPT) | 0x23).to_le_bytes());
    put(PDPT + entry(30), &((gpa + DIRECTORY) | 0x23).to_le_bytes());
    put(DIRECTORY + entry(21), &(gpa | 0xe3).to_le_bytes());
    put(GDT + u64::from(CODE_SELECTOR), &0x00af_9b00_0000_ffff_u64.to_le_bytes());
    put(GDT + u64::from(DATA_SELECTOR), &0x00cf_9300_0000_ffff_u64.to_le_bytes());
    put(COMMON + END_AT, &END);
    put(COMMON + DRAIN_AT, &DRAIN);
    put(COMMON + NMI_AT, &NMI_CODE);
    for vector in 0..=255_u8 {
        let at = VECTORS + u64::from(vector) * ENTRY;
        let port = PORT_VECTOR.to_le_bytes()[0];
        // mov al,vector ; out VECTOR,al ; jmp near to the end of interrupt
        put(at, &[0xb0, vector, 0xe6, port, 0xe9]);
        let distance = u32::try_from(COMMON + END_AT - (at + 9)).expect("COMMON is above");
        put(at + 5, &distance.to_le_bytes());
        let handler = if u64::from(vector) == NMI { COMMON + NMI_AT } else { at };
        put(IDT + u64::from(vector) * 16, &gate(gpa + handler));
    }
}

/// A 64-bit interrupt gate (SDM vol. 3, 7.14.1).
fn gate(handler: u64) -> [u8; 16] {
    let low = handler & 0xffff
        | u64::from(CODE_SELECTOR) << 16
        | 0x8e00 << 32
        | (handler >> 16 & 0xffff) << 48;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&low.to_le_bytes());
    bytes[8..].copy_from_slice(&(handler >> 32).to_le_bytes());
    bytes
}
