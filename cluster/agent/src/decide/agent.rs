//! The agent.

use super::entry::{Entry, Journal, Lowest, Reserved};
use super::ids::{Generation, Operation, SliceName, Term, Token, Vm};
use super::planted::{Planted, PlantedBug};
use super::request::{Asked, Proof, Refusal, Reply, Request, Ticket};
use super::slice::{End, Manner, Order, Phase, Process, Slice};
use scheduler::Resources;
use std::collections::VecDeque;

/// Slices and reservations that an agent keeps, and requests that wait for a fence.
const SLICES_MAX: usize = 1024;
const RESERVED_MAX: usize = 1024;
const WAITING_MAX: usize = 1024;
/// VMs whose lowest life is known, and how long without a slice here: longer than any request is on its way.
const VMS_MAX: usize = 65_536;
const KEPT_MS: u64 = 24 * 3600 * 1000;
/// A reservation lasts at most so many milliseconds.
pub const RESERVED_MAX_MS: u64 = 600_000;

/// What does not change while an agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// What slices may use of the host, all together.
    pub capacity: Resources,
}

/// What an agent hears.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A request.
    Asked(Asked),
    /// The process of a start is there.
    Started(Token, Process),
    /// The process of a start has ended, or could not be started.
    Ended(Token, End),
    /// Time has passed.
    Tick,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Write all of this to the journal, or none of it. It is on the disk before anything else is done. If it cannot be, nothing
    /// else is done, and the agent begins again from its journal.
    Record(Vec<Entry>),
    /// Start the process of a slice. It carries the token.
    Start {
        /// The slice.
        slice: SliceName,
        /// Which life of its VM.
        generation: Generation,
        /// What its process carries.
        token: Token,
        /// What it is to be.
        order: Order,
    },
    /// Have a process end, if it is still this one.
    End {
        /// What it carries.
        token: Token,
        /// Which.
        process: Process,
        /// How.
        manner: Manner,
    },
    /// Answer.
    Answer {
        /// To whom.
        ticket: Ticket,
        /// What.
        result: Result<Reply, Refusal>,
    },
}

impl Effect {
    /// For who looks where an agent has died.
    pub(crate) fn word(&self) -> String {
        match self {
            Self::Record(entries) => format!("a record of {} entries", entries.len()),
            Self::Start { slice, .. } => format!("the start of {slice:?}"),
            Self::End { process, .. } => format!("the end of {process:?}"),
            Self::Answer { .. } => "an answer".to_owned(),
        }
    }
}

/// The agent of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    pub(super) settings: Settings,
    pub(super) journal: Journal,
    /// Who waits until a life of a VM does not run.
    waiting: VecDeque<(Ticket, Vm, Generation)>,
    pub(super) planted: Planted,
}

impl Agent {
    pub(super) fn new(settings: Settings, journal: Journal, planted: Planted) -> Self {
        Self { settings, journal, waiting: VecDeque::new(), planted }
    }

    /// What it would find in its journal.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// What nobody has, and nobody has reserved.
    #[must_use]
    pub fn free(&self, now: u64) -> Resources {
        self.journal.free(self.settings.capacity, now, |_| true)
    }

    /// What follows.
    #[must_use]
    pub fn step(&mut self, now: u64, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Asked(Asked { term, ticket, request }) => {
                if let Err(refusal) = self.hear_term(term, &mut effects) {
                    effects.push(Effect::Answer { ticket, result: Err(refusal) });
                } else {
                    self.take(now, ticket, request, &mut effects);
                }
            }
            Input::Started(token, process) => self.started(token, process, &mut effects),
            Input::Ended(token, end) => self.ended(now, token, end, &mut effects),
            Input::Tick => self.tick(now, &mut effects),
        }
        effects
    }

    pub(super) fn record(&mut self, entries: Vec<Entry>, effects: &mut Vec<Effect>) {
        entries.iter().for_each(|entry| self.journal.take(entry));
        effects.push(Effect::Record(entries));
    }

    fn hear_term(&mut self, got: Term, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let have = self.journal.term;
        if got < have && !self.planted.has(PlantedBug::TermIgnored) {
            return Err(Refusal::StaleTerm { have, got });
        }
        if got > have {
            if self.planted.has(PlantedBug::TermNotRecorded) {
                self.journal.term = got;
            } else {
                self.record(vec![Entry::Term(got)], effects);
            }
        }
        Ok(())
    }

    fn take(&mut self, now: u64, ticket: Ticket, request: Request, effects: &mut Vec<Effect>) {
        let result = match request {
            Request::Reserve { operation, slice, generation, resources, lasts } => {
                let until = now.saturating_add(lasts.min(RESERVED_MAX_MS));
                let reserved = Reserved { slice, generation, resources, until };
                self.reserve(now, operation, reserved, effects)
            }
            Request::Release { operation } => {
                if self.journal.reserved.contains_key(&operation) {
                    self.record(vec![Entry::Reserved(operation, None)], effects);
                }
                Ok(Reply::Done)
            }
            Request::Ensure { slice, generation, order } => {
                self.ensure(now, slice, generation, order, effects)
            }
            Request::Resize { slice, generation, resources } => {
                self.resize(now, slice, generation, resources, effects)
            }
            Request::Stop { slice, generation, manner } => {
                self.stop(slice, generation, manner, effects)
            }
            Request::Remove { slice, generation } => self.remove(slice, generation, effects),
            Request::Fence { vm, generation } => {
                return self.fence(now, (ticket, vm, generation), effects);
            }
        };
        effects.push(Effect::Answer { ticket, result });
    }

    /// The lowest life of a VM that may run here.
    fn lowest(&self, vm: Vm) -> Generation {
        self.journal.lowest.get(&vm).map_or(Generation(0), |lowest| lowest.generation)
    }

    fn check_generation(&self, vm: Vm, got: Generation) -> Result<(), Refusal> {
        let have = self.lowest(vm);
        if got == Generation(u64::MAX) {
            return Err(Refusal::HighestGeneration(got));
        }
        if got < have && !self.planted.has(PlantedBug::FenceIgnored) {
            return Err(Refusal::StaleGeneration { have, got });
        }
        let is_known = self.journal.lowest.contains_key(&vm);
        if !is_known && self.journal.lowest.len() >= VMS_MAX {
            return Err(Refusal::TooMany("VMs"));
        }
        Ok(())
    }

    fn reserve(
        &mut self,
        now: u64,
        operation: Operation,
        reserved: Reserved,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Refusal> {
        self.check_generation(reserved.slice.vm, reserved.generation)?;
        if self.slice(reserved.slice, reserved.generation).is_ok() {
            // It is here, with what was reserved for it.
            return Ok(Reply::Done);
        }
        let is_known = self.journal.reserved.contains_key(&operation);
        if !is_known && self.journal.reserved.len() >= RESERVED_MAX {
            return Err(Refusal::TooMany("reservations"));
        }
        let ignored = self.planted.has(PlantedBug::ReservationIgnored);
        let counts = |other: Operation| other != operation && !ignored;
        let free = self.journal.free(self.settings.capacity, now, counts);
        if !reserved.resources.fits_in(free) {
            return Err(Refusal::NoCapacity { free });
        }
        self.record(vec![Entry::Reserved(operation, Some(reserved))], effects);
        Ok(Reply::Done)
    }

    fn ensure(
        &mut self,
        now: u64,
        name: SliceName,
        generation: Generation,
        order: Order,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Refusal> {
        self.check_generation(name.vm, generation)?;
        let twice = self.planted.has(PlantedBug::StartedTwice);
        if let Ok(slice) = self.slice(name, generation)
            && !twice
        {
            let same = slice.order == order;
            let reply = Reply::Slice(Box::new(slice.clone()));
            return if same { Ok(reply) } else { Err(Refusal::GenerationConflict) };
        }
        let of_vm = self.journal.slices.iter().filter(|(other, _)| other.vm == name.vm);
        let older = of_vm.filter(|(_, it)| it.may_run() && it.generation != generation);
        if let Some((_, older)) = older.max_by_key(|(_, it)| it.generation)
            && !self.planted.has(PlantedBug::LivesOverlap)
        {
            return Err(Refusal::OlderRuns(older.generation));
        }
        if self.journal.slices.len() >= SLICES_MAX && !self.journal.slices.contains_key(&name) {
            return Err(Refusal::TooMany("slices"));
        }
        let own = |it: &Reserved| it.slice == name && it.generation == generation;
        let ignored = self.planted.has(PlantedBug::ReservationIgnored);
        let own_operations: Vec<Operation> =
            self.journal.reserved.iter().filter(|(_, it)| own(it)).map(|(id, _)| *id).collect();
        let counts = |other: Operation| !own_operations.contains(&other) && !ignored;
        let free = self.journal.free(self.settings.capacity, now, counts);
        if !order.resources.fits_in(free) {
            return Err(Refusal::NoCapacity { free });
        }
        Ok(self.start(now, name, generation, order, &own_operations, effects))
    }

    fn start(
        &mut self,
        now: u64,
        name: SliceName,
        generation: Generation,
        order: Order,
        reserved: &[Operation],
        effects: &mut Vec<Effect>,
    ) -> Reply {
        let token = self.journal.next_token;
        let phase = Phase::Starting;
        let slice = Slice { generation, order: order.clone(), token, phase, stop: None };
        let mut entries = vec![
            Entry::NextToken(Token(token.0 + 1)),
            Entry::Slice(name, Some(slice.clone())),
            // No earlier life of the VM comes after this one.
            Entry::Lowest(name.vm, Lowest { generation, since: now }),
        ];
        entries.extend(reserved.iter().map(|operation| Entry::Reserved(*operation, None)));
        let start = Effect::Start { slice: name, generation, token, order };
        if self.planted.has(PlantedBug::StartedFirst) {
            effects.push(start);
            self.record(entries, effects);
        } else {
            self.record(entries, effects);
            effects.push(start);
        }
        Reply::Slice(Box::new(slice))
    }

    /// The slice in this life of its VM.
    fn slice(&self, name: SliceName, generation: Generation) -> Result<&Slice, Refusal> {
        let slice = self.journal.slices.get(&name);
        slice.filter(|slice| slice.generation == generation).ok_or(Refusal::Unknown)
    }

    fn resize(
        &mut self,
        now: u64,
        name: SliceName,
        generation: Generation,
        resources: Resources,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Refusal> {
        let mut slice = self.slice(name, generation)?.clone();
        // What has ended uses nothing.
        if slice.may_run() && slice.order.resources != resources {
            let (own, free) = (slice.order.resources, self.free(now));
            let is_there = resources.fits_in(own) || resources.fits_in(free.plus(own));
            if !is_there && !self.planted.has(PlantedBug::ResizeUnchecked) {
                return Err(Refusal::NoCapacity { free });
            }
            slice.order.resources = resources;
            self.record(vec![Entry::Slice(name, Some(slice.clone()))], effects);
        }
        Ok(Reply::Slice(Box::new(slice)))
    }

    fn stop(
        &mut self,
        name: SliceName,
        generation: Generation,
        manner: Manner,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Refusal> {
        let mut slice = self.slice(name, generation)?.clone();
        let manner = slice.stop.map_or(manner, |before| before.max(manner));
        if slice.may_run() && slice.stop != Some(manner) {
            slice.stop = Some(manner);
            self.record(vec![Entry::Slice(name, Some(slice.clone()))], effects);
        }
        if let Phase::Running(process) = slice.phase {
            effects.push(Effect::End { token: slice.token, process, manner });
        }
        Ok(Reply::Slice(Box::new(slice)))
    }

    fn remove(
        &mut self,
        name: SliceName,
        generation: Generation,
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, Refusal> {
        let Ok(slice) = self.slice(name, generation) else {
            let is_gone = !self.journal.slices.contains_key(&name);
            return if is_gone { Ok(Reply::Done) } else { Err(Refusal::Unknown) };
        };
        if !self.planted.has(PlantedBug::RunningRemoved) {
            if slice.may_run() {
                return Err(Refusal::Runs);
            }
            if generation >= self.lowest(name.vm) {
                return Err(Refusal::NotFenced(generation));
            }
        }
        self.record(vec![Entry::Slice(name, None)], effects);
        Ok(Reply::Done)
    }

    fn fence(
        &mut self,
        now: u64,
        (ticket, vm, generation): (Ticket, Vm, Generation),
        effects: &mut Vec<Effect>,
    ) {
        let next = self.lowest(vm).max(Generation(generation.0.saturating_add(1)));
        if let Err(refusal) = self.check_generation(vm, next) {
            return effects.push(Effect::Answer { ticket, result: Err(refusal) });
        }
        let over = self.journal.reserved.iter();
        let over = over.filter(|(_, it)| it.slice.vm == vm && it.generation < next);
        let mut entries: Vec<Entry> =
            over.map(|(operation, _)| Entry::Reserved(*operation, None)).collect();
        // Also if it is fenced already: it is not forgotten soon after it was confirmed.
        let lowest = Lowest { generation: next, since: now };
        entries.push(Entry::Lowest(vm, lowest));
        if self.planted.has(PlantedBug::FenceNotRecorded) {
            self.journal.lowest.insert(vm, lowest);
        } else {
            self.record(entries, effects);
        }
        self.end_fenced(effects);
        self.waiting.push_back((ticket, vm, generation));
        self.confirm_fences(effects);
        // Who has waited for longest has most likely gone.
        if self.waiting.len() > WAITING_MAX
            && let Some((ticket, ..)) = self.waiting.pop_front()
        {
            let result = Err(Refusal::TooMany("requests that wait for a fence"));
            effects.push(Effect::Answer { ticket, result });
        }
    }

    /// Kills what may not run here any more.
    pub(super) fn end_fenced(&self, effects: &mut Vec<Effect>) {
        for (name, slice) in &self.journal.slices {
            if slice.generation < self.lowest(name.vm)
                && let Phase::Running(process) = slice.phase
            {
                let token = slice.token;
                effects.push(Effect::End { token, process, manner: Manner::AtOnce });
            }
        }
    }

    /// Answers those whose fence is there.
    fn confirm_fences(&mut self, effects: &mut Vec<Effect>) {
        let early = self.planted.has(PlantedBug::FencedEarly);
        let misses_starts = self.planted.has(PlantedBug::FenceMissesStarts);
        let slices = &self.journal.slices;
        let runs = |vm: Vm, generation: Generation| {
            slices.iter().any(|(name, slice)| {
                let counts = !(misses_starts && slice.phase == Phase::Starting);
                name.vm == vm && slice.generation <= generation && slice.may_run() && counts
            })
        };
        self.waiting.retain(|(ticket, vm, generation)| {
            let waits = runs(*vm, *generation) && !early;
            if !waits {
                let proof = Proof { vm: *vm, generation: *generation };
                let (ticket, result) = (*ticket, Ok(Reply::Fenced(proof)));
                effects.push(Effect::Answer { ticket, result });
            }
            waits
        });
    }

    /// The slice that was started so.
    fn of_token(&self, token: Token) -> Option<(SliceName, Slice)> {
        let (name, slice) = self.journal.slices.iter().find(|(_, it)| it.token == token)?;
        Some((*name, slice.clone()))
    }

    fn started(&mut self, token: Token, process: Process, effects: &mut Vec<Effect>) {
        let known = self.of_token(token).filter(|(_, slice)| slice.may_run());
        let Some((name, slice)) = known else {
            // Nobody knows of it any more.
            return effects.push(Effect::End { token, process, manner: Manner::AtOnce });
        };
        let is_fenced = slice.generation < self.lowest(name.vm);
        let slice = Slice { phase: Phase::Running(process), ..slice };
        let manner = if is_fenced { Some(Manner::AtOnce) } else { slice.stop };
        self.record(vec![Entry::Slice(name, Some(slice))], effects);
        effects.extend(manner.map(|manner| Effect::End { token, process, manner }));
    }

    fn ended(&mut self, now: u64, token: Token, end: End, effects: &mut Vec<Effect>) {
        let Some((name, slice)) = self.of_token(token) else { return };
        // How it has ended may be told later than that it has.
        if !slice.may_run() && (slice.phase != Phase::Ended(End::Unseen) || end == End::Unseen) {
            return;
        }
        let slice = Slice { phase: Phase::Ended(end), ..slice };
        let lowest = Lowest { generation: self.lowest(name.vm), since: now };
        let entries = vec![Entry::Slice(name, Some(slice)), Entry::Lowest(name.vm, lowest)];
        self.record(entries, effects);
        self.confirm_fences(effects);
    }

    fn tick(&mut self, now: u64, effects: &mut Vec<Effect>) {
        let mut entries = Vec::new();
        if !self.planted.has(PlantedBug::NeverExpires) {
            let over = self.journal.reserved.iter().filter(|(_, it)| it.until <= now);
            entries.extend(over.map(|(operation, _)| Entry::Reserved(*operation, None)));
        }
        let is_here = |vm: &Vm| self.journal.slices.keys().any(|name| name.vm == *vm);
        let old = self
            .journal
            .lowest
            .iter()
            .filter(|(vm, it)| now.saturating_sub(it.since) > KEPT_MS && !is_here(vm));
        entries.extend(old.map(|(vm, _)| Entry::Forgotten(*vm)));
        if !entries.is_empty() {
            self.record(entries, effects);
        }
    }
}
