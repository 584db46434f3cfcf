//! The way of a device's interrupts out of one slice.
//!
//! ```text
//! raise:  routed --> message sent        no route --> pending
//! route:  pending and routed now --> message sent, not pending
//! ```
//! Pending bits are kept where the vector was raised: a slice that raised nothing sends nothing when
//! the guest unmasks.

use crate::traits::{InterruptMessage, InterruptSink};
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An entry of a device's MSI-X table (PCI 6.8.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MsixVector(pub u16);

/// Most entries of a table here.
pub const VECTORS_MAX: usize = 256;

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
    /// A table of so many entries ([`PciRoot::vectors`](crate::pci::PciRoot::vectors)), all masked.
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

    /// The entry sends this from now on ([`PciEffect::MsixChanged`](crate::pci::PciEffect)).
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

/// What one slice has raised and could not send. The routes follow from the PCI root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MsixViewState {
    /// Entries of the table, 1 to 256.
    pub vectors: u16,
    /// Those that are pending, in ascending order.
    pub pending: Vec<u16>,
}

impl SavedState for MsixViewState {
    const NAME: &'static str = "msix view";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = 3 * VECTORS_MAX + 32;

    fn check(&self) -> Result<(), Invalid> {
        let count = (1..=VECTORS_MAX).contains(&usize::from(self.vectors));
        Invalid::unless(count, "vectors", "not 1 to 256")?;
        let ascending = self.pending.is_sorted_by(|one, next| one < next);
        Invalid::unless(ascending, "pending", "not in ascending order")?;
        let exist = self.pending.last().is_none_or(|last| *last < self.vectors);
        Invalid::unless(exist, "pending", "entries that do not exist")
    }
}

impl Saved for MsixView {
    type State = MsixViewState;

    /// All workers of the device on this slice are at rest.
    fn save(&self) -> MsixViewState {
        let pending = (0..).zip(&self.entries).filter(|(_, entry)| lock(entry).pending);
        MsixViewState {
            vectors: u16::try_from(self.entries.len()).unwrap_or(u16::MAX),
            pending: pending.map(|(vector, _)| vector).collect(),
        }
    }

    /// What is pending is sent when its entry is routed ([`PciRoot::in_force`](crate::pci::PciRoot::in_force)).
    fn restore(&mut self, state: MsixViewState) -> Result<(), Invalid> {
        state.check()?;
        let same = usize::from(state.vectors) == self.entries.len();
        Invalid::unless(same, "vectors", "not as many as this device has")?;
        for (vector, entry) in (0..).zip(&mut self.entries) {
            lock(entry).pending = state.pending.binary_search(&vector).is_ok();
        }
        Ok(())
    }
}

/// A panic of another thread leaves an entry usable: every operation keeps it whole.
fn lock(entry: &Mutex<Entry>) -> MutexGuard<'_, Entry> {
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::testing::{bring_over, damage};
    use crate::traits::DeliveryMode;
    use proptest::prelude::*;

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

    /// A view, and what it has sent.
    fn view(vectors: u16) -> (MsixView, Arc<Sent>) {
        let sent = Arc::new(Sent::default());
        (MsixView::new(vectors, sent.clone()), sent)
    }

    proptest! {
        #[test]
        fn pending_interrupts_are_sent_once_and_where_they_were_restored(
            steps in prop::collection::vec((0_u16..6, 0_u8..3), 0..40),
        ) {
            let (one, first) = view(6);
            let (mut two, second) = view(6);
            let mut raised = 0;
            for (vector, kind) in steps {
                match kind {
                    0 => one.raise(Some(MsixVector(vector))),
                    1 => one.route(MsixVector(vector), to(u8::try_from(vector).unwrap())),
                    _ => one.route(MsixVector(vector), None),
                }
                raised += usize::from(kind == 0);
            }
            let before = first.0.lock().unwrap().len();
            let pending = bring_over(&one, &mut two).pending;
            prop_assert!(before + pending.len() <= raised);
            prop_assert!(second.0.lock().unwrap().is_empty(), "nothing has a route yet");
            for vector in (0..6).map(MsixVector) {
                let route = to(u8::try_from(vector.0).unwrap());
                one.route(vector, route);
                two.route(vector, route);
            }
            let sent = second.0.lock().unwrap().clone();
            prop_assert_eq!(&first.0.lock().unwrap()[before..], &sent[..], "as the saved one sends");
            prop_assert_eq!(sent.into_iter().map(u16::from).collect::<Vec<_>>(), pending);
            prop_assert!(two.save().pending.is_empty());
        }
    }

    #[test]
    fn pending_entries_that_do_not_exist_or_come_twice_are_refused() {
        let (mut view, _) = view(3);
        for (vectors, pending) in [
            (3, vec![3]),
            (3, vec![1, 1]),
            (3, vec![2, 1]),
            (0, vec![]),
            (257, vec![]),
            (4, vec![]),
            (3, vec![0; 300]),
        ] {
            view.restore(MsixViewState { vectors, pending }).unwrap_err();
        }
        assert_eq!(view.save(), MsixViewState { vectors: 3, pending: vec![] });
        view.raise(Some(MsixVector(2)));
        damage(&view.save(), 0x01, |state| {
            drop(MsixView::new(3, Arc::new(Sent::default())).restore(state));
        });
    }
}
