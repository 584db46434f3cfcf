//! One state of a model, and how it takes a step.

use super::scenario::{EPOCH, Op, REST, Scenario};
use crate::store::{ArrayStore, Page};
use dsm_protocol::entry::DIRTY;
use dsm_protocol::{Access, Effect, Epoch, Gfn, Input, Message, Node, PlantedBug, SliceId, VcpuId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Something that must not happen. A state with a violation is not explored further.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A node refused a message of an honest peer.
    Protocol(String),
    /// A call that the engine could not carry out.
    Store(&'static str),
    /// A load that is not what the flat memory holds.
    Stale,
    /// A page that is free is still somebody's replica.
    Replica,
    /// A pinned page went away.
    Pin,
    /// A page that was written counts as clean.
    Clean,
}

/// A message on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Packet {
    pub(crate) message: Message,
    epoch: Epoch,
    body: Option<Page>,
}

/// What keeps messages of a pair of slices in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wire {
    pub(crate) from: u16,
    pub(crate) to: u16,
    /// A message of a run travels on its own: the first page that it is about. So the model has all that
    /// one stream of runs could do, and more.
    run: Option<Gfn>,
    /// Where a broken transport put it, 0 for where it belongs.
    stray: u8,
}

impl Wire {
    fn new(from: u16, to: u16, message: &Message, scenario: &Scenario) -> Self {
        let run = message.gfn().filter(|_| message.is_of_run());
        Self { from, to, run, stray: scenario.stray.map_or(0, |of| of(message)) }
    }
}

/// One slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slice {
    pub(crate) node: Arc<Node>,
    pub(crate) store: Arc<ArrayStore>,
    pub(crate) now: u64,
    /// It is lost, has left, or has not joined yet.
    pub(crate) lost: bool,
}

/// Where a vCPU is in its program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Progress {
    pub(crate) at: usize,
    pub(crate) wait: Wait,
    /// What it decided to do where its program leaves it free.
    choice: Option<(Gfn, Access)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Wait {
    #[default]
    None,
    Page(Gfn),
    Token,
}

/// One state of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    pub(crate) slices: Vec<Slice>,
    pub(crate) wires: BTreeMap<Wire, VecDeque<Packet>>,
    pub(crate) vcpus: Vec<Progress>,
    pub(crate) raised: u32,
    /// How many moves of homes were asked for, and how many are over where that was.
    pub(crate) moves: (usize, usize),
    /// Whether the slice has joined that is to join, and left that is to leave.
    pub(crate) joined: bool,
    pub(crate) left: bool,
    /// Whether a processor wrote through an entry, and the entry when it was taken back.
    pub(crate) written: (bool, Option<u64>),
    /// What a single memory would hold.
    pub(crate) flat: BTreeMap<Gfn, Page>,
    /// What went wrong.
    pub violation: Option<Violation>,
}

impl Cluster {
    /// The first state: contents at their homes, the prologue done.
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let slices = (0..scenario.slices).map(|local| {
            let mut store = Self::empty_store(scenario);
            let own = (0..).zip(&scenario.homes).filter(|(_, home)| **home == local);
            for (frame, _) in own {
                let page = scenario.contents.iter().find(|(gfn, _)| *gfn == frame);
                store.put_page(Gfn(frame), page.map(|(_, page)| page.clone()).unwrap_or_default());
            }
            let node = Arc::new(scenario.node(local));
            let lost = scenario.joiner == Some(local);
            Slice { node, store: Arc::new(store), now: 0, lost }
        });
        let mut cluster = Self {
            slices: slices.collect(),
            wires: BTreeMap::new(),
            vcpus: vec![Progress::default(); scenario.vcpus.len()],
            raised: 0,
            moves: (0, 0),
            joined: false,
            left: false,
            written: (false, None),
            flat: scenario.contents.iter().map(|(gfn, page)| (Gfn(*gfn), page.clone())).collect(),
            violation: None,
        };
        cluster.run_prologue(scenario);
        for (from, to, message) in &scenario.stale {
            let body = message.has_body().then(|| Page::from([(0, 0xdead)]));
            let packet = Packet { message: message.clone(), epoch: Epoch(EPOCH.0 - 1), body };
            cluster
                .wires
                .entry(Wire::new(*from, *to, message, scenario))
                .or_default()
                .push_back(packet);
        }
        cluster
    }

    pub(super) fn empty_store(scenario: &Scenario) -> ArrayStore {
        let mut store = ArrayStore::default();
        if scenario.planted == Some(PlantedBug::CleanEntryShared) {
            store.keep_clean();
        }
        store
    }

    /// Runs each step of the prologue on the slice's vCPU `slice`, alone, until it is done.
    fn run_prologue(&mut self, scenario: &Scenario) {
        for (slice, op) in &scenario.prologue {
            let vcpu = scenario.vcpus.iter().position(|vcpu| vcpu.slice == *slice);
            let vcpu = vcpu.expect("the prologue names a slice with a vCPU");
            while self.vcpus[vcpu].at == 0 && self.violation.is_none() {
                if self.vcpus[vcpu].wait == Wait::None {
                    self.run(*slice, vcpu, *op, scenario);
                }
                while let Some(wire) = self.wires.keys().next().copied() {
                    self.deliver(wire, scenario);
                }
                for slice in 0..scenario.slices {
                    self.tick(slice, scenario);
                }
            }
            self.vcpus[vcpu] = Progress::default();
        }
    }

    pub(crate) fn slice(&self, slice: u16) -> &Slice {
        &self.slices[usize::from(slice)]
    }

    fn flat(&self, gfn: Gfn, index: u16) -> u64 {
        self.flat.get(&gfn).and_then(|page| page.get(&index)).copied().unwrap_or(0)
    }

    pub(super) fn fail(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// Gives one input to a node and carries out its effects.
    pub(super) fn step(
        &mut self,
        slice: u16,
        input: Input,
        body: Option<Page>,
        scenario: &Scenario,
    ) {
        let at = &mut self.slices[usize::from(slice)];
        let store = Arc::make_mut(&mut at.store);
        store.take_in_hand(body);
        let mut effects = Vec::new();
        let result = Arc::make_mut(&mut at.node).step(at.now, input, store, &mut effects);
        store.take_in_hand(None);
        let woken = store.take_woken();
        if let Some(what) = store.misuse() {
            self.fail(Violation::Store(what));
        }
        if let Err(error) = result {
            self.fail(Violation::Protocol(error.to_string()));
        }
        for (progress, vcpu) in self.vcpus.iter_mut().zip(&scenario.vcpus) {
            if vcpu.slice == slice
                && let Wait::Page(gfn) = progress.wait
                && woken.contains(&gfn)
            {
                progress.wait = Wait::None;
            }
        }
        for effect in effects {
            self.carry_out(slice, effect, scenario);
        }
    }

    fn carry_out(&mut self, slice: u16, effect: Effect, scenario: &Scenario) {
        match effect {
            Effect::Send { to, message } => {
                let gfn = message.gfn().filter(|_| message.has_body());
                let body = gfn.map(|gfn| self.slice(slice).store.page(gfn));
                let wire =
                    self.wires.entry(Wire::new(slice, to.0, &message, scenario)).or_default();
                let epoch = self.slices[usize::from(slice)].node.epoch();
                wire.push_back(Packet { message, epoch, body });
            }
            Effect::HomeMoved { .. } => self.moves.1 += usize::from(slice == 0),
            Effect::Released { token: REST } => {}
            Effect::Released { token } | Effect::Pinned { token } => {
                let vcpu = usize::try_from(token).expect("a number of a vCPU");
                let op = scenario.vcpus[vcpu].ops.get(self.vcpus[vcpu].at);
                if let Some(Op::Interrupt(number)) = op {
                    self.raised |= 1 << number;
                }
                self.done(vcpu);
            }
        }
    }

    pub(crate) fn deliver(&mut self, wire: Wire, scenario: &Scenario) {
        let Some(packets) = self.wires.get_mut(&wire) else { return };
        let Some(packet) = packets.pop_front() else { return };
        if packets.is_empty() {
            self.wires.remove(&wire);
        }
        if self.slice(wire.to).lost {
            return;
        }
        let Packet { message, epoch, body } = packet;
        let input = Input::Message { from: SliceId(wire.from), epoch, message };
        self.step(wire.to, input, body, scenario);
    }

    /// The end of the earliest hold window that a recall waits for.
    pub(crate) fn tick(&mut self, slice: u16, scenario: &Scenario) {
        let at = &mut self.slices[usize::from(slice)];
        if let Some(due) = at.node.next_tick_ns() {
            at.now = due;
            self.step(slice, Input::Tick, None, scenario);
        }
    }

    /// The slice is gone. What it had sent may still arrive, and may as well not.
    pub(crate) fn lose(&mut self, slice: u16) {
        self.slices[usize::from(slice)].lost = true;
        self.wires.retain(|wire, _| wire.to != slice);
    }

    /// Asks for the next move of a home, from slice 0.
    pub(crate) fn move_home(&mut self, scenario: &Scenario) {
        let Some((first, pages, to)) = scenario.moves.get(self.moves.0) else { return };
        self.moves.0 += 1;
        let number = u32::try_from(self.moves.0).expect("few moves");
        let (gfn, to, placement) = (Gfn(*first), SliceId(*to), Epoch(EPOCH.0 + number));
        self.step(0, Input::MoveHome { gfn, pages: *pages, to, placement }, None, scenario);
    }

    pub(crate) fn choose(&mut self, vcpu: usize, gfn: Gfn, access: Access, scenario: &Scenario) {
        self.vcpus[vcpu].choice = Some((gfn, access));
        self.run_next(vcpu, scenario);
    }

    pub(crate) fn has_chosen(&self, vcpu: usize) -> bool {
        self.vcpus[vcpu].choice.is_some()
    }

    pub(crate) fn run_next(&mut self, vcpu: usize, scenario: &Scenario) {
        let Some(op) = scenario.vcpus[vcpu].ops.get(self.vcpus[vcpu].at) else { return };
        self.run(scenario.vcpus[vcpu].slice, vcpu, *op, scenario);
    }

    fn done(&mut self, vcpu: usize) {
        let progress = &mut self.vcpus[vcpu];
        *progress = Progress { at: progress.at + 1, ..Progress::default() };
    }

    /// True when the step would spin: it has access, and what it waits for is not there.
    pub(crate) fn spins(&self, slice: u16, op: Op) -> bool {
        let store = &self.slice(slice).store;
        match op {
            Op::Await(gfn, index, value) => {
                store.access(Gfn(gfn)) >= Access::Read && store.load(Gfn(gfn), index) != value
            }
            Op::Lock(gfn) => {
                store.access(Gfn(gfn)) == Access::Write && store.load(Gfn(gfn), 0) != 0
            }
            Op::AwaitInterrupt(number) => self.raised & (1 << number) == 0,
            Op::AwaitLeave => !self.left,
            Op::AwaitJoin => !self.joined,
            _ => false,
        }
    }

    fn run(&mut self, slice: u16, vcpu: usize, op: Op, scenario: &Scenario) {
        let needs = self.vcpus[vcpu].choice.or_else(|| op.needs());
        let needs = needs.map(|needs| self.descend(slice, op, needs));
        if let Some((gfn, want)) = needs {
            if self.slice(slice).store.access(gfn) < want {
                self.vcpus[vcpu].wait = Wait::Page(gfn);
                self.step(slice, Input::Fault { gfn, want }, None, scenario);
                return;
            }
            self.touch(slice, op, needs);
            self.done(vcpu);
            return;
        }
        let token = u64::try_from(vcpu).expect("few vCPUs");
        let input = match op {
            Op::Interrupt(_) => Input::Release { tokens: token..token + 1 },
            Op::Pin(gfn, write) => Input::Pin { gfn: Gfn(gfn), want: pin_access(write), token },
            Op::Unpin(gfn, write) => {
                if self
                    .slice(slice)
                    .store
                    .access(Gfn(gfn))
                    .max(self.slice(slice).node.access(Gfn(gfn)))
                    < pin_access(write)
                {
                    self.fail(Violation::Pin);
                }
                Input::Unpin { gfn: Gfn(gfn) }
            }
            Op::Prefetch(gfn, pages, write) => {
                Input::Prefetch { gfn: Gfn(gfn), pages, want: pin_access(write) }
            }
            Op::UpgradeAhead(gfn) => Input::UpgradeAhead { gfn: Gfn(gfn) },
            Op::Root(gfn) => {
                let vcpu = VcpuId(u32::try_from(vcpu).expect("few vCPUs"));
                Input::Root { vcpu, gfn: Gfn(gfn) }
            }
            Op::Elapse => {
                self.slices[usize::from(slice)].now += 2_000_000_000;
                Input::Tick
            }
            _ => {
                self.done(vcpu);
                return;
            }
        };
        if matches!(op, Op::Interrupt(_) | Op::Pin(..)) {
            self.vcpus[vcpu].wait = Wait::Token;
        } else {
            self.done(vcpu);
        }
        self.step(slice, input, None, scenario);
    }

    /// Where a walk faults: in the table itself, or in the table that its entry points to.
    fn descend(&self, slice: u16, op: Op, needs: (Gfn, Access)) -> (Gfn, Access) {
        let store = &self.slice(slice).store;
        match op {
            Op::Descend(gfn, index) if store.access(Gfn(gfn)) == Access::Write => {
                let entry = store.load(Gfn(gfn), index);
                if entry == 0 { needs } else { (Gfn(entry >> 12), Access::Write) }
            }
            _ => needs,
        }
    }

    /// A load or store that has its access.
    fn touch(&mut self, slice: u16, op: Op, needs: Option<(Gfn, Access)>) {
        let load = |gfn, index| self.slice(slice).store.load(Gfn(gfn), index);
        match op {
            Op::Load(gfn, index) | Op::Walk(gfn, index)
                if load(gfn, index) != self.flat(Gfn(gfn), index) =>
            {
                self.fail(Violation::Stale);
            }
            Op::Any(_) => {
                let (gfn, access) = needs.expect("chosen");
                let value = self.flat(gfn, 0);
                if load(gfn.0, 0) != value {
                    self.fail(Violation::Stale);
                }
                if access == Access::Write {
                    self.put(slice, gfn.0, 0, value + 1);
                }
            }
            Op::Store(gfn, index, value) => self.put(slice, gfn, index, value),
            Op::Race(gfn, index, value) => self.store(slice, gfn, index, value),
            Op::WriteThrough(gfn, index) => {
                let store = Arc::make_mut(&mut self.slices[usize::from(slice)].store);
                self.written.0 |= store.write_through(Gfn(gfn), index);
            }
            Op::TakeBack(gfn, index) => {
                self.written.1 = Some(load(gfn, index));
                self.put(slice, gfn, index, 0);
            }
            Op::Lock(gfn) => self.put(slice, gfn, 0, 1),
            Op::Unlock(gfn) => self.put(slice, gfn, 0, 0),
            Op::Reuse(gfn, index, value) => {
                if self.slices.iter().any(|slice| !slice.lost && slice.node.is_replica(Gfn(gfn))) {
                    self.fail(Violation::Replica);
                }
                self.put(slice, gfn, index, value);
            }
            _ => {}
        }
        if let (true, Some(entry)) = self.written
            && entry & DIRTY == 0
        {
            self.fail(Violation::Clean);
        }
    }

    fn store(&mut self, slice: u16, gfn: u64, index: u16, value: u64) {
        Arc::make_mut(&mut self.slices[usize::from(slice)].store).store(Gfn(gfn), index, value);
    }

    fn put(&mut self, slice: u16, gfn: u64, index: u16, value: u64) {
        self.store(slice, gfn, index, value);
        let page = self.flat.entry(Gfn(gfn)).or_default();
        if value == 0 {
            page.remove(&index);
        } else {
            page.insert(index, value);
        }
    }
}

fn pin_access(write: bool) -> Access {
    if write { Access::Write } else { Access::Read }
}
