//! Back ends: what a device's front end asks for what the guest wants, wherever the real disk,
//! network or source of randomness is.
//!
//! ```text
//!   vCPU -- ring --> front end --+--> back end of this slice      (mode `local`)
//!            same slice          +--> proxy ~~ frames ~~> server --> back end of another slice
//! ```
//! A front end never learns which of the two it talks to. Payload travels in the request or the reply,
//! never through coherent pages (DSM-bypass). Requests never block: the answer comes by a
//! call on a thread of the back end, which must return at once (it rings the front end's thread).

mod bounds;
mod cable;
pub mod image;
mod memory;
pub mod sample;
mod switch;
mod switch_nic;
pub mod tap;

pub use cable::cable;
pub use memory::{MemoryDisk, NullDisk};
pub use switch::SwitchDisk;
pub use switch_nic::SwitchNic;

use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::sync::Arc;

/// Bytes of a sector: the unit of addresses on a virtio disk (virtio 1.3, 5.2.6).
pub const SECTOR_BYTES: u64 = 512;
/// Length of a disk's identity string in bytes (virtio 1.3, 5.2.6, `VIRTIO_BLK_T_GET_ID`).
pub const DISK_ID_BYTES: usize = 20;
/// Most bytes that one request may move. A front end splits nothing: it refuses what is larger, and
/// tells the guest limits (`seg_max`, `size_max`) that keep requests below it.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Most bytes of a network packet with its header (`virtio_net_hdr_v1`, 12 bytes; virtio 1.3, 5.1.6).
pub const PACKET_BYTES_MAX: usize = 12 + 65_550;

/// What a disk is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskShape {
    /// Size in sectors.
    pub sectors: u64,
    /// Smallest unit that is written at once, in bytes; a power of two from 512 to 4096.
    pub block_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Sectors can be given back.
    pub discard: bool,
    /// Identity, padded with zeros.
    pub id: [u8; DISK_ID_BYTES],
}

/// What is asked of a disk. Sectors count from the start of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskRequest {
    /// Read so many bytes, a multiple of [`SECTOR_BYTES`].
    Read {
        /// First sector.
        sector: u64,
        /// Bytes.
        bytes: u32,
    },
    /// Write these bytes, a multiple of [`SECTOR_BYTES`].
    Write {
        /// First sector.
        sector: u64,
        /// What is written.
        data: Vec<u8>,
    },
    /// Answer only after all writes that were answered before this request was made are durable.
    Flush,
    /// The contents are not needed any more; reading gives anything until the next write.
    Discard {
        /// First sector.
        sector: u64,
        /// Number of sectors.
        sectors: u64,
    },
    /// Reads give zeros from here on.
    WriteZeroes {
        /// First sector.
        sector: u64,
        /// Number of sectors.
        sectors: u64,
        /// Room may be given back.
        unmap: bool,
    },
}

/// How a request ended (virtio 1.3, 5.2.6: `VIRTIO_BLK_S_OK`, `_IOERR`, `_UNSUPP`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskReply {
    /// Done; what was read, or nothing.
    Done(Vec<u8>),
    /// Failed, out of range, refused, or the slice with the disk is gone.
    Failed,
    /// This disk cannot do that.
    Unsupported,
}

/// Called once with the answer, on any thread; returns at once.
pub type DiskDone = Box<dyn FnOnce(DiskReply) + Send>;

/// A disk.
pub trait Disk: Send + Sync + Debug {
    /// What it is. Never changes.
    fn shape(&self) -> DiskShape;
    /// Starts a request. `done` is always called, also when the disk's slice is lost. Requests may
    /// end in any order; a front end bounds how many it has under way.
    fn submit(&self, request: DiskRequest, done: DiskDone);
    /// Starts several requests, as [`Self::submit`] does each; the way to a disk of another slice is
    /// woken once for all of them.
    fn submit_all(&self, requests: Vec<(DiskRequest, DiskDone)>) {
        for (request, done) in requests {
            self.submit(request, done);
        }
    }
    /// Whether requests may wait for what only people can bring about, as room in a file system; at first they may.
    /// No longer once the device is being reset: what waits fails then, and so does what comes and would wait, so
    /// that nothing from before the reset is done after it. Does nothing where the real disk is not: its slice hears of the
    /// reset as well.
    fn may_wait(&self, _may: bool) {}
}

/// What a network device is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicShape {
    /// Hardware address.
    pub mac: [u8; 6],
    /// Largest payload of a frame in bytes.
    pub mtu: u16,
    /// Queue pairs.
    pub pairs: u16,
    /// What it takes from and gives to the guest unfinished: feature bits of virtio 1.3, 5.1.3
    /// (checksums and segmentation, `VIRTIO_NET_F_*`).
    pub offloads: u64,
}

/// Takes packets for the guest. Called on any thread; returns at once.
pub trait PacketSink: Send + Sync {
    /// A packet for this queue pair, with its header. The front end has allowed it.
    fn packet(&self, pair: u16, bytes: Vec<u8>);
    /// Several packets for this queue pair, in order; whoever waits for them is woken once.
    fn packets(&self, pair: u16, packets: Vec<Vec<u8>>) {
        for bytes in packets {
            self.packet(pair, bytes);
        }
    }
}

/// Called once when all packets of a batch have left, or were dropped.
pub type PacketsDone = Box<dyn FnOnce() + Send>;

/// A network device. It may lose packets, as networks do, but never order within a pair.
pub trait Nic: Send + Sync + Debug {
    /// What it is. Never changes.
    fn shape(&self) -> NicShape;
    /// The guest has agreed to these features and wants so many pairs; packets for it go to `sink`
    /// from now on, as far as it allows; allowances of before are void. `None` stops them: none
    /// comes after the return.
    fn connect(&self, features: u64, pairs: u16, sink: Option<Arc<dyn PacketSink>>);
    /// Sends packets, each with its header, in order.
    fn transmit(&self, pair: u16, packets: Vec<Vec<u8>>, done: PacketsDone);
    /// The front end has room for so many more packets of this pair.
    fn allow(&self, pair: u16, packets: u32);
}
