//! What waits for a vCPU, in the order of its arrival.

use super::VcpuEvent;
use wire::SliceId;

/// Something that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Waiting<E> {
    Event(SliceId, E),
    /// Nothing of this slice comes this way any more.
    Marker(SliceId),
}

/// A queue that is no longer than an APIC has bits, for each sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queue<E>(Vec<Waiting<E>>);

impl<E: VcpuEvent> Queue<E> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An event arrives. One that waits already is pending once. INIT does away with those before it, of whose senders
    /// `reaches` holds.
    pub(super) fn push(&mut self, sender: SliceId, event: E, reaches: impl Fn(SliceId) -> bool) {
        if event.resets() {
            let stays = |one: &Waiting<E>| match one {
                Waiting::Event(from, _) => !reaches(*from),
                Waiting::Marker(_) => true,
            };
            self.0.retain(stays);
        }
        let new = Waiting::Event(sender, event);
        if !self.0.contains(&new) {
            self.0.push(new);
        }
    }

    /// A marker arrives. False if one of that sender waits already.
    pub(super) fn push_marker(&mut self, sender: SliceId) -> bool {
        let first =
            !self.0.iter().any(|one| matches!(one, Waiting::Marker(from) if *from == sender));
        if first {
            self.0.push(Waiting::Marker(sender));
        }
        first
    }

    /// Everything, the oldest first.
    pub(super) fn take(&mut self) -> Vec<Waiting<E>> {
        std::mem::take(&mut self.0)
    }

    /// Everything of one sender, the oldest first.
    pub(super) fn take_of(&mut self, sender: SliceId) -> Vec<E> {
        let (of, others) = self
            .take()
            .into_iter()
            .partition(|one| matches!(one, Waiting::Event(from, _) if *from == sender));
        self.0 = others;
        let events = |one| match one {
            Waiting::Event(_, event) => Some(event),
            Waiting::Marker(_) => None,
        };
        Vec::into_iter(of).filter_map(events).collect()
    }
}
