//! The way of a device's interrupts out of one slice.
//!
//! ```text
//! raise:  routed --> message sent        no route --> pending
//! route:  pending and routed now --> message sent, not pending
//! ```
//! Pending bits are kept where the vector was raised: a slice that raised nothing sends nothing when
//! the guest unmasks.

use super::MsixVector;
use crate::seams::{InterruptMessage, InterruptSink};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    route: Option<InterruptMessage>,
    pending: bool,
}

/// A slice's view of the MSI-X table of a device, shared by the workers of its queues.
pub struct MsixView {
    entries: Vec<Mutex<Entry>>,
    sink: Arc<dyn InterruptSink>,
}

impl fmt::Debug for MsixView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MsixView").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl MsixView {
    /// A table of so many entries ([`PciRoot::vectors`](super::PciRoot::vectors)), all masked.
    #[must_use]
    pub fn new(vectors: u16, sink: Arc<dyn InterruptSink>) -> Self {
        Self { entries: (0..vectors).map(|_| Mutex::default()).collect(), sink }
    }

    /// Sends the interrupt, or remembers it until the entry is unmasked. `None`, and vectors that do
    /// not exist, are fine: the driver wants no interrupt.
    pub fn raise(&self, vector: Option<MsixVector>) {
        if let Some(mut entry) = vector.and_then(|vector| self.entry(vector)) {
            entry.pending = true;
            self.send(&mut entry);
        }
    }

    /// The entry sends this from now on ([`PciEffect::MsixChanged`](super::PciEffect)).
    ///
    /// Nothing is sent by its old route after the return: a guest that moves an interrupt takes the
    /// old vector away then.
    pub fn route(&self, vector: MsixVector, route: Option<InterruptMessage>) {
        if let Some(mut entry) = self.entry(vector) {
            entry.route = route;
            self.send(&mut entry);
        }
    }

    /// Forgets all pending interrupts, as a reset of the device does.
    pub fn forget(&self) {
        for entry in &self.entries {
            lock(entry).pending = false;
        }
    }

    fn entry(&self, vector: MsixVector) -> Option<MutexGuard<'_, Entry>> {
        self.entries.get(usize::from(vector.0)).map(lock)
    }

    /// Sends what is due, under the lock of the entry (see [`Self::route`]).
    fn send(&self, entry: &mut Entry) {
        if let (true, Some(message)) = (entry.pending, entry.route) {
            entry.pending = false;
            self.sink.deliver(message);
        }
    }
}

/// A panic of another thread leaves an entry usable: every operation keeps it whole.
fn lock(entry: &Mutex<Entry>) -> MutexGuard<'_, Entry> {
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seams::DeliveryMode;

    #[derive(Default)]
    struct Sent(Mutex<Vec<u8>>);

    impl InterruptSink for Sent {
        fn deliver(&self, message: InterruptMessage) {
            self.0.lock().unwrap().push(message.vector);
        }
    }

    fn to(vector: u8) -> Option<InterruptMessage> {
        let mode = DeliveryMode::Fixed;
        Some(InterruptMessage { destination: 0, logical: false, mode, vector })
    }

    #[test]
    fn masked_interrupts_arrive_once_at_unmask_by_the_new_route() {
        let sent = Arc::new(Sent::default());
        let view = MsixView::new(2, sent.clone());
        view.raise(Some(MsixVector(1)));
        view.raise(Some(MsixVector(1)));
        view.raise(None);
        view.raise(Some(MsixVector(9)));
        assert!(sent.0.lock().unwrap().is_empty());
        view.route(MsixVector(0), to(0x40));
        view.route(MsixVector(1), to(0x41));
        view.route(MsixVector(1), to(0x42));
        view.raise(Some(MsixVector(1)));
        assert_eq!(*sent.0.lock().unwrap(), [0x41, 0x42]);
    }

    #[test]
    fn reset_forgets_what_is_pending() {
        let sent = Arc::new(Sent::default());
        let view = MsixView::new(1, sent.clone());
        view.raise(Some(MsixVector(0)));
        view.forget();
        view.route(MsixVector(0), to(0x40));
        assert!(sent.0.lock().unwrap().is_empty());
    }
}
