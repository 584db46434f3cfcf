//! Queues that move to another slice while the guest runs.
//!
//! ```text
//!   every slice, in the order of changes: the placement says the new place
//!   former place: bells away --> KVM rings no more --> workers at rest, stopped --> QueueState for each queue --> done
//!   new place:    bells made --> QueueState of each queue has come --> workers start there --> KVM rings --> done
//!
//!   a ring: bell here? --> rings     no bell --> the place by the placement, but not back to who says so --> dropped
//! ```
//! **No ring is lost.** A ring that finds its bell at the former place comes before the worker's state is taken, and the
//! worker at the new place begins with a look at its rings. One that finds no bell there finds the new placement, and is
//! sent on. The new place has a bell then, or its worker has still to start. In that last case its own placement may
//! still name the former place, which has just sent the ring: it is dropped.
//!
//! **No request is lost or doubled.** A worker at rest has given back all that it has taken. The state says how far that is.

use super::model::FrontEnd;
use super::move_error::{MoveError, STATES_WITHIN};
use super::queues::Slot;
use super::saved::MovingQueue;
use super::{SliceDevices, lock};
use crate::slice::channels::Channels;
use crate::slice::one_line;
use crate::slice::queue_states::StateOf;
use devices::virtio::QueueIndex;
use migrate::saved::{decode, encode};
use migrate::{Change, PlacementView};
use std::ops::Range;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use wire::{Control, DeviceId, Epoch, SliceId};

/// For requests under way at the former place. Its storage may not answer for a while; the guest waits for it anyway.
const REST_WITHIN: Duration = Duration::from_secs(40);

/// Queues of a device that get another place.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) device: u16,
    pub(crate) queues: Range<u16>,
    pub(crate) to: SliceId,
    /// Epoch of the placement that says so.
    pub(crate) placement: Epoch,
}

impl Move {
    /// What it changes in the placement.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let (device, to) = (self.device, self.to);
        self.queues.clone().map(|queue| Change::Queue { device, queue, to }).collect()
    }
}

impl SliceDevices {
    /// Does the part of this slice in a move, on the device thread.
    ///
    /// # Errors
    /// It cannot be done, or another slice does not do its part. The VM cannot go on.
    pub(crate) fn place(&self, channels: &Channels, moved: &Move) -> Result<(), MoveError> {
        let slot = self.slots.get(usize::from(moved.device));
        let slot = slot.ok_or(MoveError::Device(moved.device))?;
        if let Some(torn) = torn(&*slot.front_end, &moved.queues) {
            return Err(MoveError::Torn(torn));
        }
        let before = channels.placement.load().devices().get(usize::from(moved.device)).cloned();
        let place_of = |queue: u16| before.as_ref()?.queues.get(usize::from(queue)).copied();
        let (mut leaving, mut coming) = (Vec::new(), Vec::new());
        for (queue, from) in
            moved.queues.clone().filter_map(|queue| Some((queue, place_of(queue)?)))
        {
            match (from == self.local, moved.to == self.local) {
                (true, false) => leaving.push(QueueIndex(queue)),
                (false, true) => coming.push((QueueIndex(queue), from)),
                _ => {}
            }
        }
        // Before the state goes: who finds no bell here after that must find the new place.
        channels.owner.advance(&moved.changes(), moved.placement)?;
        if !leaving.is_empty() {
            self.leave(channels, moved, &leaving)?;
        }
        if coming.is_empty() { Ok(()) } else { self.come(channels, moved, &coming) }
    }

    /// The former place.
    fn leave(
        &self,
        channels: &Channels,
        moved: &Move,
        queues: &[QueueIndex],
    ) -> Result<(), MoveError> {
        let (device, slot) = (DeviceId(moved.device), &self.slots[usize::from(moved.device)]);
        slot.remove_bells(queues);
        // Until then KVM rings bells that nobody else has. Their workers still run.
        if !self.wire(device) {
            return Err(MoveError::Wired(moved.device));
        }
        let features = self.activation(device).map_or(0, |activation| activation.features);
        let states = lock(&self.queues).hand_over((device, slot), queues, features, REST_WITHIN)?;
        for queue in queues {
            let state = states.get(queue).map(encode).transpose();
            let state = state.map_err(|error| MoveError::Unsaved(queue.0, one_line(&error)))?;
            let state = state.unwrap_or_default();
            let (device, placement) = (moved.device, moved.placement);
            channels
                .send(moved.to, &Control::QueueState { device, queue: queue.0, placement, state });
        }
        Ok(())
    }

    /// The new place.
    fn come(
        &self,
        channels: &Channels,
        moved: &Move,
        queues: &[(QueueIndex, SliceId)],
    ) -> Result<(), MoveError> {
        let (device, slot) = (DeviceId(moved.device), &self.slots[usize::from(moved.device)]);
        for (queue, _) in queues {
            slot.add_bell(*queue).map_err(|error| MoveError::Bell(one_line(&error)))?;
        }
        let (activation, deadline) = (self.activation(device), Instant::now() + STATES_WITHIN);
        for (queue, from) in queues {
            let (from, number) = (*from, queue.0);
            let placement = moved.placement;
            let which = StateOf { from, placement, device: moved.device, queue: number };
            let bytes = channels.queue_states.take(which, deadline);
            let bytes = bytes.ok_or(MoveError::Silent { from, queue: number })?;
            if bytes.is_empty() {
                continue;
            }
            let moving =
                read(&bytes).map_err(|why| MoveError::Malformed { from, queue: number, why })?;
            let activation = activation.as_ref().ok_or(MoveError::Unused(*queue))?;
            lock(&self.queues).take_over((device, slot), *queue, activation, moving)?;
        }
        // All of this move have come, and the next one has not begun.
        if let Some(StateOf { from, device, queue, .. }) = channels.queue_states.first() {
            return Err(MoveError::Unasked { from, device, queue });
        }
        self.wire(device);
        Ok(())
    }

    fn activation(&self, device: DeviceId) -> Option<devices::virtio::Activation> {
        self.pci.read().unwrap_or_else(PoisonError::into_inner).activation(device)
    }

    /// Rings for a queue, wherever it is; `from` is the slice that asks for it. False if there is no such queue.
    pub(crate) fn ring_at_its_place(
        &self,
        channels: &Channels,
        from: SliceId,
        (device, queue): (u16, u16),
    ) -> bool {
        let Some(slot) = self.slots.get(usize::from(device)) else { return false };
        match ring(slot, &channels.placement, from, (device, queue)) {
            Rung::Nowhere => return false,
            Rung::SentOn(to) => channels.send(to, &Control::Doorbell { device, queue }),
            Rung::Here | Rung::Unneeded => {}
        }
        true
    }
}

/// What becomes of a ring at one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rung {
    /// The bell is here.
    Here,
    /// The queue is there.
    SentOn(SliceId),
    /// The worker has still to start.
    Unneeded,
    /// There is no such queue.
    Nowhere,
}

fn ring(
    slot: &Slot,
    placement: &PlacementView,
    from: SliceId,
    (device, queue): (u16, u16),
) -> Rung {
    let index = QueueIndex(queue);
    if slot.ring(index) {
        return Rung::Here;
    }
    match placement.load().queue_at(device, queue) {
        None => Rung::Nowhere,
        // It may have come since.
        Some(at) if at == placement.local() && slot.ring(index) => Rung::Here,
        Some(at) if at == placement.local() => Rung::Unneeded,
        // That slice knows already that the queue is to be here.
        Some(at) if at == from => Rung::Unneeded,
        Some(at) => Rung::SentOn(at),
    }
}

/// A queue that would move without one that is served with it.
pub(super) fn torn(front_end: &dyn FrontEnd, queues: &Range<u16>) -> Option<u16> {
    let is_torn = |queue: &u16| {
        let together = front_end.together(*queue);
        together.start < queues.start || together.end > queues.end
    };
    queues.clone().find(is_torn)
}

/// The state in these bytes, or what is wrong with them.
fn read(bytes: &[u8]) -> Result<MovingQueue, String> {
    decode(bytes).map_err(|error| one_line(&error))
}

#[cfg(test)]
mod tests {
    use super::super::rng::Rng;
    use super::*;
    use devices::msix::MsixView;
    use devices::{InterruptMessage, InterruptSink};
    use migrate::{DevicePlace, Placement, PlacementOwner};
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Arc;

    const SLICES: [SliceId; 3] = [SliceId(0), SliceId(1), SliceId(2)];
    const QUEUE: (u16, u16) = (0, 0);

    struct Nowhere;

    impl InterruptSink for Nowhere {
        fn deliver(&self, _: InterruptMessage) {}
    }

    struct OneSlice {
        owner: PlacementOwner,
        slot: Slot,
        /// Steps of the move under way that it has taken; all of them between moves.
        taken: usize,
        serves: bool,
        rung: bool,
    }

    /// Three slices with one queue, and a driver that puts something into it and rings, anywhere.
    struct Slices {
        all: Vec<OneSlice>,
        /// Rings on their way, by sender and receiver.
        ways: [[VecDeque<()>; 3]; 3],
        epoch: u32,
        at: usize,
        to: usize,
        /// What the former place has sent.
        state: bool,
        put: u64,
        seen: u64,
    }

    impl Slices {
        fn new() -> Self {
            let device = DevicePlace { owner: SLICES[0], queues: vec![SLICES[0]] };
            let (members, vcpus) = (SLICES.to_vec(), vec![SLICES[0]]);
            let placement =
                Placement::new(Epoch(1), members, vcpus, Vec::new(), vec![device]).unwrap();
            let all = SLICES.map(|local| {
                let msix = Arc::new(MsixView::new(2, Arc::new(Nowhere)));
                let slot = Slot::new(local, &[SLICES[0]], Arc::new(Rng), msix).unwrap();
                let owner = PlacementOwner::new(local, placement.clone());
                OneSlice { owner, slot, taken: 3, serves: local == SLICES[0], rung: false }
            });
            let (ways, epoch) = (Default::default(), 1);
            let all = all.into();
            Self { all, ways, epoch, at: 0, to: 0, state: false, put: 0, seen: 0 }
        }

        fn ring(&mut self, at: usize, from: usize) {
            let slice = &mut self.all[at];
            match ring(&slice.slot, &slice.owner.view(), SLICES[from], QUEUE) {
                Rung::Here => slice.rung = true,
                Rung::SentOn(to) => self.ways[at][usize::from(to.0)].push_back(()),
                Rung::Unneeded => {}
                Rung::Nowhere => panic!("there is one"),
            }
        }

        fn look(&mut self, at: usize) {
            let slice = &mut self.all[at];
            if slice.serves && std::mem::take(&mut slice.rung) {
                self.seen = self.put;
            }
        }

        /// A slice takes the next step of the move, in the order of [`SliceDevices::leave`] and [`SliceDevices::come`].
        fn step(&mut self, at: usize) {
            let (former, next) = (at == self.at, at == self.to);
            let slice = &mut self.all[at];
            match slice.taken {
                0 => {
                    let (device, queue) = QUEUE;
                    let change = Change::Queue { device, queue, to: SLICES[self.to] };
                    slice.owner.advance(&[change], Epoch(self.epoch)).unwrap();
                }
                1 if former => slice.slot.remove_bells(&[QueueIndex(0)]),
                1 if next => slice.slot.add_bell(QueueIndex(0)).unwrap(),
                2 if former => (slice.serves, slice.rung, self.state) = (false, false, true),
                2 if next && !self.state => return,
                2 if next => {
                    (slice.serves, slice.rung) = (true, false);
                    self.seen = self.put;
                }
                _ => {}
            }
            slice.taken = (slice.taken + 1).min(3);
            if self.all.iter().all(|slice| slice.taken == 3) {
                self.at = self.to;
            }
        }

        fn begin(&mut self, to: usize) {
            if self.at == self.to && to != self.at {
                (self.to, self.state) = (to, false);
                self.epoch += 1;
                self.all.iter_mut().for_each(|slice| slice.taken = 0);
            }
        }

        fn deliver(&mut self, from: usize, to: usize) {
            if self.ways[from][to].pop_front().is_some() {
                self.ring(to, from);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Slices hear of moves at different times, and rings travel meanwhile.
        #[test]
        fn each_ring_is_followed_by_a_look(
            steps in prop::collection::vec((0..10_u8, 0..3_usize, 0..3_usize), 0..150),
        ) {
            let mut slices = Slices::new();
            for (kind, one, other) in steps {
                match kind {
                    0..2 => {
                        slices.put += 1;
                        slices.ring(one, one);
                    }
                    2..4 => slices.deliver(one, other),
                    4 => slices.look(one),
                    5 => slices.begin(one),
                    _ => slices.step(one),
                }
            }
            for _ in 0..9 {
                (0..3).for_each(|slice| slices.step(slice));
            }
            prop_assert_eq!(slices.at, slices.to);
            for _ in 0..200 {
                for (from, to) in (0..3).flat_map(|from| (0..3).map(move |to| (from, to))) {
                    slices.deliver(from, to);
                }
            }
            prop_assert!(slices.ways.as_flattened().iter().all(VecDeque::is_empty), "rings go round");
            (0..3).for_each(|slice| slices.look(slice));
            prop_assert_eq!(slices.seen, slices.put, "something is left in the queue");
        }
    }

    #[test]
    fn ring_for_a_queue_that_does_not_exist_goes_nowhere() {
        let slices = Slices::new();
        let OneSlice { slot, owner, .. } = &slices.all[1];
        assert_eq!(ring(slot, &owner.view(), SLICES[2], (0, 1)), Rung::Nowhere);
        assert_eq!(ring(slot, &owner.view(), SLICES[2], (1, 0)), Rung::Nowhere);
    }

    #[test]
    fn bytes_that_are_no_state_are_told() {
        let why = read(b"nothing").unwrap_err();
        assert!(why.contains("moving queue"), "{why}");
    }
}
