//! What one slice does about one vCPU: whether it runs here, and what happens to events for it.
//!
//! ```text
//!           Prepare            State             (restored)          Flip
//!   Elsewhere ------> Incoming -----> Installing ---------> Installed ----> Here, holds events of slices
//!       ^                |                |                     |           whose marker is missing
//!       +----------------+--- Discard ----+---------------------+
//!
//!           Stop              (saved)           Flip
//!   Here ---------> Stopping ---------> Stopped ----> Elsewhere, sends stragglers on
//!     ^                |                   |
//!     +---- Resume ----+-------------------+
//! ```

use super::effects::{Effect, Input};
use super::planted::PlantedBug;
use super::waiting::{Queue, Waiting};
use super::{HandoverError, Message, Move, VcpuEvent};
use crate::planted::Planted;
use std::collections::BTreeSet;
use wire::{Epoch, SliceId, VcpuId};

/// What goes on at this slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    /// Nothing.
    None,
    /// This slice is the source.
    Stopping(Move),
    Stopped(Move),
    /// It is the target.
    Incoming(Move),
    Installing(Move),
    Installed(Move),
    /// It was, and some markers are missing.
    Settling(Move),
}

/// One slice's part in the moves of one vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member<E, S> {
    local: SliceId,
    vcpu: VcpuId,
    /// Who decides about moves.
    coordinator: SliceId,
    /// All slices of the VM.
    members: BTreeSet<SliceId>,
    /// Where the vCPU is, by the placement in force here.
    place: SliceId,
    epoch: Epoch,
    role: Role,
    /// Since the vCPU was to stop.
    kept: Queue<E>,
    /// The move by which the vCPU has left, and the slices that may still take this one for its place.
    left: Option<(Move, BTreeSet<SliceId>)>,
    /// Slices whose markers have not come round.
    awaited: BTreeSet<SliceId>,
    /// What came straight from them.
    held: Queue<E>,
    /// The last move that was undone here, or would have been. Moves have ascending numbers. What begins it, or one before, comes
    /// late: threads of the coordinator send, and one may overtake another.
    undone: u64,
    out: Vec<Effect<E, S>>,
    planted: Planted<PlantedBug>,
}

impl<E: VcpuEvent, S> Member<E, S> {
    /// The part of slice `local` in the moves of a vCPU that is at `place` in the placement of this epoch.
    #[must_use]
    pub fn new(
        local: SliceId,
        vcpu: VcpuId,
        (coordinator, members): (SliceId, BTreeSet<SliceId>),
        (place, epoch): (SliceId, Epoch),
    ) -> Self {
        Self {
            local,
            vcpu,
            coordinator,
            members,
            place,
            epoch,
            role: Role::None,
            kept: Queue::new(),
            left: None,
            awaited: BTreeSet::new(),
            held: Queue::new(),
            undone: 0,
            out: Vec::new(),
            planted: Planted::default(),
        }
    }

    /// Breaks it in one way.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn plant(self, bug: PlantedBug) -> Self {
        Self { planted: Planted::some(bug), ..self }
    }

    /// Where the vCPU is, as far as this slice knows.
    #[must_use]
    pub fn place(&self) -> SliceId {
        self.place
    }

    /// Whether no move of the vCPU goes on here.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.role == Role::None
            && self.left.is_none()
            && self.kept.is_empty()
            && self.held.is_empty()
    }

    /// Takes one input and says what to do.
    ///
    /// # Errors
    /// A message that cannot happen: the VM must be stopped.
    pub fn step(&mut self, input: Input<E, S>) -> Result<Vec<Effect<E, S>>, HandoverError> {
        match input {
            Input::Local(event) => self.event(self.local, event)?,
            Input::Message { from, message } => self.message(from, message)?,
            Input::Prepared(number, result) => self.prepared(number, result),
            Input::Saved(number, result) => self.saved(number, result),
            Input::Restored(number, result) => self.restored(number, result),
            Input::Lost(slice) => self.lost(slice),
            Input::Joined(slice) => {
                self.members.insert(slice);
            }
            Input::Coordinates(slice) => self.coordinator = slice,
        }
        Ok(std::mem::take(&mut self.out))
    }

    fn message(&mut self, from: SliceId, message: Message<E, S>) -> Result<(), HandoverError> {
        let name = message.name();
        match message {
            Message::Prepare(one) | Message::Stop(one) if self.is_undone(one) => {
                self.check(one, from, name)?;
            }
            Message::Prepare(one) => {
                self.check(one, from, name)?;
                let fits = self.is_free() && one.to == self.local && self.place == one.from;
                self.require(fits, from, name)?;
                self.role = Role::Incoming(one);
                self.out.push(Effect::Prepare(one));
            }
            Message::Stop(one) => {
                self.check(one, from, name)?;
                let fits = self.is_free() && one.from == self.local && self.place == one.from;
                self.require(fits, from, name)?;
                self.role = Role::Stopping(one);
                self.out.push(Effect::Stop(one.number));
            }
            Message::State(number, state) => {
                if let Role::Incoming(one) = self.role
                    && self.is_of(one, number)
                {
                    self.require(one.from == from, from, name)?;
                    self.role = Role::Installing(one);
                    self.out.push(Effect::Install(number, state));
                }
            }
            Message::Discard(number) => {
                self.require(from == self.coordinator, from, name)?;
                self.undone = self.undone.max(number);
                self.discard(number);
            }
            Message::Resume(number) => {
                self.require(from == self.coordinator, from, name)?;
                self.undone = self.undone.max(number);
                self.resume(number);
            }
            Message::Flip(one, epoch) => self.flip(from, one, epoch)?,
            Message::Marker(number) => self.marker(from, number)?,
            Message::MarkerOf(number, slice) => self.marker_of(from, number, slice)?,
            Message::Event(event) => self.event(from, event)?,
            Message::Straggler(sender, event) => {
                let expected = match self.role {
                    Role::Installed(one) | Role::Settling(one) => {
                        one.from == from && (self.awaited.contains(&sender) || self.is_lost(sender))
                    }
                    _ => self.place == self.local && self.is_lost(sender),
                };
                self.require(expected, from, name)?;
                self.out.push(Effect::Deliver(event));
            }
            Message::Ready(_)
            | Message::Installed(_)
            | Message::Failed(..)
            | Message::Settled(_) => self.require(false, from, name)?,
        }
        Ok(())
    }

    /// Whether the coordinator sends this, of a move of this vCPU between two slices of the VM.
    fn check(&self, one: Move, from: SliceId, message: &'static str) -> Result<(), HandoverError> {
        let of_members = [one.from, one.to].iter().all(|slice| self.members.contains(slice));
        let valid = one.vcpu == self.vcpu && one.from != one.to && of_members;
        self.require(from == self.coordinator && valid, from, message)
    }

    /// What a lost slice sent before may still come by the source, which may not have heard of the loss.
    fn is_lost(&self, slice: SliceId) -> bool {
        !self.members.contains(&slice)
    }

    /// The coordinator begins a move when the one before is settled: then only a lost slice's marker can be missing.
    fn is_free(&mut self) -> bool {
        self.left = None;
        self.role == Role::None
    }

    /// Something for the vCPU, by a sender that takes this slice for its place, or that is on this slice.
    fn event(&mut self, sender: SliceId, event: E) -> Result<(), HandoverError> {
        match self.role {
            Role::Stopping(_) | Role::Stopped(_) => {
                if self.planted.has(PlantedBug::KeptDelivered) {
                    self.out.push(Effect::Deliver(event));
                } else {
                    self.kept.push(sender, event, |_| true);
                }
            }
            // The sender has heard of the flip, this slice has not.
            Role::Installed(_) if sender != self.local => self.arrive(sender, event),
            _ if self.place == self.local => self.arrive(sender, event),
            _ if sender == self.local => self.send(self.place, Message::Event(event)),
            _ => {
                let late = self.left.as_ref().is_some_and(|(_, late)| late.contains(&sender));
                self.require(late, sender, "Event")?;
                if !self.planted.has(PlantedBug::StragglerDropped) {
                    self.send(self.place, Message::Straggler(sender, event));
                }
            }
        }
        Ok(())
    }

    fn arrive(&mut self, sender: SliceId, event: E) {
        if self.awaited.contains(&sender) && !self.planted.has(PlantedBug::NothingHeld) {
            // What others sent may have been sent after it.
            self.held.push(sender, event, |other| other == sender);
        } else {
            self.out.push(Effect::Deliver(event));
        }
    }

    fn prepared(&mut self, number: u64, result: Result<(), String>) {
        let Role::Incoming(one) = self.role else { return };
        if self.is_of(one, number) {
            self.answer(one, result.map(|()| Message::Ready(number)));
        }
    }

    fn saved(&mut self, number: u64, result: Result<S, String>) {
        let Role::Stopping(one) = self.role else { return };
        if !self.is_of(one, number) {
            return;
        }
        self.role = Role::Stopped(one);
        match result {
            Ok(state) => {
                self.send(one.to, Message::State(number, state));
                if self.planted.has(PlantedBug::RunAfterState) {
                    self.out.push(Effect::Resume);
                }
            }
            Err(why) => self.send(self.coordinator, Message::Failed(number, why)),
        }
    }

    fn restored(&mut self, number: u64, result: Result<(), String>) {
        let Role::Installing(one) = self.role else { return };
        if !self.is_of(one, number) {
            return;
        }
        self.role = Role::Installed(one);
        self.awaited = self.members.clone();
        if self.planted.has(PlantedBug::RunBeforeFlip) {
            self.out.push(Effect::Run);
        }
        self.answer(one, result.map(|()| Message::Installed(number)));
    }

    fn answer(&mut self, one: Move, result: Result<Message<E, S>, String>) {
        let message = result.unwrap_or_else(|why| Message::Failed(one.number, why));
        self.send(self.coordinator, message);
    }

    fn discard(&mut self, number: u64) {
        match self.role {
            Role::Incoming(one) | Role::Installing(one) | Role::Installed(one)
                if self.is_of(one, number) => {}
            _ => return,
        }
        self.role = Role::None;
        self.awaited.clear();
        self.held.take();
        self.out.push(Effect::Discard);
    }

    fn resume(&mut self, number: u64) {
        match self.role {
            Role::Stopping(one) | Role::Stopped(one) if self.is_of(one, number) => {}
            _ => return,
        }
        if self.planted.has(PlantedBug::NoResume) {
            return;
        }
        self.role = Role::None;
        self.out.push(Effect::Resume);
        // No marker: those follow a flip.
        for kept in self.kept.take() {
            if let Waiting::Event(_, event) = kept {
                self.out.push(Effect::Deliver(event));
            }
        }
    }

    fn flip(&mut self, from: SliceId, one: Move, epoch: Epoch) -> Result<(), HandoverError> {
        self.check(one, from, "Flip")?;
        // Other parts may have moved since this vCPU did.
        self.require(epoch > self.epoch && self.place == one.from, from, "Flip")?;
        let ready = match self.role {
            Role::Stopped(known) => known == one && one.from == self.local,
            Role::Installed(known) => known == one && one.to == self.local,
            Role::None => ![one.from, one.to].contains(&self.local),
            _ => false,
        };
        self.require(ready, from, "Flip")?;
        self.epoch = epoch;
        self.place = one.to;
        self.out.push(Effect::Place(one, epoch));
        if one.from == self.local {
            self.role = Role::None;
            self.out.push(Effect::Forget);
            let mut late = self.members.clone();
            late.remove(&self.local);
            self.left = Some((one, late));
            self.send_on(one);
            self.send(one.to, Message::MarkerOf(one.number, self.local));
            return Ok(());
        }
        if one.to == self.local {
            self.role = Role::Settling(one);
            if !self.planted.has(PlantedBug::RunBeforeFlip) {
                self.out.push(Effect::Run);
            }
            if self.planted.has(PlantedBug::SettledEarly) {
                self.send(self.coordinator, Message::Settled(one.number));
            }
        }
        self.send(one.from, Message::Marker(one.number));
        Ok(())
    }

    /// Sends on what came for the vCPU while it was stopped.
    fn send_on(&mut self, one: Move) {
        for kept in self.kept.take() {
            match kept {
                Waiting::Event(..) if self.planted.has(PlantedBug::KeptDropped) => {}
                Waiting::Event(sender, event) => {
                    self.send(one.to, Message::Straggler(sender, event));
                }
                Waiting::Marker(sender) => self.pass_marker(one, sender),
            }
        }
    }

    /// A slice sends nothing here any more.
    fn marker(&mut self, from: SliceId, number: u64) -> Result<(), HandoverError> {
        match (self.role, &self.left) {
            (Role::Stopped(one), _) if one.number == number && self.members.contains(&from) => {
                let first = self.kept.push_marker(from);
                self.require(first, from, "Marker")
            }
            (_, Some((one, late))) if one.number == number && late.contains(&from) => {
                self.pass_marker(*one, from);
                Ok(())
            }
            _ => self.require(false, from, "Marker"),
        }
    }

    fn pass_marker(&mut self, one: Move, sender: SliceId) {
        self.send(one.to, Message::MarkerOf(one.number, sender));
        if let Some((_, late)) = &mut self.left {
            late.remove(&sender);
            if late.is_empty() {
                self.left = None;
            }
        }
    }

    fn marker_of(
        &mut self,
        from: SliceId,
        number: u64,
        slice: SliceId,
    ) -> Result<(), HandoverError> {
        let (Role::Installed(one) | Role::Settling(one)) = self.role else {
            return self.require(self.is_lost(slice), from, "MarkerOf");
        };
        let missing = self.awaited.contains(&slice) || self.is_lost(slice);
        let expected = one.from == from && one.number == number && missing;
        self.require(expected, from, "MarkerOf")?;
        self.no_longer_awaited(slice);
        Ok(())
    }

    fn no_longer_awaited(&mut self, slice: SliceId) {
        self.awaited.remove(&slice);
        for event in self.held.take_of(slice) {
            self.out.push(Effect::Deliver(event));
        }
        // This slice's own marker is missing until it has heard of the flip.
        if let Role::Settling(one) = self.role
            && self.awaited.is_empty()
        {
            self.role = Role::None;
            if !self.planted.has(PlantedBug::SettledEarly)
                && !self.planted.has(PlantedBug::NotSettled)
            {
                self.send(self.coordinator, Message::Settled(one.number));
            }
        }
    }

    /// Nothing comes from a lost slice: nobody waits for its marker.
    fn lost(&mut self, slice: SliceId) {
        self.members.remove(&slice);
        if let Some((_, late)) = &mut self.left {
            late.remove(&slice);
            if late.is_empty() {
                self.left = None;
            }
        }
        if self.awaited.contains(&slice) {
            self.no_longer_awaited(slice);
        }
    }

    fn send(&mut self, to: SliceId, message: Message<E, S>) {
        self.out.push(Effect::Send { to, message });
    }

    fn require(
        &self,
        holds: bool,
        from: SliceId,
        message: &'static str,
    ) -> Result<(), HandoverError> {
        if holds {
            return Ok(());
        }
        let why = "it does not fit what goes on here";
        Err(HandoverError { from, message, vcpu: self.vcpu, why })
    }

    fn is_undone(&self, one: Move) -> bool {
        one.number <= self.undone && !self.planted.has(PlantedBug::LateObeyed)
    }

    fn is_of(&self, one: Move, number: u64) -> bool {
        one.number == number || self.planted.has(PlantedBug::NumberIgnored)
    }
}
