//! What a slice has outside its front ends: a disk and a network that judge what they are asked, and memory that changes
//! while it is read.

use devices::back_end::{
    Disk, DiskDone, DiskRequest, DiskShape, Nic, NicShape, PACKET_BYTES_MAX, PacketSink,
    PacketsDone, REQUEST_BYTES_MAX, SECTOR_BYTES,
};
use devices::pci::DeviceId;
use devices::virtio::{DeviceFaults, RingError, Used, UsedMemory};
use devices::{InterruptMessage, InterruptSink};
use std::sync::{Arc, Mutex};
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

const SECTORS: u64 = 16;

pub(crate) struct Outside;

impl InterruptSink for Outside {
    fn deliver(&self, _: InterruptMessage) {}
}

impl DeviceFaults for Outside {
    fn broken(&self, _: DeviceId, _: RingError) {}
}

/// What a worker says that it uses is in guest memory, to the last byte. It says so after it has looked at
/// a buffer's descriptor and before it looks at the buffer: that is when the guest changes memory again.
pub(crate) struct Treacherous {
    pub(crate) memory: Arc<GuestMemoryMmap>,
    /// What is written where, the last first.
    pub(crate) changes: Arc<Mutex<Vec<(u64, Vec<u8>)>>>,
}

impl UsedMemory for Treacherous {
    fn used(&self, address: u64, bytes: u64, _: Used) {
        let count = usize::try_from(bytes).unwrap();
        let there = self.memory.check_range(GuestAddress(address), count, Permissions::Read);
        assert!(bytes == 0 || there, "{address:#x} {bytes:#x}");
        if let Some((address, data)) = self.changes.lock().unwrap().pop() {
            let _ = self.memory.write_slice(&data, GuestAddress(address));
        }
    }
}

#[derive(Default)]
pub(crate) struct FuzzDisk {
    pub(crate) read_only: bool,
    pub(crate) kept: Mutex<Vec<(DiskRequest, DiskDone)>>,
}

impl std::fmt::Debug for FuzzDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FuzzDisk")
    }
}

pub(crate) fn disk_shape(read_only: bool) -> DiskShape {
    DiskShape { sectors: SECTORS, block_bytes: 512, read_only, discard: true, id: [1; 20] }
}

impl Disk for FuzzDisk {
    fn shape(&self) -> DiskShape {
        disk_shape(self.read_only)
    }

    fn submit(&self, request: DiskRequest, done: DiskDone) {
        let (sector, bytes, changes) = match &request {
            DiskRequest::Read { sector, bytes } => (*sector, u64::from(*bytes), false),
            DiskRequest::Write { sector, data } => (*sector, data.len() as u64, true),
            DiskRequest::Flush => (0, 0, false),
            DiskRequest::Discard { sector, sectors }
            | DiskRequest::WriteZeroes { sector, sectors, .. } => {
                (*sector, sectors * SECTOR_BYTES, true)
            }
        };
        assert!(bytes.is_multiple_of(SECTOR_BYTES) && bytes <= REQUEST_BYTES_MAX as u64);
        assert!(sector + bytes / SECTOR_BYTES <= SECTORS, "{request:?}");
        assert!(!(changes && self.read_only), "{request:?}");
        self.kept.lock().unwrap().push((request, done));
    }
}

#[derive(Default)]
pub(crate) struct FuzzNic {
    pub(crate) kept: Mutex<Vec<PacketsDone>>,
}

impl std::fmt::Debug for FuzzNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FuzzNic")
    }
}

pub(crate) fn nic_shape() -> NicShape {
    NicShape { mac: [2; 6], mtu: 1500, pairs: 2, offloads: u64::MAX }
}

impl Nic for FuzzNic {
    fn shape(&self) -> NicShape {
        nic_shape()
    }

    fn connect(&self, _: u64, pairs: u16, sink: Option<Arc<dyn PacketSink>>) {
        assert!(pairs <= 2 && (pairs > 0) == sink.is_some());
    }

    fn transmit(&self, pair: u16, packets: Vec<Vec<u8>>, done: PacketsDone) {
        assert!(pair < 2);
        assert!(packets.iter().all(|packet| (12..=PACKET_BYTES_MAX).contains(&packet.len())));
        self.kept.lock().unwrap().push(done);
    }

    fn allow(&self, pair: u16, _: u32) {
        assert!(pair < 2);
    }
}
