//! Two network devices joined by a cable, in user space: what one sends the other brings to its
//! guest. For tests, benchmarks, and programs that play the other end of a network.

use super::{Nic, NicShape, PacketSink, PacketsDone};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Packets that wait for room at one pair; what comes on top is dropped.
const BACKLOG_MAX: usize = 1024;

/// What has been sent to one pair of an end.
#[derive(Default)]
struct Lane {
    backlog: VecDeque<Vec<u8>>,
    allowed: u64,
    /// Somebody is handing over; the others only leave their packets, so that order is kept.
    busy: bool,
}

/// One end, as the cable sees it.
struct End {
    lanes: Vec<Mutex<Lane>>,
    /// Read while a packet is handed over.
    sink: RwLock<Option<Arc<dyn PacketSink>>>,
}

impl End {
    fn new(pairs: u16) -> Arc<Self> {
        let lanes = (0..pairs).map(|_| Mutex::default()).collect();
        Arc::new(Self { lanes, sink: RwLock::default() })
    }

    fn lane(&self, pair: u16) -> Option<MutexGuard<'_, Lane>> {
        let lane = self.lanes.get(usize::from(pair))?;
        Some(lane.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes a lane, then hands over what is allowed.
    fn change(&self, pair: u16, change: impl FnOnce(&mut Lane)) {
        let Some(mut lane) = self.lane(pair) else { return };
        change(&mut lane);
        if std::mem::replace(&mut lane.busy, true) {
            return;
        }
        drop(lane);
        while let Some(packet) = self.next(pair) {
            let sink = self.sink.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(sink) = &*sink {
                sink.packet(pair, packet);
            }
        }
    }

    /// The next packet that may be handed over; without one nobody is busy any more.
    fn next(&self, pair: u16) -> Option<Vec<u8>> {
        let mut lane = self.lane(pair)?;
        let packet = if lane.allowed > 0 { lane.backlog.pop_front() } else { None };
        lane.allowed -= u64::from(packet.is_some());
        lane.busy = packet.is_some();
        packet
    }
}

/// One of the two devices.
struct CableEnd {
    shape: NicShape,
    here: Arc<End>,
    there: Arc<End>,
}

/// Two devices of this shape, joined pair by pair.
#[must_use]
pub fn cable(shape: &NicShape) -> (Arc<dyn Nic>, Arc<dyn Nic>) {
    let (left, right) = (End::new(shape.pairs), End::new(shape.pairs));
    let end = |here: &Arc<End>, there: &Arc<End>| {
        let (here, there) = (Arc::clone(here), Arc::clone(there));
        Arc::new(CableEnd { shape: shape.clone(), here, there })
    };
    (end(&left, &right), end(&right, &left))
}

impl fmt::Debug for CableEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CableEnd").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl Nic for CableEnd {
    fn shape(&self) -> NicShape {
        self.shape.clone()
    }

    fn connect(&self, _features: u64, _pairs: u16, sink: Option<Arc<dyn PacketSink>>) {
        for pair in 0..self.shape.pairs {
            if let Some(mut lane) = self.here.lane(pair) {
                lane.allowed = 0;
                lane.backlog.clear();
            }
        }
        *self.here.sink.write().unwrap_or_else(PoisonError::into_inner) = sink;
    }

    fn transmit(&self, pair: u16, packets: Vec<Vec<u8>>, done: PacketsDone) {
        self.there.change(pair, |lane| {
            let room = BACKLOG_MAX.saturating_sub(lane.backlog.len());
            lane.backlog.extend(packets.into_iter().take(room));
        });
        done();
    }

    fn allow(&self, pair: u16, packets: u32) {
        self.here.change(pair, |lane| lane.allowed += u64::from(packets));
    }
}
