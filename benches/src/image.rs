//! The microguest's image.

use anyhow::{Context, Result, ensure};
use linux_loader::loader::{Elf, KernelLoader};
use microguest::layout::{IMAGE, stack_end};
use std::fs::File;
use std::path::Path;
use vm_memory::GuestMemoryMmap;

/// Loads the image into the private memory of a slice; the address of its first instruction.
///
/// # Errors
/// No such file, or no image of the microguest.
pub fn load(path: &Path, memory: &GuestMemoryMmap) -> Result<u64> {
    let mut file =
        File::open(path).with_context(|| format!("open the microguest {}", path.display()))?;
    let loaded = Elf::load(memory, None, &mut file, None)
        .with_context(|| format!("load the microguest {}", path.display()))?;
    let (entry, end) = (loaded.kernel_load.0, loaded.kernel_end);
    let fits = entry >= IMAGE && end <= stack_end(0) - 0x1_0000;
    ensure!(fits, "the microguest {} lies at {entry:#x} to {end:#x}", path.display());
    Ok(entry)
}
