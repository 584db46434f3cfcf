//! Names of the guest's kernel by address.
//!
//! What is known of Linux here is its memory map without KASLR (Documentation/arch/x86/x86_64/mm.rst):
//!
//! | addresses | what |
//! |---|---|
//! | `0xffff888000000000` + 64 TiB | all physical memory |
//! | `0xffffea0000000000` + 1 TiB | a `struct page` of 64 bytes for each page |
//! | `0xffffffff80000000` + 1 GiB | the kernel: physical address plus that |
//! | `0xffffffffa0000000` on | modules |
//!
//! Data of a processor has, up to Linux 6.14, names with addresses from zero on, to which the base of
//! GS is added.

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSymbol, SymbolKind};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

const DIRECT: Range<u64> = 0xffff_8880_0000_0000..0xffff_c880_0000_0000;
const PAGES: Range<u64> = 0xffff_ea00_0000_0000..0xffff_eb00_0000_0000;
const PAGE_STRUCT: u64 = 64;
const KERNEL: u64 = 0xffff_ffff_8000_0000;
const MODULES: u64 = 0xffff_ffff_a000_0000;
/// Names of a page that are shown.
const SHOWN: usize = 3;
/// A file of names is not larger; a vmlinux with debug information may be.
const FILE_MAX: u64 = 2 << 30;

/// Where each processor keeps its own data: base of GS, and the vCPU seen with it.
pub(super) type Processors = BTreeMap<u64, u32>;

/// Names, ascending by address.
#[derive(Debug)]
pub(super) struct Symbols {
    names: Vec<(u64, String)>,
    image: Range<u64>,
    text: Range<u64>,
    /// Bytes of a processor's data.
    own: u64,
}

impl Symbols {
    /// Reads a vmlinux, or text as of System.map.
    pub(super) fn load(path: &Path) -> Result<Self> {
        let what = || format!("read symbols from {}", path.display());
        let size = fs::metadata(path).with_context(what)?.len();
        ensure!(size <= FILE_MAX, "{} has {size} bytes, too many for symbols", path.display());
        let bytes = fs::read(path).with_context(what)?;
        Self::parse(&bytes).with_context(what)
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let mut names = if bytes.starts_with(b"\x7fELF") { elf(bytes)? } else { map(bytes)? };
        names.sort();
        let at = |name: &str| names.iter().find(|(_, own)| own == name).map(|(at, _)| *at);
        let text = at("_stext").or_else(|| at("_text")).context("no symbol _stext or _text")?;
        let end = at("_end").context("no symbol _end")?;
        let text_end = at("_etext").unwrap_or(end);
        let own = at("__per_cpu_end").filter(|_| at("__per_cpu_start") == Some(0)).unwrap_or(0);
        ensure!(text >= KERNEL && end > text, "_text and _end are not those of a kernel");
        let image = at("_text").unwrap_or(text)..end;
        Ok(Self { names, image, text: text..text_end, own })
    }

    /// The name at or before an address, and how far before.
    fn before(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.names.partition_point(|(at, _)| *at <= address);
        let (at, name) = self.names.get(after.checked_sub(1)?)?;
        Some((name, address - at))
    }

    fn with_offset(&self, address: u64) -> Option<String> {
        self.before(address).map(|(name, offset)| match offset {
            0 => name.to_owned(),
            offset => format!("{name}+{offset:#x}"),
        })
    }

    /// Whether the kernel's code is there; modules aside.
    pub(super) fn is_code(&self, address: u64) -> bool {
        self.text.contains(&address) || address >= MODULES
    }

    /// The function at an address.
    pub(super) fn code(&self, address: u64) -> Option<String> {
        if !self.image.contains(&address) {
            return (address >= MODULES).then(|| format!("module at {address:#x}"));
        }
        self.before(address).map(|(name, _)| name.to_owned())
    }

    /// What lies at an address of the kernel.
    pub(super) fn data(&self, address: u64, processors: &Processors) -> Option<String> {
        if self.image.contains(&address) {
            self.with_offset(address)
        } else if DIRECT.contains(&address) {
            self.physical(address - DIRECT.start, processors)
        } else if PAGES.contains(&address) {
            let gfn = (address - PAGES.start) / PAGE_STRUCT;
            Some(format!("struct page of {gfn:#x}"))
        } else {
            None
        }
    }

    fn physical(&self, address: u64, processors: &Processors) -> Option<String> {
        let image = KERNEL.wrapping_add(address);
        if self.image.contains(&image) {
            return self.with_offset(image);
        }
        let (vcpu, offset) = self.of_processor(address, processors)?;
        Some(format!("{} of vCPU {vcpu}", self.with_offset(offset)?))
    }

    /// The vCPU whose own data has a physical address, and the address of the name there.
    fn of_processor(&self, address: u64, processors: &Processors) -> Option<(u32, u64)> {
        let (base, vcpu) = processors.range(..=DIRECT.start + address).next_back()?;
        let offset = DIRECT.start + address - base;
        (offset < self.own).then_some((*vcpu, offset))
    }

    /// What lies in a page of the guest's memory: the first few names.
    pub(super) fn page(&self, gfn: u64, processors: &Processors) -> Option<String> {
        let address = gfn.checked_mul(4096)?;
        let image = KERNEL.wrapping_add(address);
        if self.image.contains(&image) {
            return Some(self.listed(image));
        }
        let (vcpu, offset) = self.of_processor(address, processors)?;
        Some(format!("{} of vCPU {vcpu}", self.listed(offset)))
    }

    fn listed(&self, start: u64) -> String {
        let from = self.names.partition_point(|(at, _)| *at < start);
        let names = self.names[from..].iter().take_while(|(at, _)| *at - start < 4096);
        let names: Vec<_> = names.map(|(_, name)| name.as_str()).collect();
        match names.len() {
            0 => self.with_offset(start).unwrap_or_default(),
            count if count > SHOWN => {
                format!("{} and {} more", names[..SHOWN].join(" "), count - SHOWN)
            }
            _ => names.join(" "),
        }
    }
}

fn elf(bytes: &[u8]) -> Result<Vec<(u64, String)>> {
    let file = object::File::parse(bytes).context("read the ELF file")?;
    // Absolute ones are wanted too: those of processors' own data are.
    let wanted = |kind| !matches!(kind, SymbolKind::File | SymbolKind::Section);
    let named = file.symbols().filter(|symbol| !symbol.is_undefined() && wanted(symbol.kind()));
    let named = named.filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?.to_owned())));
    Ok(named.filter(|(_, name)| !name.is_empty()).collect())
}

/// Lines of address, kind and name. Others are passed over, as those of modules.
fn map(bytes: &[u8]) -> Result<Vec<(u64, String)>> {
    let text = std::str::from_utf8(bytes).context("neither ELF nor text")?;
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let (_kind, name) = (words.next()?, words.next()?);
        words.next().is_none().then(|| (address, name.to_owned()))
    };
    let names: Vec<_> = text.lines().filter_map(line).collect();
    let hidden = !names.is_empty() && names.iter().all(|(at, _)| *at == 0);
    ensure!(!hidden, "all addresses are zero: the kernel hides them from this user");
    Ok(names)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A small kernel: code, data, and what processors have of their own.
    pub(crate) const MAP: &str = "\
0000000000000000 A __per_cpu_start
0000000000000000 A fixed_percpu_data
0000000000002000 A runqueues
0000000000003000 A __per_cpu_end
ffffffff81000000 T _text
ffffffff81000000 T _stext
ffffffff81000100 T schedule
ffffffff81000200 t try_to_wake_up
ffffffff81001000 T _etext
ffffffff82000000 D jiffies
ffffffff82000040 d tick_lock
ffffffff82000080 d other
ffffffff820000c0 d another
ffffffff82002000 B big_table
ffffffff82009000 B _end
";

    pub(crate) fn symbols() -> Symbols {
        Symbols::parse(MAP.as_bytes()).unwrap()
    }

    #[test]
    fn code_is_named_by_its_function() {
        let symbols = symbols();
        assert_eq!(symbols.code(0xffff_ffff_8100_0234).unwrap(), "try_to_wake_up");
        assert_eq!(symbols.code(0xffff_ffff_c012_3456).unwrap(), "module at 0xffffffffc0123456");
        assert_eq!(symbols.code(0x40_0000), None);
        assert!(symbols.is_code(0xffff_ffff_8100_0234) && !symbols.is_code(0xffff_ffff_9300_0000));
    }

    #[test]
    fn data_is_named_by_image_direct_map_processor_and_page_struct() {
        let symbols = symbols();
        let processors = Processors::from([(DIRECT.start + 0x1f40_0000, 1)]);
        let data = |address| symbols.data(address, &processors).unwrap();
        assert_eq!(data(0xffff_ffff_8200_0048), "tick_lock+0x8");
        assert_eq!(data(DIRECT.start + 0x200_0000), "jiffies");
        assert_eq!(data(DIRECT.start + 0x1f40_2040), "runqueues+0x40 of vCPU 1");
        assert_eq!(data(PAGES.start + 64 * 0x1234 + 8), "struct page of 0x1234");
        assert_eq!(symbols.data(DIRECT.start + 0x1f40_3000, &processors), None);
        assert_eq!(symbols.data(0x7fff_0000, &processors), None);
    }

    #[test]
    fn pages_are_named_by_what_is_in_them() {
        let symbols = symbols();
        let processors = Processors::from([(DIRECT.start + 0x1f40_0000, 1)]);
        let page = |gfn| symbols.page(gfn, &processors);
        assert_eq!(page(0x2000).unwrap(), "jiffies tick_lock other and 1 more");
        assert_eq!(page(0x2004).unwrap(), "big_table+0x2000");
        assert_eq!(page(0x1f402).unwrap(), "runqueues of vCPU 1");
        assert_eq!((page(0x5000), page(u64::MAX)), (None, None));
    }

    #[test]
    fn names_of_no_kernel_are_refused() {
        for (text, cause) in [
            ("", "no symbol _stext"),
            ("0000000000001000 T _text\n0000000000002000 B _end", "not those of a kernel"),
            ("0000000000000000 T _text\n0000000000000000 B _end", "hides them"),
            ("\u{7f}ELF", "ELF"),
        ] {
            let error = Symbols::parse(text.as_bytes()).unwrap_err();
            assert!(format!("{error:#}").contains(cause), "{text}: {error:#}");
        }
        assert!(Symbols::parse(&[0xff; 32]).is_err());
    }

    #[test]
    fn names_of_an_elf_file_are_read() {
        use object::write::{Object, Symbol, SymbolSection};
        use object::{
            Architecture, BinaryFormat, Endianness, SymbolFlags, SymbolKind, SymbolScope,
        };
        let mut file = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        for (value, name) in [(0, "_text"), (0, "_stext"), (0x40, "main_loop"), (0x900, "_end")] {
            file.add_symbol(Symbol {
                name: name.as_bytes().to_vec(),
                value: 0xffff_ffff_8100_0000 + value,
                size: 0,
                kind: SymbolKind::Text,
                scope: SymbolScope::Linkage,
                weak: false,
                section: SymbolSection::Absolute,
                flags: SymbolFlags::None,
            });
        }
        let symbols = Symbols::parse(&file.write().unwrap()).unwrap();
        assert_eq!(symbols.code(0xffff_ffff_8100_0044).unwrap(), "main_loop");
    }
}
