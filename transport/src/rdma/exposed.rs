//! Guest memory that is registered for one peer.
#![expect(unsafe_code, reason = "an adapter is given memory to write to")]
// UNSAFETY: the adapter reads and writes the memory while no reference to it exists: `PageMemory` is
// reached by pointers only, and outlives the region.

use super::error::{RdmaError, not_pinned};
use crate::memory::PageMemory;
use serde::{Deserialize, Serialize};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use std::sync::Arc;

/// Memory of a slice that its peer may write pages into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemoteMemory {
    /// Address of its first byte there.
    pub(super) address: u64,
    /// The key.
    pub(super) key: u32,
    /// Its length.
    pub(super) bytes: u64,
}

/// Our memory, registered for one peer.
#[derive(Debug)]
pub(super) struct ExposedMemory {
    region: Arc<MemoryRegion>,
    memory: PageMemory,
}

impl ExposedMemory {
    /// Pins the memory, all of it: it is one region with one key in this peer's protection domain.
    pub(super) fn register(
        domain: &Arc<ProtectionDomain>,
        memory: &PageMemory,
        place: &str,
    ) -> Result<Self, RdmaError> {
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        // SAFETY: whoever exposes the memory promised that it stays mapped as long as what it keeps,
        // which `ExposedMemory` holds longer than the region; it is reached by pointers only.
        let region = unsafe { domain.reg_mr(memory.start(), memory.bytes(), access) };
        let region = region.map_err(|error| not_pinned(error.0, memory.bytes(), place))?;
        Ok(Self { region, memory: memory.clone() })
    }

    pub(super) fn exposed(&self) -> RemoteMemory {
        let number = |value: usize| u64::try_from(value).expect("an address has 64 bits");
        let (address, bytes) = (number(self.memory.start()), number(self.memory.bytes()));
        RemoteMemory { address, key: self.region.rkey(), bytes }
    }

    /// The key for our own adapter.
    pub(super) fn local_key(&self) -> u32 {
        self.region.lkey()
    }
}
