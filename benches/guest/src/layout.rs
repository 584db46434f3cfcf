//! Addresses of the microguest. Virtual addresses equal guest-physical ones.
//!
//! ```text
//!   0x0000_1000  jobs, a page per processor           --+
//!   0x0010_0000  page tables, GDT, IDT, TSS             | private to a slice
//!   0x0040_0000  the image                              |
//!   0x0080_0000  stacks, 64 KiB per processor           |
//!   0x00c0_0000  samples, 256 KiB per processor       --+
//!   0x4000_0000  the memory that the slices share
//! ```

/// Bytes of the memory that is private to a slice.
pub const PRIVATE_BYTES: u64 = 16 << 20;
/// First address of the memory that the slices share.
pub const SHARED: u64 = 1 << 30;
/// Processors of one slice at most.
pub const CPUS_MAX: u64 = 16;
/// Samples per processor.
pub const SAMPLES: u64 = 1 << 16;
/// The page tables, GDT, IDT and TSS begin here.
pub const TABLES: u64 = 0x10_0000;
/// The image begins here.
pub const IMAGE: u64 = 0x40_0000;
/// A processor is ready for a job when it writes here.
pub const PORT_READY: u16 = 0x80;
/// A processor met an exception when it writes its number here.
pub const PORT_EXCEPTION: u16 = 0x81;
/// Bytes of code from one exception's entry to the next.
pub const VECTOR_BYTES: u64 = 16;

/// Address of a processor's job.
#[must_use]
pub const fn job(cpu: u64) -> u64 {
    0x1000 + cpu * 0x1000
}

/// End of a processor's stack.
#[must_use]
pub const fn stack_end(cpu: u64) -> u64 {
    0x80_0000 + (cpu + 1) * 0x1_0000
}

/// Address of a processor's samples.
#[must_use]
pub const fn samples(cpu: u64) -> u64 {
    0xc0_0000 + cpu * SAMPLES * 4
}
