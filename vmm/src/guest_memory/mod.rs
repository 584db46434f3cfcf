//! Guest memory as devices of this slice use it: the same mapping as the vCPUs.
//!
//! A thread that touches a page which is elsewhere waits for it, like a vCPU: userfaultfd stops the
//! thread, the engine fetches the page. So every load and store is coherent, and needs no lock on the
//! page. There is one difference. While the engine asks a vCPU what it wants with a page
//! (`dsm/src/async_faults/workers.rs`), the page's mapping is read-only, and a chunk that moves into the memory file is
//! not mapped for a moment. KVM tells a vCPU so by an error; a thread of this process gets `SIGSEGV`:
//!
//! ```text
//!   store --userfaultfd--> waits --> done
//!     |
//!     +--SIGSEGV--> asks the engine for the page --> tries again
//! ```
//! See [`refused`]. An access outside guest memory still ends the process.
#![expect(unsafe_code, reason = "makes a view of memory that another part has mapped")]
// UNSAFETY: the mapping is given by address.

mod refused;

use devices::virtio::{Used, UsedMemory};
use dsm::{DeviceUse, GuestRam};
use std::sync::Arc;
use thiserror::Error;
use vm_memory::mmap::MmapRegionError;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

pub(crate) use refused::Guard;

/// Why devices cannot use guest memory.
#[derive(Debug, Error)]
pub enum GuestMemoryError {
    /// The mapping is unusable.
    #[error("map guest memory for devices")]
    Region(#[from] MmapRegionError),
    /// Its parts overlap, or there are none.
    #[error("lay out guest memory for devices")]
    Layout(#[from] vm_memory::GuestRegionCollectionError),
    /// An address is out of range.
    #[error("guest memory at {0:#x} does not fit the address space")]
    Range(u64),
}

/// A view of all guest memory. It is valid as long as `ram`, which every user must keep.
#[derive(Clone, Debug)]
pub(crate) struct GuestMemory {
    pub(crate) memory: Arc<GuestMemoryMmap>,
    ram: Arc<GuestRam>,
}

/// Who uses it.
#[derive(Debug)]
pub(crate) struct UsedBy {
    ram: Arc<GuestRam>,
    device: u16,
}

impl GuestMemory {
    /// What a device tells of its use of this memory.
    pub(crate) fn used_by(&self, device: u16) -> UsedBy {
        UsedBy { ram: Arc::clone(&self.ram), device }
    }

    pub(crate) fn new(ram: &Arc<GuestRam>) -> Result<Self, GuestMemoryError> {
        let mut regions = Vec::new();
        for (guest_address, host_address, bytes) in ram.slots() {
            let outside = || GuestMemoryError::Range(guest_address);
            let bytes = usize::try_from(bytes).map_err(|_| outside())?;
            let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let start = std::ptr::without_provenance_mut::<u8>(host_address);
            // SAFETY: the slots of `ram` are mapped for reading and writing for as long as it lives,
            // and this view keeps it; nobody has references into it, only pointers and volatile access.
            let region = unsafe { MmapRegion::build_raw(start, bytes, access, flags) }?;
            let region = GuestRegionMmap::new(region, GuestAddress(guest_address));
            regions.push(region.ok_or_else(outside)?);
        }
        let memory = Arc::new(GuestMemoryMmap::from_regions(regions)?);
        Ok(Self { memory, ram: Arc::clone(ram) })
    }
}

impl UsedMemory for UsedBy {
    fn used(&self, address: u64, bytes: u64, what: Used) {
        let what = match what {
            Used::Data => DeviceUse::Data,
            Used::Frame => DeviceUse::Frame,
        };
        self.ram.mark_for_device(self.device, address, bytes, what);
    }
}
