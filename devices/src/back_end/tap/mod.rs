//! A network through a tap of the host, with a queue for each queue pair.
//!
//! ```text
//!  transmit(pair) --write, no waiting--> queue of the tap --> host (bridge, routes)
//!  sink <-- thread of the pair: allowed? read : wait <------- queue of the tap
//! ```
//! Packets of pair `n` go to queue `n` and so teach the kernel where their flow lives (the tun
//! driver's flow table, by a hash that is the same both ways): the flow's answers come to the queue
//! that last sent on it, which is the one of the vCPU that last sent on it. Nothing here steers.
//!
//! A tap that exists is used as its operator left it; else one is made, brought up, and vanishes
//! with this process. Queues that the guest does not use are taken out of use.

mod offload;
mod queue;
mod sys;

#[cfg(test)]
mod tests;

use super::{Nic, NicShape, PacketSink, PacketsDone};
use crate::fence::{Fence, Standing};
use queue::{Receiver, Shared};
use rustix::fd::AsRawFd;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use sys::InterfaceName;
use thiserror::Error;

/// Most queue pairs of a tap (Linux, `MAX_TAP_QUEUES`).
pub const PAIRS_MAX: u16 = 256;
/// Smallest packet that is worth a call: header and Ethernet head.
const PACKET_BYTES_MIN: usize = sys::HEADER_BYTES + 14;

/// Which tap.
#[derive(Clone, Debug)]
pub struct TapOptions {
    /// Name of the interface.
    pub name: String,
    /// Queue pairs, 1 to [`PAIRS_MAX`].
    pub pairs: u16,
    /// The guest's hardware address.
    pub mac: [u8; 6],
    /// No packet of the guest is sent once it is over.
    pub fence: Arc<Fence>,
}

/// Why a tap cannot be used.
#[derive(Debug, Error)]
pub enum TapError {
    /// No name of an interface.
    #[error("open tap {0:?}: a name has 1 to 15 plain characters, without / : and %")]
    Name(String),
    /// Too many or too few queue pairs.
    #[error("open tap {name}: {pairs} queue pairs, but 1 to {PAIRS_MAX} are possible")]
    Pairs {
        /// The tap.
        name: String,
        /// The queue pairs.
        pairs: u16,
    },
    /// The kernel has no tun driver.
    #[error("open tap {0}: this host has no /dev/net/tun (load the module tun)")]
    NoDriver(String),
    /// Not permitted.
    #[error(
        "open tap {0}: not permitted (needs CAP_NET_ADMIN, or a tap that belongs to this user)"
    )]
    Permission(String),
    /// Somebody else has queues of it.
    #[error("open tap {0}: it is in use")]
    InUse(String),
    /// It exists, but differently.
    #[error(
        "open tap {0}: it exists, but not as a tap with several queues \
         (make it by: ip tuntap add NAME mode tap multi_queue vnet_hdr)"
    )]
    NoMultiqueue(String),
    /// Another failure.
    #[error("open tap {name}: {what}")]
    Other {
        /// The tap.
        name: String,
        /// What failed.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

struct Pair {
    file: Arc<File>,
    receiver: Receiver,
    /// The kernel may send packets to this queue.
    in_use: bool,
}

/// A network through a tap.
pub struct TapNic {
    name: InterfaceName,
    shape: NicShape,
    /// Queues for sending, without the lock of `pairs`.
    files: Vec<Arc<File>>,
    shared: Arc<Shared>,
    pairs: Mutex<Vec<Pair>>,
    dropped: AtomicU64,
    fence: Arc<Fence>,
}

impl TapNic {
    /// Opens a tap, or makes it.
    ///
    /// # Errors
    /// A bad name or number of pairs, no permission, a tap that is in use or of another kind.
    pub fn open(options: &TapOptions) -> Result<Self, TapError> {
        let TapOptions { name, pairs, mac, fence } = options.clone();
        let known = InterfaceName::new(&name).ok_or_else(|| TapError::Name(name.clone()))?;
        if !(1..=PAIRS_MAX).contains(&pairs) {
            return Err(TapError::Pairs { name, pairs });
        }
        let other = |what| {
            let name = name.clone();
            move |source: io::Error| TapError::Other { name, what, source }
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None);
        let socket = socket.map_err(io::Error::from).map_err(other("open a socket"))?;
        let existed = name_to_index(&socket, &name).is_ok();
        let open = |_| sys::open_queue(&known).map(Arc::new);
        let files: Result<Vec<_>, _> = (0..pairs).map(open).collect();
        let files = files.map_err(|error| refusal(&name, existed, error))?;
        let foreign = sys::queues_in_use(socket.as_raw_fd(), &known);
        if foreign.is_some_and(|queues| queues > u32::from(pairs)) {
            return Err(TapError::InUse(name));
        }
        if !existed {
            sys::bring_up(socket.as_raw_fd(), &known).map_err(other("bring it up"))?;
        }
        let mtu = sys::mtu(socket.as_raw_fd(), &known).map_err(other("read its MTU"))?;
        let offloads = possible_offloads(&files[0]).map_err(other("set its offloads"))?;
        let shape = NicShape { mac, mtu, pairs, offloads };
        let shared = Arc::new(Shared::default());
        let mut all = Vec::with_capacity(files.len());
        for (index, file) in (0..).zip(&files) {
            let receiver = Receiver::start(&name, index, Arc::clone(file), Arc::clone(&shared));
            let receiver = receiver.map_err(other("start a thread"))?;
            all.push(Pair { file: Arc::clone(file), receiver, in_use: true });
        }
        let dropped = AtomicU64::new(0);
        let nic =
            Self { name: known, shape, files, shared, pairs: Mutex::new(all), dropped, fence };
        nic.use_pairs(1).map_err(other("take queues out of use"))?;
        Ok(nic)
    }

    /// Packets of the guest that the tap did not take.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Leaves the first so many queues in use, at least one.
    fn use_pairs(&self, count: u16) -> io::Result<()> {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, pair) in (0_u16..).zip(pairs.iter_mut()) {
            let wanted = index < count.max(1);
            if pair.in_use != wanted {
                sys::use_queue(&pair.file, wanted)?;
                pair.in_use = wanted;
            }
        }
        Ok(())
    }
}

/// The reason in words for what the kernel says to a new queue.
fn refusal(name: &str, existed: bool, error: io::Error) -> TapError {
    let name = name.to_owned();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TapError::NoDriver(name),
        Some(libc::EPERM | libc::EACCES) => TapError::Permission(name),
        Some(libc::EBUSY | libc::E2BIG) => TapError::InUse(name),
        Some(libc::EINVAL) if existed => TapError::NoMultiqueue(name),
        _ => TapError::Other { name, what: "make a queue", source: error },
    }
}

/// Feature bits that this kernel's taps have.
fn possible_offloads(queue: &File) -> io::Result<u64> {
    let all = offload::ALWAYS | offload::SEGMENTED_UDP;
    let newer = sys::set_offload(queue, offload::for_guest(all)).is_ok();
    sys::set_offload(queue, 0)?;
    Ok(if newer { all } else { offload::ALWAYS })
}

impl fmt::Debug for TapNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TapNic").field("name", &self.name.as_str()).finish_non_exhaustive()
    }
}

impl Nic for TapNic {
    fn shape(&self) -> NicShape {
        self.shape.clone()
    }

    fn connect(&self, features: u64, pairs: u16, sink: Option<Arc<dyn PacketSink>>) {
        self.shared.set_sink(None);
        {
            let all = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().for_each(|pair| pair.receiver.reset());
        }
        let offload = offload::for_guest(features & self.shape.offloads);
        // Both fail only if the tap is gone; then its packets are too.
        let _ = sys::set_offload(&self.files[0], if sink.is_some() { offload } else { 0 });
        let _ = self.use_pairs(if sink.is_some() { pairs } else { 1 });
        self.shared.set_sink(sink);
    }

    fn transmit(&self, pair: u16, packets: Vec<Vec<u8>>, done: PacketsDone) {
        if let Some(file) = self.files.get(usize::from(pair)) {
            for packet in packets {
                // Nothing waits here, so a guest can always take its queues back: a host that is too slow loses packets, and so does
                // a slice that is about to find that others are gone, or have given it up.
                let sent = packet.len() >= PACKET_BYTES_MIN
                    && self.fence.look(Fence::now()) == Standing::Open
                    && (&**file).write(&packet).is_ok();
                self.dropped.fetch_add(u64::from(!sent), Ordering::Relaxed);
            }
        }
        done();
    }

    fn allow(&self, pair: u16, packets: u32) {
        let pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = pairs.get(usize::from(pair)) {
            pair.receiver.allow(packets);
        }
    }
}
