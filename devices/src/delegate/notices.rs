//! Telling slices that their packets have left.
//!
//! ```text
//!   batch taken --left the network--> kept --many, or a moment without more--> told, all together
//! ```
//! A slice waits for these only when it has much under way, so one message and one wake-up on each side
//! do for many batches.

use super::outbound::{Letters, Outbound};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::device::{DeviceFrame, Part};
use wire::{DeviceId, SliceId};

/// Batches that have left, and bytes of them, of which a slice is told at once: far below what it may
/// have under way.
const BATCHES: usize = 32;
const BYTES: u64 = 256 << 10;
/// It is told of fewer when no more have come for so long.
const WITHIN: Duration = Duration::from_millis(20);

/// Batches of one slice that have left.
#[derive(Debug, Default)]
struct Left {
    /// Queue pair and tag of each.
    batches: Vec<(u16, u64)>,
    bytes: u64,
}

/// What slices are still to be told of one device.
#[derive(Debug)]
pub(super) struct Notices {
    device: DeviceId,
    outbound: Arc<Outbound>,
    /// Batches that were taken and that nobody was told of.
    untold: AtomicUsize,
    left: Mutex<BTreeMap<SliceId, Left>>,
}

impl Notices {
    pub(super) fn new(device: DeviceId, outbound: Arc<Outbound>) -> Self {
        Self { device, outbound, untold: AtomicUsize::new(0), left: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<SliceId, Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch goes to the network.
    pub(super) fn expect(&self) {
        self.untold.fetch_add(1, Ordering::AcqRel);
    }

    /// It has left. Any thread.
    pub(super) fn left(&self, from: SliceId, part: Part, bytes: u64) {
        let many = {
            let mut all = self.all();
            let left = all.entry(from).or_default();
            left.batches.push((part.queue, part.tag));
            left.bytes += bytes;
            let many = left.batches.len() >= BATCHES || left.bytes >= BYTES;
            if many { all.remove(&from) } else { None }
        };
        if let Some(left) = many {
            self.send(from, left);
        }
    }

    /// When [`Self::send_all`] is due, unless something else happens: nothing while nothing is under way.
    pub(super) fn due(&self) -> Option<Duration> {
        (self.untold.load(Ordering::Acquire) > 0).then_some(WITHIN)
    }

    /// Tells everybody.
    pub(super) fn send_all(&self) {
        let all = std::mem::take(&mut *self.all());
        for (slice, left) in all {
            self.send(slice, left);
        }
    }

    fn send(&self, to: SliceId, left: Left) {
        let (device, mut letters) = (self.device, Letters::default());
        self.untold.fetch_sub(left.batches.len(), Ordering::AcqRel);
        for (queue, tag) in left.batches {
            let frame = DeviceFrame::PacketsDone { device, queue, tag };
            self.outbound.write(&mut letters, &[], |_, _| frame);
        }
        // A slice that is lost need not know.
        self.outbound.post(to, letters);
    }
}
