//! The simulated cluster: nodes, network, vCPUs and the clock.

use super::joins::Joins;
use super::leaves::Leaves;
use super::moves::Moves;
use super::random::Random;
use super::report::{Failure, Report};
use super::saves::{REST, Saves};
use super::setup::Setup;
use super::workload::{self, DATA, HALVES, Kernel, MIDDLE, ROOT, Step, Workload};
use crate::store::{ArrayStore, Page};
use dsm_protocol::{
    Config, Effect, Epoch, Gfn, HoldPolicy, HomeRange, HomeTable, Input, Mechanisms, Message, Node,
    Replicate, SliceId, VcpuId,
};
use std::collections::{BTreeMap, VecDeque};

/// Steps of the clock after which a run counts as livelocked.
const EVENTS_MAX: u64 = 50_000_000;
pub(super) const EPOCH: Epoch = Epoch(1);

#[derive(Debug)]
pub(super) enum Event {
    Deliver { from: u16, to: u16, message: Message, body: Option<Page> },
    Run(usize),
    Tick(u16),
    MoveHome,
    Leave,
}

#[derive(Debug)]
pub(super) struct Slice {
    pub(super) node: Node,
    pub(super) config: Config,
    pub(super) store: ArrayStore,
    /// The tick that is already in the calendar.
    pub(super) tick: Option<u64>,
    /// It has left, or has not joined yet.
    pub(super) gone: bool,
}

#[derive(Debug)]
pub(super) struct Vcpu {
    pub(super) slice: u16,
    pub(super) plan: VecDeque<Step>,
    pub(super) steps_left: u32,
    pub(super) waits_for: Option<Gfn>,
    pub(super) since: u64,
    pub(super) busy: bool,
}

pub(super) struct World {
    pub(super) setup: Setup,
    pub(super) workload: Workload,
    pub(super) random: Random,
    pub(super) now: u64,
    pub(super) number: u64,
    pub(super) calendar: BTreeMap<(u64, u64), Event>,
    /// When the last message of a pair arrives, of those that arrive in order.
    pub(super) arrival: BTreeMap<(u16, u16), u64>,
    pub(super) slices: Vec<Slice>,
    pub(super) vcpus: Vec<Vcpu>,
    pub(super) kernel: Kernel,
    pub(super) flat: BTreeMap<(u64, u16), u64>,
    pub(super) frames: u64,
    pub(super) slow: u64,
    pub(super) report: Report,
    /// Where all is saved and restored now and then.
    pub(super) saves: Option<Saves>,
    /// Homes that move, if they do.
    pub(super) moves: Option<Moves>,
    /// Slices that leave, if they do.
    pub(super) leaves: Option<Leaves>,
    /// Slices that join, if they do.
    pub(super) joins: Option<Joins>,
}

/// Runs one cluster to its end.
///
/// # Errors
/// The first thing that must not happen.
pub fn run(setup: Setup) -> Result<Report, Failure> {
    World::new(setup).run_to_end()
}

/// Runs one cluster to its end. At random moments all vCPUs stop, all nodes come to rest and are saved, and new ones go
/// on from what was saved.
///
/// # Errors
/// The first thing that must not happen.
pub fn run_saved(setup: Setup) -> Result<Report, Failure> {
    let mut world = World::new(setup);
    world.saves = Some(Saves::new(setup.seed));
    world.run_to_end()
}

impl World {
    fn run_to_end(mut self) -> Result<Report, Failure> {
        let mut events = 0;
        while let Some(((at, _), event)) = self.calendar.pop_first() {
            self.now = at;
            events += 1;
            if events > EVENTS_MAX {
                return Err(Failure("it does not end".to_owned()));
            }
            self.happen(event)?;
            self.look_at_leaves(events)?;
            self.look_at_joins(events)?;
            if self.saves.as_mut().is_some_and(|saves| saves.is_time(events)) {
                self.save_and_restore()?;
            }
        }
        self.finish()
    }

    pub(super) fn happen(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Deliver { to, .. } if self.slices[usize::from(to)].gone => {
                self.fail("a message goes to a slice that has left")
            }
            Event::Deliver { from, to, message, body } => {
                self.check_stable(from, &message, body.as_ref())?;
                let input = Input::Message { from: SliceId(from), epoch: EPOCH, message };
                self.step(to, input, body)
            }
            Event::Run(vcpu) => self.run(vcpu),
            Event::Tick(slice) => {
                self.slices[usize::from(slice)].tick = None;
                self.step(slice, Input::Tick, None)
            }
            Event::MoveHome => self.move_home(),
            Event::Leave => self.try_leave(),
        }
    }

    fn new(setup: Setup) -> Self {
        let mut random = Random::new(setup.seed);
        let kind = Workload::ALL[usize::try_from(random.below(5)).expect("small")];
        let workload = setup.workload.unwrap_or(kind);
        let frames = DATA + 4 + random.below(300);
        let mut joins = setup.joins.then(|| Joins::new(setup.seed));
        let all: Vec<u16> = (0..setup.slices).collect();
        let there = joins.as_mut().map_or(all, |joins| joins.first_members(setup.slices));
        let slices = u64::try_from(there.len()).expect("small");
        // Unequal homes: ranges of random length, each at a random slice.
        let mut ranges = Vec::new();
        let mut start = 0;
        while start < frames {
            let end = frames.min(start + 1 + random.below(frames / 2));
            let home = SliceId(there[usize::try_from(random.below(slices)).expect("small")]);
            ranges.push(HomeRange { frames: start..end, home });
            start = end;
        }
        let homes = HomeTable::new(ranges).expect("ranges follow one another");
        let hold = match random.below(3) {
            // Without any window a contended page leaves its own home in the step that brings it.
            0 => HoldPolicy::fixed(1_000),
            1 => HoldPolicy::default(),
            _ => {
                HoldPolicy { min_ns: 1_000, max_ns: 50_000, percent: 100, ..HoldPolicy::default() }
            }
        };
        let mut world = Self {
            setup,
            workload,
            now: 0,
            number: 0,
            calendar: BTreeMap::new(),
            arrival: BTreeMap::new(),
            slices: Vec::new(),
            vcpus: Vec::new(),
            kernel: Kernel::new(),
            flat: BTreeMap::new(),
            frames,
            slow: 20_000 << random.below(6),
            report: Report {
                workload,
                frames,
                faults: 0,
                messages: 0,
                conversions: 0,
                demotions: 0,
                conflicts: 0,
                deferrals: 0,
                saves: 0,
                saved_replicas: 0,
                longest_ns: 0,
                moves: 0,
                moved_pages: 0,
                late_requests: 0,
                left: 0,
                joined: 0,
                refusals: 0,
            },
            saves: None,
            moves: (setup.moves || setup.leaves).then(|| Moves::new(setup.seed)),
            leaves: setup.leaves.then(|| Leaves::new(setup.seed)),
            joins,
            random,
        };
        let half = HALVES[usize::try_from(setup.seed % 2).expect("small")];
        for local in 0..setup.slices {
            world.add_slice(local, &there, half, &homes, hold);
        }
        world.add_vcpus(&there);
        world.plan_move();
        world
    }

    /// A store in which nothing is.
    pub(super) fn empty_store(&self) -> ArrayStore {
        let mut store = ArrayStore::default();
        if self.setup.seed.is_multiple_of(3) {
            store.tell_untouched();
        }
        store
    }

    fn add_slice(
        &mut self,
        local: u16,
        there: &[u16],
        half: u16,
        homes: &HomeTable,
        hold: HoldPolicy,
    ) {
        let gone = !there.contains(&local);
        let mut store = self.empty_store();
        for frame in 0..self.frames {
            if homes.home(Gfn(frame)) == Some(SliceId(local)) {
                let root = Page::from([(half, workload::table(MIDDLE))]);
                store.put_page(Gfn(frame), if frame == ROOT { root } else { Page::new() });
            }
        }
        let config = Config {
            local: SliceId(local),
            slices: (0..self.setup.slices)
                .filter(|slice| *slice == local || there.contains(slice))
                .map(SliceId)
                .collect(),
            homes: homes.clone(),
            epoch: EPOCH,
            hold,
            mechanisms: Mechanisms::ALL,
            replicate: if self.workload.has_tables() {
                Replicate::AllTables
            } else {
                Replicate::Nothing
            },
            vcpus: 64,
            planted: self.setup.planted,
        };
        let node = Node::new(config.clone());
        self.slices.push(Slice { node, config, store, tick: None, gone });
    }

    /// One or two vCPUs a slice; from three slices on, one slice may have memory only.
    fn add_vcpus(&mut self, there: &[u16]) {
        let bare = if self.setup.slices > 2 { self.random.below(4) } else { 9 };
        for slice in (0..self.setup.slices).filter(|slice| u64::from(*slice) != bare) {
            let at = usize::from(slice);
            let slice = if there.contains(&slice) { slice } else { there[at % there.len()] };
            for _ in 0..=self.random.below(2) {
                let at = self.vcpus.len();
                self.vcpus.push(Vcpu {
                    slice,
                    plan: VecDeque::new(),
                    steps_left: self.setup.steps,
                    waits_for: None,
                    since: 0,
                    busy: false,
                });
                let vcpu = VcpuId(u32::try_from(at).expect("few vCPUs"));
                let start = self.random.below(10_000);
                self.at(start, Event::Run(at));
                let root = Input::Root { vcpu, gfn: Gfn(ROOT) };
                self.step(slice, root, None).expect("nothing is sent but the root");
            }
        }
    }

    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.calendar.insert((time, self.number), event);
    }

    pub(super) fn fail<T>(&self, what: &str) -> Result<T, Failure> {
        let saved = if self.saves.is_some() { " --save-restore" } else { "" };
        let replay = self.setup.replay();
        Err(Failure(format!("{what} at {} ns; replay: {replay}{saved}", self.now)))
    }

    /// Gives one input to a node and carries out its effects.
    pub(super) fn step(
        &mut self,
        slice: u16,
        input: Input,
        body: Option<Page>,
    ) -> Result<(), Failure> {
        let now = self.now;
        let at = &mut self.slices[usize::from(slice)];
        at.store.take_in_hand(body);
        let mut effects = Vec::new();
        let result = at.node.step(now, input, &mut at.store, &mut effects);
        let woken = at.store.take_woken();
        let misuse = at.store.misuse();
        let due = at.node.next_tick_ns();
        if let Some(due) = due.filter(|due| at.tick.is_none_or(|tick| *due < tick)) {
            at.tick = Some(due);
            self.at(due.max(now), Event::Tick(slice));
        }
        if let Err(error) = result {
            return self.fail(&error.to_string());
        }
        if let Some(what) = misuse {
            return self.fail(what);
        }
        for vcpu in 0..self.vcpus.len() {
            let waits_for = self.vcpus[vcpu].waits_for;
            if self.vcpus[vcpu].slice == slice && waits_for.is_some_and(|gfn| woken.contains(&gfn))
            {
                self.vcpus[vcpu].waits_for = None;
                let soon = now + self.random.below(500);
                self.at(soon, Event::Run(vcpu));
            }
        }
        for effect in effects {
            self.carry_out(slice, effect);
        }
        Ok(())
    }

    fn carry_out(&mut self, slice: u16, effect: Effect) {
        match effect {
            Effect::Send { to, message } => {
                let gfn = message.gfn().filter(|_| message.has_body());
                let body = gfn.map(|gfn| self.slices[usize::from(slice)].store.page(gfn));
                // A stream of runs may be full for long; what else is sent overtakes it.
                let seldom = if message.is_of_run() { 6 } else { 50 };
                let range = if self.random.one_in(seldom) { 40 * self.slow } else { self.slow };
                let mut time = self.now + 1_000 + self.random.below(range);
                if !message.is_of_run() {
                    let last = self.arrival.entry((slice, to.0)).or_default();
                    time = time.max(*last + 1);
                    *last = time;
                }
                self.at(time, Event::Deliver { from: slice, to: to.0, message, body });
            }
            Effect::HomeMoved { gfn, .. } => self.home_moved(slice, gfn),
            Effect::Released { token: REST } => {}
            Effect::Released { token } | Effect::Pinned { token } => {
                self.done(usize::try_from(token).expect("a number of a vCPU"));
            }
        }
    }

    /// The first step of the plan is over.
    pub(super) fn done(&mut self, vcpu: usize) {
        let (now, pause) = (self.now, self.random.below(3_000));
        let at = &mut self.vcpus[vcpu];
        at.plan.pop_front();
        at.busy = false;
        self.report.longest_ns = self.report.longest_ns.max(now - at.since);
        self.at(now + pause, Event::Run(vcpu));
    }
}
