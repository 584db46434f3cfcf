//! Kernel images: bzImage and ELF vmlinux, taken apart without touching guest memory.
//!
//! The loaders of linux-loader write into guest memory while they still read the file. Here the
//! file is checked to its end first, and the result is a list; only the layout of the boot
//! parameters comes from that crate.

use super::{MAPPED_END, Payload};
use linux_loader::loader::bootparam::setup_header;
use std::ops::Range;
use vm_memory::ByteValued;

/// Offset of the setup header in a bzImage (Linux boot protocol).
const SETUP_HEADER: usize = 0x1f1;
/// "HdrS".
const HEADER_MAGIC: u32 = 0x5372_6448;
const BOOT_FLAG: u16 = 0xaa55;
/// First protocol version with a 64-bit entry point.
const VERSION_64: u16 = 0x020c;
const LOADED_HIGH: u8 = 1;
/// `xloadflags`: the kernel has an entry point at 0x200.
const KERNEL_64: u16 = 1;
const ENTRY_64: u64 = 0x200;
/// Where an ELF kernel accepts an initrd, and its longest command line: the values that Linux puts
/// in the header of a bzImage.
const ELF_INITRD_MAX: u32 = 0x7fff_ffff;
const ELF_CMDLINE: u32 = 2047;

/// Format of a kernel image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelKind {
    /// Compressed image with a setup header.
    BzImage,
    /// ELF vmlinux.
    Elf,
}

/// A kernel image that has been checked.
#[derive(Debug)]
pub(super) struct Kernel {
    kind: KernelKind,
    header: setup_header,
    entry: u64,
    pvh_entry: Option<u64>,
    extent: Range<u64>,
    parts: Vec<Payload>,
}

impl Kernel {
    /// Takes an image apart.
    ///
    /// # Errors
    ///
    /// What is wrong with it, to complete "is not a kernel: ...".
    pub(super) fn parse(image: &[u8]) -> Result<Self, &'static str> {
        if image.starts_with(b"\x7fELF") {
            return parse_elf(image);
        }
        let header = image
            .get(SETUP_HEADER..)
            .and_then(|rest| rest.first_chunk::<{ size_of::<setup_header>() }>());
        match header {
            Some(bytes) => parse_bzimage(image, bytes),
            None => Err("it is neither a bzImage nor an ELF file"),
        }
    }

    pub(super) fn kind(&self) -> KernelKind {
        self.kind
    }

    pub(super) fn header(&self) -> setup_header {
        self.header
    }

    pub(super) fn entry(&self) -> u64 {
        self.entry
    }

    /// The 32-bit entry point of an ELF kernel that can be started as PVH.
    pub(super) fn pvh_entry(&self) -> Option<u64> {
        self.pvh_entry
    }

    /// All memory that the kernel needs before it has read the memory map.
    pub(super) fn extent(&self) -> Range<u64> {
        self.extent.clone()
    }

    /// End of the memory where the kernel accepts an initrd.
    pub(super) fn initrd_end(&self) -> u64 {
        u64::from(self.header.initrd_addr_max) + 1
    }

    pub(super) fn cmdline_limit(&self) -> u64 {
        u64::from(self.header.cmdline_size)
    }

    pub(super) fn into_parts(self) -> Vec<Payload> {
        self.parts
    }
}

fn parse_bzimage(
    image: &[u8],
    header_bytes: &[u8; size_of::<setup_header>()],
) -> Result<Kernel, &'static str> {
    let mut header = setup_header::default();
    header.as_mut_slice().copy_from_slice(header_bytes);
    if header.boot_flag != BOOT_FLAG || header.header != HEADER_MAGIC {
        return Err("it is neither a bzImage nor an ELF file");
    }
    if header.version < VERSION_64
        || header.loadflags & LOADED_HIGH == 0
        || header.xloadflags & KERNEL_64 == 0
    {
        return Err("this bzImage has no 64-bit entry point");
    }
    // Fields behind the end of this kernel's header are code; the jump says where that is.
    let [_, jump] = header.jump.to_le_bytes();
    let end = 0x202 - SETUP_HEADER + usize::from(jump);
    header.as_mut_slice().get_mut(end..).unwrap_or_default().fill(0);
    let sectors = if header.setup_sects == 0 { 4 } else { usize::from(header.setup_sects) };
    let code = image.get((sectors + 1) * 512..).unwrap_or_default();
    let paragraphs = u64::from(header.syssize);
    let len = u64::try_from(code.len()).unwrap_or(u64::MAX);
    if len <= ENTRY_64 || paragraphs * 16 > len.next_multiple_of(16) {
        return Err("this bzImage is truncated");
    }
    let load = header.pref_address;
    let init = u64::from(header.init_size).max(len);
    let extent = load..load.checked_add(init).ok_or("its load address is beyond 64 bits")?;
    Ok(Kernel {
        kind: KernelKind::BzImage,
        header,
        entry: load + ENTRY_64,
        pvh_entry: None,
        extent,
        parts: vec![Payload { gpa: load, bytes: code.to_vec(), what: "kernel" }],
    })
}

/// Reads little-endian fields at offsets that come from the file.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        self.0.get(usize::try_from(offset).ok()?..)?.first_chunk::<N>().copied()
    }
    fn u16(&self, offset: u64) -> Option<u16> {
        self.bytes(offset).map(u16::from_le_bytes)
    }
    fn u32(&self, offset: u64) -> Option<u32> {
        self.bytes(offset).map(u32::from_le_bytes)
    }
    fn u64(&self, offset: u64) -> Option<u64> {
        self.bytes(offset).map(u64::from_le_bytes)
    }
    fn slice(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let end = usize::try_from(offset.checked_add(len)?).ok()?;
        self.0.get(usize::try_from(offset).ok()?..end)
    }
}

/// One program header (ELF-64 object file format, version 1.5, program header).
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    file_len: u64,
    memory_len: u64,
}

impl Segment {
    const LOAD: u32 = 1;
    const NOTE: u32 = 4;

    fn read(file: &Fields<'_>, at: u64) -> Option<Self> {
        let field = |offset: u64| file.u64(at.checked_add(offset)?);
        Some(Self {
            kind: file.u32(at)?,
            offset: field(8)?,
            address: field(24)?,
            file_len: field(32)?,
            memory_len: field(40)?,
        })
    }
}

fn parse_elf(image: &[u8]) -> Result<Kernel, &'static str> {
    const TRUNCATED: &str = "this ELF file is truncated";
    const HEADER_LEN: u16 = 56;
    const SEGMENTS: u16 = 256;
    let file = Fields(image);
    // 64 bits, little endian, for x86-64.
    if file.bytes(4) != Some([2, 1]) || file.u16(18) != Some(62) {
        return Err("this ELF file is not for 64-bit x86");
    }
    let entry = file.u64(24).ok_or(TRUNCATED)?;
    let (table, size) = (file.u64(32).ok_or(TRUNCATED)?, file.u16(54).ok_or(TRUNCATED)?);
    let count = file.u16(56).ok_or(TRUNCATED)?;
    if size != HEADER_LEN || count > SEGMENTS {
        return Err("this ELF file has program headers of a wrong size or number");
    }
    let mut parts = Vec::new();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut pvh_entry = None;
    for number in 0..u64::from(count) {
        let at = table.checked_add(number * u64::from(size)).ok_or(TRUNCATED)?;
        let segment = Segment::read(&file, at).ok_or(TRUNCATED)?;
        match segment.kind {
            Segment::LOAD if segment.memory_len > 0 => {
                let bytes = file.slice(segment.offset, segment.file_len).ok_or(TRUNCATED)?;
                let len = segment.memory_len.max(segment.file_len);
                let end = segment.address.checked_add(len);
                let end = end.filter(|end| *end <= MAPPED_END);
                let range = segment.address..end.ok_or("it loads above 4 GiB")?;
                if ranges.iter().any(|other| other.start < range.end && range.start < other.end) {
                    return Err("segments of this ELF file overlap");
                }
                ranges.push(range);
                if !bytes.is_empty() {
                    let (gpa, bytes) = (segment.address, bytes.to_vec());
                    parts.push(Payload { gpa, bytes, what: "kernel" });
                }
            }
            Segment::NOTE => {
                let notes = file.slice(segment.offset, segment.file_len).ok_or(TRUNCATED)?;
                pvh_entry = pvh_entry.or_else(|| find_pvh_note(&Fields(notes)));
            }
            _ => {}
        }
    }
    if !ranges.iter().any(|range| range.contains(&entry)) {
        return Err("the entry point of this ELF file is in none of its segments");
    }
    let start = ranges.iter().map(|range| range.start).min().unwrap_or(0);
    let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    let header = elf_header();
    let kind = KernelKind::Elf;
    Ok(Kernel { kind, header, entry, pvh_entry, extent: start..end, parts })
}

/// What a bzImage of the same kernel would say.
fn elf_header() -> setup_header {
    setup_header {
        boot_flag: BOOT_FLAG,
        header: HEADER_MAGIC,
        version: 0x020f,
        loadflags: LOADED_HIGH,
        initrd_addr_max: ELF_INITRD_MAX,
        kernel_alignment: 0x20_0000,
        cmdline_size: ELF_CMDLINE,
        ..setup_header::default()
    }
}

/// Finds the note `XEN_ELFNOTE_PHYS32_ENTRY` (18) of owner "Xen".
fn find_pvh_note(notes: &Fields<'_>) -> Option<u64> {
    const PHYS32_ENTRY: u32 = 18;
    let mut at = 0_u64;
    loop {
        let name_len = u64::from(notes.u32(at)?);
        let value_len = u64::from(notes.u32(at + 4)?);
        let kind = notes.u32(at + 8)?;
        let name = at + 12;
        let value = name + name_len.next_multiple_of(4);
        if kind == PHYS32_ENTRY && notes.slice(name, name_len) == Some(b"Xen\0") {
            return match value_len {
                4 => notes.u32(value).map(u64::from),
                8 => notes.u64(value),
                _ => None,
            };
        }
        at = value + value_len.next_multiple_of(4);
    }
}
