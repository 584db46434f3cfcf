//! A disk in this process's memory, for tests and benchmarks of what lies above disks.

use super::{DISK_ID_BYTES, Disk, DiskDone, DiskReply, DiskRequest, DiskShape, SECTOR_BYTES};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A disk of zeros in memory. It answers inside `submit`.
pub struct MemoryDisk {
    shape: DiskShape,
    bytes: Mutex<Vec<u8>>,
}

impl MemoryDisk {
    /// A writable disk of so many sectors.
    #[must_use]
    pub fn new(sectors: u64) -> Self {
        let id = [0; DISK_ID_BYTES];
        let shape = DiskShape { sectors, block_bytes: 512, read_only: false, discard: true, id };
        let bytes = usize::try_from(shape.bytes()).unwrap_or(usize::MAX);
        Self { shape, bytes: Mutex::new(vec![0; bytes]) }
    }

    /// Its contents now.
    #[must_use]
    pub fn contents(&self) -> Vec<u8> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a request that the shape admits.
    fn perform(&self, request: &DiskRequest) -> DiskReply {
        let start = |sector: u64| usize::try_from(sector * SECTOR_BYTES).unwrap_or(usize::MAX);
        let mut bytes = self.lock();
        match request {
            DiskRequest::Read { sector, bytes: count } => {
                let at = start(*sector);
                return DiskReply::Done(bytes[at..at + *count as usize].to_vec());
            }
            DiskRequest::Write { sector, data } => {
                let at = start(*sector);
                bytes[at..at + data.len()].copy_from_slice(data);
            }
            DiskRequest::Flush => {}
            DiskRequest::Discard { sector, sectors }
            | DiskRequest::WriteZeroes { sector, sectors, .. } => {
                bytes[start(*sector)..start(*sector + *sectors)].fill(0);
            }
        }
        DiskReply::Done(Vec::new())
    }
}

impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDisk").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl Disk for MemoryDisk {
    fn shape(&self) -> DiskShape {
        self.shape.clone()
    }

    fn submit(&self, request: DiskRequest, done: DiskDone) {
        done(self.shape.refusal(&request).unwrap_or_else(|| self.perform(&request)));
    }
}

/// A disk without contents: it answers at once, reads give zeros. It measures the path to a disk.
#[derive(Clone, Debug)]
pub struct NullDisk {
    shape: DiskShape,
}

impl NullDisk {
    /// A disk of so many sectors.
    #[must_use]
    pub fn new(sectors: u64) -> Self {
        let id = [0; DISK_ID_BYTES];
        let shape = DiskShape { sectors, block_bytes: 512, read_only: false, discard: true, id };
        Self { shape }
    }
}

impl Disk for NullDisk {
    fn shape(&self) -> DiskShape {
        self.shape.clone()
    }

    fn submit(&self, request: DiskRequest, done: DiskDone) {
        done(self.shape.refusal(&request).unwrap_or_else(|| {
            DiskReply::Done(match request {
                DiskRequest::Read { bytes, .. } => vec![0; bytes as usize],
                _ => Vec::new(),
            })
        }));
    }
}
