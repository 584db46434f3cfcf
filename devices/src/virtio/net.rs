//! The front end of a network device (5.1): one worker for each queue pair, one for the control queue.
//!
//! ```text
//!   transmit ring --> packets copied, given back --> batch --> Nic::transmit (bounded by bytes)
//!   Nic --> inlet (bounded by Nic::allow) --> receive ring, one or more buffers --> interrupt
//! ```
//! Packets keep the header in front that driver and back end agree on (`virtio_net_hdr_v1`, 5.1.6);
//! the front end only fills in how many buffers a received packet has.

mod control;
mod in_flight;
mod pair;
mod saved;

pub use control::NetControl;
pub use pair::NetPair;
pub use saved::NetDeviceState;

use super::{ConfigChanges, DeviceChange, DeviceShape, Doorbell, QueueIndex};
use crate::back_end::{Nic, NicShape, PacketSink};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN,
    VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_GUEST_UFO,
    VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HOST_ECN,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_UFO, VIRTIO_NET_F_HOST_USO,
    VIRTIO_NET_F_MAC, VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU,
    VIRTIO_NET_F_STATUS, VIRTIO_NET_S_LINK_UP,
};

/// Offset of the link's status in the configuration (5.1.4).
const CONFIG_STATUS: usize = 6;
/// The link is up: a bit of its low byte.
const LINK_UP: u8 = VIRTIO_NET_S_LINK_UP.to_le_bytes()[0];
/// Bytes of the header, and where it says how many buffers a packet has (5.1.6).
const HEADER_BYTES: usize = 12;
const HEADER_BUFFERS: usize = 10;
const F_MQ: u64 = 1 << VIRTIO_NET_F_MQ;
const F_MRG_RXBUF: u64 = 1 << VIRTIO_NET_F_MRG_RXBUF;
/// What a back end may offer.
const OFFLOADS: [u32; 13] = [
    VIRTIO_NET_F_CSUM,
    VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_GUEST_ECN,
    VIRTIO_NET_F_GUEST_UFO,
    VIRTIO_NET_F_GUEST_USO4,
    VIRTIO_NET_F_GUEST_USO6,
    VIRTIO_NET_F_HOST_TSO4,
    VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_F_HOST_ECN,
    VIRTIO_NET_F_HOST_UFO,
    VIRTIO_NET_F_HOST_USO,
];

/// Such a network device, as drivers see it (5.1): receive and transmit queue of pair 0, of pair 1, ..., then
/// the control queue. Its class is network.
#[must_use]
pub fn shape(nic: &NicShape) -> DeviceShape {
    DeviceShape {
        type_id: VIRTIO_ID_NET,
        class: 0x02_0000,
        features: features(nic),
        queues: queues(nic.pairs),
        config: config(nic),
        changes: ConfigChanges { at: CONFIG_STATUS, bits: &[LINK_UP, 0] },
    }
}

/// A network's link is up or down (5.1.4).
#[must_use]
pub fn link(up: bool) -> DeviceChange {
    let bytes = u16::from(up).to_le_bytes().to_vec();
    DeviceChange::Config { type_id: VIRTIO_ID_NET, at: CONFIG_STATUS, bytes }
}

/// Number of queues of so many pairs, with the control queue.
fn queues(pairs: u16) -> usize {
    if pairs == 0 { 0 } else { 2 * usize::from(pairs) + 1 }
}

/// Features of such a device.
fn features(nic: &NicShape) -> u64 {
    let possible = OFFLOADS.iter().fold(0, |all, bit| all | 1_u64 << bit);
    let own = [
        VIRTIO_NET_F_MAC,
        VIRTIO_NET_F_MTU,
        VIRTIO_NET_F_STATUS,
        VIRTIO_NET_F_MRG_RXBUF,
        VIRTIO_NET_F_CTRL_VQ,
    ];
    let own = own.iter().fold(0, |all, bit| all | 1_u64 << bit);
    let several = if nic.pairs > 1 { F_MQ } else { 0 };
    own | several | nic.offloads & possible
}

/// Configuration of such a device, its link up (5.1.4).
fn config(nic: &NicShape) -> Vec<u8> {
    let mut config = nic.mac.to_vec();
    config.extend([LINK_UP, 0]);
    config.extend(nic.pairs.to_le_bytes());
    config.extend(nic.mtu.to_le_bytes());
    config
}

/// What a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NetQueue {
    /// Packets for the driver, of this pair.
    Receive(u16),
    /// Packets of the driver, of this pair.
    Transmit(u16),
    /// Commands.
    Control,
}

impl NetQueue {
    /// What this queue of a device with so many pairs is for under the agreed features; `None` for a
    /// queue that has no use. Without multiqueue the control queue is the third (5.1.2).
    #[must_use]
    pub fn of(queue: QueueIndex, pairs: u16, features: u64) -> Option<Self> {
        let pairs = if features & F_MQ == 0 { 1 } else { pairs };
        let pair = queue.0 / 2;
        match (pair.cmp(&pairs), queue.0 % 2) {
            (std::cmp::Ordering::Less, 0) => Some(Self::Receive(pair)),
            (std::cmp::Ordering::Less, _) => Some(Self::Transmit(pair)),
            (std::cmp::Ordering::Equal, 0) => Some(Self::Control),
            _ => None,
        }
    }
}

/// Where packets for a pair go in.
#[derive(Debug)]
struct Inlet {
    packets: SyncSender<Vec<u8>>,
    doorbell: Doorbell,
    /// Packets that were allowed and have not come.
    room: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Agreed {
    features: u64,
    /// Pairs in use; none while the device is not connected.
    pairs: u16,
}

/// What the workers of a network device in one slice share: the way to the back end and back.
///
/// Its owner makes the workers, connects, and disconnects before it stops them.
#[derive(Debug)]
pub struct NetDevice {
    nic: Arc<dyn Nic>,
    pairs: u16,
    agreed: Mutex<Agreed>,
    /// Held while packets are allowed, or the network is connected anew and all are allowed again.
    allowing: Mutex<()>,
    inlets: Vec<Mutex<Option<Inlet>>>,
}

/// A panic of another thread leaves both kinds of state whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NetDevice {
    /// A device that is not connected.
    #[must_use]
    pub fn new(nic: Arc<dyn Nic>) -> Arc<Self> {
        let pairs = nic.shape().pairs;
        let inlets = (0..pairs).map(|_| Mutex::default()).collect();
        Arc::new(Self { nic, pairs, agreed: Mutex::default(), allowing: Mutex::default(), inlets })
    }

    /// The driver is ready and has agreed to these features. One pair is in use until it asks for more
    /// (5.1.6.5.6).
    pub fn connect(self: &Arc<Self>, features: u64) {
        *lock(&self.agreed) = Agreed { features, pairs: 1 };
        self.use_pairs(1);
    }

    /// The driver uses so many pairs; false when there are not so many, or it is not connected.
    fn use_pairs(self: &Arc<Self>, pairs: u16) -> bool {
        self.connect_anew(|_| pairs)
    }

    /// Queues that were here are served by another slice from now on, and their workers have stopped. What was allowed for
    /// their pairs is void, so that packets go to the other slice. What the driver has said through the control queue goes
    /// with that queue. Packets on their way here are lost.
    pub fn hand_over(self: &Arc<Self>, control: bool) {
        self.connect_anew(|pairs| if control { 1 } else { pairs });
    }

    /// Connects with the number of pairs that follows from the one before.
    fn connect_anew(self: &Arc<Self>, next: impl FnOnce(u16) -> u16) -> bool {
        let _allowing = lock(&self.allowing);
        let (features, pairs) = {
            let mut agreed = lock(&self.agreed);
            let pairs = next(agreed.pairs);
            if agreed.pairs == 0 || pairs == 0 || pairs > self.pairs {
                return false;
            }
            agreed.pairs = pairs;
            (agreed.features, pairs)
        };
        let sink: Arc<dyn PacketSink> = Arc::clone(self) as _;
        self.nic.connect(features, pairs, Some(sink));
        // What was allowed to the connection before is forgotten, and what of it was under way is lost.
        for (pair, inlet) in (0..).zip(&self.inlets) {
            let room = lock(inlet).as_ref().map_or(0, |inlet| inlet.room);
            if room > 0 {
                self.nic.allow(pair, room);
            }
        }
        true
    }

    /// The driver has buffers for so many more packets of a pair.
    fn allow(&self, pair: u16, packets: u32) {
        let _allowing = lock(&self.allowing);
        let Some(place) = self.inlets.get(usize::from(pair)) else { return };
        if let Some(inlet) = &mut *lock(place) {
            inlet.room += packets;
        }
        self.nic.allow(pair, packets);
    }

    /// No packet goes in after the return. Called before workers are stopped.
    pub fn disconnect(&self) {
        *lock(&self.agreed) = Agreed::default();
        self.nic.connect(0, 0, None);
        for inlet in &self.inlets {
            *lock(inlet) = None;
        }
    }

    /// Packets of this pair go there from now on.
    fn open(&self, pair: u16, inlet: Inlet) {
        if let Some(place) = self.inlets.get(usize::from(pair)) {
            *lock(place) = Some(inlet);
        }
    }

    /// Packets of this pair are lost from now on.
    fn close(&self, pair: u16) {
        if let Some(place) = self.inlets.get(usize::from(pair)) {
            *lock(place) = None;
        }
    }
}

impl PacketSink for NetDevice {
    fn packet(&self, pair: u16, bytes: Vec<u8>) {
        self.packets(pair, vec![bytes]);
    }

    fn packets(&self, pair: u16, packets: Vec<Vec<u8>>) {
        let Some(place) = self.inlets.get(usize::from(pair)) else { return };
        if let Some(inlet) = &mut *lock(place) {
            for bytes in packets {
                inlet.room = inlet.room.saturating_sub(1);
                // More than was allowed is lost, as in a network.
                let _ = inlet.packets.try_send(bytes);
            }
            inlet.doorbell.ring();
        }
    }
}

#[cfg(test)]
mod tests;
