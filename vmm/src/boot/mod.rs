//! Loading a Linux kernel and starting it at its 64-bit entry point.
//!
//! [`plan`] reads the files, checks everything and lists what goes where; it touches no guest
//! memory. [`BootPlan::write`] then writes the list through whatever memory object it is given, so
//! that a distributed machine can bring the payload in through coherent memory. Nothing is ever
//! half written because of a bad file.
//!
//! Both kernel formats start the same way (Linux boot protocol, "64-bit boot protocol"): long mode
//! with the first 4 GiB mapped one to one, flat segments, RSI at the zero page. The PVH note of an
//! ELF kernel is recognised and reported, but never used: its 32-bit entry would only take a
//! detour to the same code, and the zero page can say all that PVH says.
//!
//! ```text
//! 0x500     GDT                 0x9000-0xefff  page tables
//! 0x7000    zero page           0x20000        command line
//! 0x8ff0    stack (downwards)   0xdf010        generation id
//!                               0xe0000        ACPI tables
//! kernel: where it asks to be; initrd: as high as it may be, in the memory of the boot slice
//! ```

mod image;
mod params;
mod state;
#[cfg(test)]
mod tests;

pub use image::KernelKind;
pub use state::BootState;

use devices::GenerationId;
use devices::acpi::AcpiTables;
use devices::layout::{ACPI_END, GENERATION_ADDRESS, MemoryLayout};
use image::Kernel;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use thiserror::Error;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryError};

/// Where the zero page lies.
const ZERO_PAGE: u64 = 0x7000;
/// Where the command line lies; it may reach to the extended BIOS data area.
const CMDLINE: u64 = 0x2_0000;
/// Longest command line that the low memory has room for, without its final zero byte.
const CMDLINE_ROOM: u64 = 0x7_0000;
/// No kernel and no initrd is larger than this, so that no read is unbounded.
const FILE_LIMIT: u64 = 4 << 30;
/// End of what the first page tables map.
const MAPPED_END: u64 = 1 << 32;
const PAGE: u64 = 4096;

/// Why a kernel cannot be started.
#[derive(Debug, Error)]
pub enum BootError {
    /// A file cannot be read.
    #[error("cannot read {what} {}", path.display())]
    Read {
        /// Kernel or initrd.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// An initrd without content.
    #[error("initrd {} is empty", path.display())]
    EmptyInitrd {
        /// The file.
        path: PathBuf,
    },
    /// A file of more than 4 GiB.
    #[error("{what} {} is larger than 4 GiB", path.display())]
    FileTooLarge {
        /// Kernel or initrd.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// Not a bzImage and not an ELF kernel.
    #[error("{} is not a kernel: {reason}", path.display())]
    NotAKernel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No room for the kernel.
    #[error("guest memory is too small for the kernel, which needs {start:#x}..{end:#x}")]
    MemoryTooSmall {
        /// First byte that the kernel needs.
        start: u64,
        /// End of what it needs.
        end: u64,
    },
    /// No room for the initrd.
    #[error("initrd of {bytes} bytes does not fit in guest memory between {from:#x} and {to:#x}")]
    InitrdTooLarge {
        /// Its size.
        bytes: u64,
        /// End of the kernel.
        from: u64,
        /// Highest end that the kernel accepts.
        to: u64,
    },
    /// The command line is longer than the kernel accepts.
    #[error("command line has {bytes} bytes, the kernel takes at most {limit}")]
    CmdlineTooLong {
        /// Its length.
        bytes: usize,
        /// The limit of this kernel.
        limit: u64,
    },
    /// A zero byte would silently cut the command line.
    #[error("command line has a zero byte")]
    CmdlineZero,
    /// The memory object does not take the payload.
    #[error("cannot write {what} at guest address {gpa:#x}")]
    Write {
        /// Which part.
        what: &'static str,
        /// Where.
        gpa: u64,
        /// The cause.
        #[source]
        source: GuestMemoryError,
    },
}

/// What to start.
#[derive(Clone, Copy, Debug)]
pub struct BootConfig<'a> {
    /// bzImage or ELF vmlinux.
    pub kernel: &'a Path,
    /// Initial RAM disk.
    pub initrd: Option<&'a Path>,
    /// Kernel command line.
    pub cmdline: &'a str,
    /// Where RAM is.
    pub layout: &'a MemoryLayout,
    /// The node whose memory gets the initrd, if it has room.
    pub boot_node: u32,
    /// The tables to place; the zero page points to them.
    pub acpi: &'a AcpiTables,
    /// The VM's generation id.
    pub generation: GenerationId,
}

/// A part of what must be in guest memory before the first instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Guest-physical address.
    pub gpa: u64,
    /// Content.
    pub bytes: Vec<u8>,
    /// For messages.
    pub what: &'static str,
}

/// Everything that starts a kernel.
#[derive(Clone, Debug)]
pub struct BootPlan {
    /// What to write; all other memory is zero. Parts do not overlap.
    pub payload: Vec<Payload>,
    /// Registers of the boot vCPU.
    pub state: BootState,
}

impl BootPlan {
    /// The guest-physical ranges of the payload.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<u64>> {
        self.state.written.clone()
    }

    /// Writes the payload.
    ///
    /// # Errors
    ///
    /// A part that the memory object does not have.
    pub fn write<M: GuestMemoryBackend>(&self, memory: &M) -> Result<(), BootError> {
        for Payload { gpa, bytes, what } in &self.payload {
            memory.write_slice(bytes, GuestAddress(*gpa)).map_err(|source| BootError::Write {
                what,
                gpa: *gpa,
                source,
            })?;
        }
        Ok(())
    }
}

/// Plans and writes in one step.
///
/// # Errors
///
/// Those of [`plan`], with nothing written, and those of [`BootPlan::write`].
pub fn load<M: GuestMemoryBackend>(
    memory: &M,
    config: &BootConfig<'_>,
) -> Result<BootState, BootError> {
    let plan = plan(config)?;
    plan.write(memory)?;
    Ok(plan.state)
}

/// Reads and checks kernel, initrd and command line, and says what goes where.
///
/// # Errors
///
/// A file that is missing, unreadable or too large; a kernel that is none; memory or command line
/// that do not fit.
pub fn plan(config: &BootConfig<'_>) -> Result<BootPlan, BootError> {
    let kernel = read("kernel", config.kernel)?;
    let initrd = config.initrd.map(|path| read("initrd", path)).transpose()?;
    if let (Some(path), Some([])) = (config.initrd, initrd.as_deref()) {
        return Err(BootError::EmptyInitrd { path: path.to_path_buf() });
    }
    assemble(config, &kernel, initrd)
}

/// The part of [`plan`] that needs no files.
fn assemble(
    config: &BootConfig<'_>,
    kernel: &[u8],
    initrd: Option<Vec<u8>>,
) -> Result<BootPlan, BootError> {
    let not_a_kernel = |reason| BootError::NotAKernel { path: config.kernel.to_path_buf(), reason };
    let kernel = Kernel::parse(kernel).map_err(not_a_kernel)?;
    check_cmdline(config.cmdline, kernel.cmdline_limit())?;
    let extent = kernel.extent();
    if !fits(config.layout, &extent) {
        return Err(BootError::MemoryTooSmall { start: extent.start, end: extent.end });
    }
    let initrd = match initrd {
        Some(bytes) => {
            let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            let gpa = place_initrd(config, len, &kernel)?;
            Some(Payload { gpa, bytes, what: "initrd" })
        }
        None => None,
    };
    let zero_page = params::zero_page(config, kernel.header(), initrd.as_ref());
    let mut state = BootState::new(kernel.entry(), kernel.kind(), kernel.pvh_entry());
    let mut payload = state::tables();
    payload.push(Payload { gpa: ZERO_PAGE, bytes: zero_page, what: "zero page" });
    let mut cmdline = config.cmdline.as_bytes().to_vec();
    cmdline.push(0);
    payload.push(Payload { gpa: CMDLINE, bytes: cmdline, what: "command line" });
    let bytes = config.generation.bytes().to_vec();
    payload.push(Payload { gpa: GENERATION_ADDRESS, bytes, what: "generation id" });
    payload.extend(config.acpi.blobs.iter().map(|(gpa, bytes)| Payload {
        gpa: *gpa,
        bytes: bytes.clone(),
        what: "ACPI table",
    }));
    payload.extend(kernel.into_parts());
    payload.extend(initrd);
    let range = |part: &Payload| {
        part.gpa..part.gpa.saturating_add(u64::try_from(part.bytes.len()).unwrap_or(u64::MAX))
    };
    state.written = payload.iter().map(range).collect();
    Ok(BootPlan { payload, state })
}

/// Reads a whole file. Only a regular file: a device might have no end, a pipe might have no writer.
fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, BootError> {
    let failed = |source| BootError::Read { what, path: path.to_path_buf(), source };
    let metadata = fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    if metadata.len() > FILE_LIMIT {
        return Err(BootError::FileTooLarge { what, path: path.to_path_buf() });
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_LIMIT).read_to_end(&mut bytes))
        .map_err(failed)?;
    Ok(bytes)
}

fn check_cmdline(cmdline: &str, limit: u64) -> Result<(), BootError> {
    let limit = limit.min(CMDLINE_ROOM);
    if cmdline.contains('\0') {
        return Err(BootError::CmdlineZero);
    }
    if u64::try_from(cmdline.len()).is_ok_and(|bytes| bytes <= limit) {
        Ok(())
    } else {
        Err(BootError::CmdlineTooLong { bytes: cmdline.len(), limit })
    }
}

/// True when the range is free RAM from 1 MiB up, without a hole, and mapped at the start.
fn fits(layout: &MemoryLayout, range: &Range<u64>) -> bool {
    let end = layout.blocks().first().map_or(0, |block| block.start + block.len);
    range.start >= ACPI_END && range.start < range.end && range.end <= end.min(MAPPED_END)
}

/// The highest page-aligned place that the kernel accepts: in the memory of the boot node if it
/// fits there, else anywhere.
fn place_initrd(config: &BootConfig<'_>, len: u64, kernel: &Kernel) -> Result<u64, BootError> {
    let (from, to) = (kernel.extent().end, kernel.initrd_end().min(MAPPED_END));
    let too_large = BootError::InitrdTooLarge { bytes: len, from, to };
    let in_range = |start: u64, end: u64| {
        let gpa = end.min(to).checked_sub(len)? / PAGE * PAGE;
        (gpa >= start.max(from)).then_some(gpa)
    };
    let ranges = config.layout.ranges().iter();
    let home = ranges
        .filter(|range| range.node == config.boot_node)
        .filter_map(|range| in_range(range.start, range.start + range.len))
        .max();
    let blocks = config.layout.blocks();
    home.or_else(|| {
        blocks.iter().filter_map(|block| in_range(block.start, block.start + block.len)).max()
    })
    .ok_or(too_large)
}
