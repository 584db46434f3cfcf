//! The simulated cluster: nodes, network, vCPUs and the clock.

use super::Setup;
use super::random::Random;
use super::workload::{self, DATA, HALVES, Kernel, LEAVES, LOCK, MIDDLE, ROOT, Step, Workload};
use crate::store::{ArrayStore, Page};
use dsm_protocol::entry::DIRTY;
use dsm_protocol::{
    Access, Config, Effect, Epoch, Gfn, HoldPolicy, HomeRange, HomeTable, Input, Message, Node,
    Replicate, SliceId, VcpuId,
};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// True when a load gave the last store. Dirty bits of leaves may be set for the kernel.
fn agree(frame: u64, index: u16, load: u64, last: u64) -> bool {
    let leaf = (MIDDLE + 1..DATA).contains(&frame) && LEAVES.contains(&index);
    load == last || (leaf && load == last | DIRTY)
}

/// An operation that takes longer counts as stuck. Virtual time.
const STUCK_NS: u64 = 5_000_000_000;
/// Steps of the clock after which a run counts as livelocked.
const EVENTS_MAX: u64 = 50_000_000;
const EPOCH: Epoch = Epoch(1);

/// What a run found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The workload.
    pub workload: Workload,
    /// Pages of the cluster.
    pub frames: u64,
    /// Faults that asked for a page.
    pub faults: u64,
    /// Messages sent.
    pub messages: u64,
    /// Pages turned into replicas.
    pub conversions: u64,
    /// Replicas ended.
    pub demotions: u64,
    /// Entries changed by two slices at once.
    pub conflicts: u64,
    /// Recalls that waited.
    pub deferrals: u64,
    /// The longest operation, virtual nanoseconds.
    pub longest_ns: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.messages * 10 / self.faults.max(1);
        write!(
            f,
            "{} pages={} faults={} messages/fault={}.{} conversions={} demotions={} conflicts={} \
             deferrals={} longest={}us",
            self.workload,
            self.frames,
            self.faults,
            tenths / 10,
            tenths % 10,
            self.conversions,
            self.demotions,
            self.conflicts,
            self.deferrals,
            self.longest_ns / 1000
        )
    }
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

#[derive(Debug)]
enum Event {
    Deliver { from: u16, to: u16, message: Message, body: Option<Page> },
    Run(usize),
    Tick(u16),
}

#[derive(Debug)]
struct Slice {
    node: Node,
    store: ArrayStore,
    /// The tick that is already in the calendar.
    tick: Option<u64>,
}

#[derive(Debug)]
struct Vcpu {
    slice: u16,
    plan: VecDeque<Step>,
    steps_left: u32,
    waits_for: Option<Gfn>,
    since: u64,
    busy: bool,
}

struct World {
    setup: Setup,
    workload: Workload,
    random: Random,
    now: u64,
    number: u64,
    calendar: BTreeMap<(u64, u64), Event>,
    /// When the last message of a pair arrives, of those that arrive in order.
    arrival: BTreeMap<(u16, u16), u64>,
    slices: Vec<Slice>,
    vcpus: Vec<Vcpu>,
    kernel: Kernel,
    flat: BTreeMap<(u64, u16), u64>,
    frames: u64,
    slow: u64,
    report: Report,
}

/// Runs one cluster to its end.
///
/// # Errors
/// The first thing that must not happen.
pub fn run(setup: Setup) -> Result<Report, Failure> {
    let mut world = World::new(setup);
    let mut events = 0;
    while let Some(((at, _), event)) = world.calendar.pop_first() {
        world.now = at;
        events += 1;
        if events > EVENTS_MAX {
            return Err(Failure("it does not end".to_owned()));
        }
        match event {
            Event::Deliver { from, to, message, body } => {
                world.check_still(from, &message, body.as_ref())?;
                let input = Input::Message { from: SliceId(from), epoch: EPOCH, message };
                world.step(to, input, body)?;
            }
            Event::Run(vcpu) => world.run(vcpu)?,
            Event::Tick(slice) => {
                world.slices[usize::from(slice)].tick = None;
                world.step(slice, Input::Tick, None)?;
            }
        }
    }
    world.finish()
}

impl World {
    fn new(setup: Setup) -> Self {
        let mut random = Random::new(setup.seed);
        let kind = Workload::ALL[usize::try_from(random.below(5)).expect("small")];
        let workload = setup.workload.unwrap_or(kind);
        let frames = DATA + 4 + random.below(300);
        let slices = u64::from(setup.slices);
        // Unequal homes: ranges of random length, each at a random slice.
        let mut ranges = Vec::new();
        let mut start = 0;
        while start < frames {
            let end = frames.min(start + 1 + random.below(frames / 2));
            let home = SliceId(u16::try_from(random.below(slices)).expect("small"));
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
                longest_ns: 0,
            },
            random,
        };
        let half = HALVES[usize::try_from(setup.seed % 2).expect("small")];
        for local in 0..setup.slices {
            world.add_slice(local, half, &homes, hold);
        }
        world.add_vcpus();
        world
    }

    fn add_slice(&mut self, local: u16, half: u16, homes: &HomeTable, hold: HoldPolicy) {
        let mut store = ArrayStore::default();
        if self.setup.seed.is_multiple_of(3) {
            store.tell_untouched();
        }
        for frame in 0..self.frames {
            if homes.home(Gfn(frame)) == Some(SliceId(local)) {
                let root = Page::from([(half, workload::table(MIDDLE))]);
                store.put_page(Gfn(frame), if frame == ROOT { root } else { Page::new() });
            }
        }
        let node = Node::new(Config {
            local: SliceId(local),
            slices: (0..self.setup.slices).map(SliceId).collect(),
            homes: homes.clone(),
            epoch: EPOCH,
            hold,
            replicate: if self.workload.has_tables() {
                Replicate::AllTables
            } else {
                Replicate::Nothing
            },
            vcpus: 64,
            planted: self.setup.planted,
        });
        self.slices.push(Slice { node, store, tick: None });
    }

    /// One or two vCPUs a slice; from three slices on, one slice may have memory only.
    fn add_vcpus(&mut self) {
        let bare = if self.setup.slices > 2 { self.random.below(4) } else { 9 };
        for slice in (0..self.setup.slices).filter(|slice| u64::from(*slice) != bare) {
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

    fn at(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.calendar.insert((time, self.number), event);
    }

    fn fail<T>(&self, what: &str) -> Result<T, Failure> {
        Err(Failure(format!("{what} at {} ns; replay: {}", self.now, self.setup.replay())))
    }

    /// Gives one input to a node and carries out its effects.
    fn step(&mut self, slice: u16, input: Input, body: Option<Page>) -> Result<(), Failure> {
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

    /// A page of data may be sent by reference, by an adapter or out of a memory file: what its sender has
    /// is what arrives, so that must be what was sent.
    fn check_still(
        &self,
        from: u16,
        message: &Message,
        body: Option<&Page>,
    ) -> Result<(), Failure> {
        let (Message::Data { gfn, .. }, Some(body)) = (message, body) else { return Ok(()) };
        if self.slices[usize::from(from)].store.holds(*gfn, body) {
            return Ok(());
        }
        self.fail(&format!("{gfn} of slice{from} changed on its way"))
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
            Effect::Released { token } | Effect::Pinned { token } => {
                self.done(usize::try_from(token).expect("a number of a vCPU"));
            }
        }
    }

    /// The first step of the plan is over.
    fn done(&mut self, vcpu: usize) {
        let (now, pause) = (self.now, self.random.below(3_000));
        let at = &mut self.vcpus[vcpu];
        at.plan.pop_front();
        at.busy = false;
        self.report.longest_ns = self.report.longest_ns.max(now - at.since);
        self.at(now + pause, Event::Run(vcpu));
    }

    fn run(&mut self, vcpu: usize) -> Result<(), Failure> {
        if self.vcpus[vcpu].plan.is_empty() && !self.replan(vcpu) {
            return Ok(());
        }
        let at = &mut self.vcpus[vcpu];
        if !std::mem::replace(&mut at.busy, true) {
            at.since = self.now;
        } else if self.now - at.since > STUCK_NS {
            let what = format!("stuck: {}", self.waiting());
            return self.fail(&what);
        }
        let slice = at.slice;
        let step = *at.plan.front().expect("just planned");
        let token = u64::try_from(vcpu).expect("few vCPUs");
        match step {
            Step::Release => self.step(slice, Input::Release { token }, None),
            Step::Pin(frame, write) => {
                let want = if write { Access::Write } else { Access::Read };
                self.step(slice, Input::Pin { gfn: Gfn(frame), want, token }, None)
            }
            Step::Prefetch(frame, pages, write) => {
                let want = if write { Access::Write } else { Access::Read };
                self.done(vcpu);
                self.step(slice, Input::Prefetch { gfn: Gfn(frame), pages, want }, None)
            }
            Step::Unpin(frame) => {
                self.done(vcpu);
                self.step(slice, Input::Unpin { gfn: Gfn(frame) }, None)
            }
            Step::Section => {
                let mut section = VecDeque::new();
                self.kernel.section(slice, &mut self.random, &mut section);
                for step in section.into_iter().rev() {
                    self.vcpus[vcpu].plan.insert(1, step);
                }
                self.done(vcpu);
                Ok(())
            }
            Step::Free(frame) => {
                if self.slices.iter().any(|slice| slice.node.is_replica(Gfn(frame))) {
                    return self.fail("a free page is a replica");
                }
                self.done(vcpu);
                Ok(())
            }
            _ => self.touch(vcpu, slice, step),
        }
    }

    /// Plans the next operation; the last one is a release. False at the end of the program.
    fn replan(&mut self, vcpu: usize) -> bool {
        let at = &mut self.vcpus[vcpu];
        while at.plan.is_empty() && at.steps_left > 0 {
            at.steps_left -= 1;
            if at.steps_left == 0 {
                at.plan.push_back(Step::Release);
            } else {
                let (random, plan) = (&mut self.random, &mut at.plan);
                workload::plan(self.workload, at.slice, self.frames, &self.kernel, random, plan);
            }
        }
        !at.plan.is_empty()
    }

    /// A step that loads or stores.
    fn touch(&mut self, vcpu: usize, slice: u16, step: Step) -> Result<(), Failure> {
        let (gfn, want) = match step {
            Step::Read(frame, _) => (frame, Access::Read),
            Step::Write(frame, ..) | Step::Race(frame, ..) => (frame, Access::Write),
            Step::Walk(index) => (self.walk(slice, index), Access::Write),
            _ => (LOCK, Access::Write),
        };
        let store = &mut self.slices[usize::from(slice)].store;
        if store.access(Gfn(gfn)) < want {
            self.vcpus[vcpu].waits_for = Some(Gfn(gfn));
            return self.step(slice, Input::Fault { gfn: Gfn(gfn), want }, None);
        }
        let flat = &self.flat;
        let last_store = |index| flat.get(&(gfn, index)).copied().unwrap_or(0);
        match step {
            Step::Read(_, index)
                if !agree(gfn, index, store.load(Gfn(gfn), index), last_store(index)) =>
            {
                return self.fail("a load does not give the last store");
            }
            Step::Write(_, index, value) => self.put(slice, gfn, index, value),
            Step::Race(_, index, value) => store.store(Gfn(gfn), index, value),
            Step::Lock if store.load(Gfn(LOCK), 0) != 0 => {
                let later = self.now + 5_000 + self.random.below(20_000);
                self.at(later, Event::Run(vcpu));
                return Ok(());
            }
            Step::Lock => self.put(slice, LOCK, 0, 1),
            Step::Unlock => self.put(slice, LOCK, 0, 0),
            _ => {}
        }
        self.check_alone(gfn, want)?;
        self.done(vcpu);
        Ok(())
    }

    /// Where a hardware walk faults, or the last table that it comes to.
    fn walk(&self, slice: u16, index: u16) -> u64 {
        let store = &self.slices[usize::from(slice)].store;
        let missing = |table: &u64| store.access(Gfn(*table)) < Access::Write;
        let last = store.load(Gfn(MIDDLE), index) >> 12;
        let mut path = [ROOT, MIDDLE, last].into_iter().filter(|table| *table != 0);
        path.find(missing).unwrap_or(ROOT)
    }

    fn put(&mut self, slice: u16, gfn: u64, index: u16, value: u64) {
        self.slices[usize::from(slice)].store.store(Gfn(gfn), index, value);
        self.flat.insert((gfn, index), value);
    }

    /// A page that is written is nobody else's, unless it is a replica.
    fn check_alone(&self, gfn: u64, want: Access) -> Result<(), Failure> {
        let gfn = Gfn(gfn);
        let mut holders = 0;
        for slice in &self.slices {
            if slice.node.is_replica(gfn) {
                return Ok(());
            }
            holders += u32::from(slice.store.access(gfn) != Access::None);
        }
        if want == Access::Write && holders != 1 {
            return self.fail("a writer is not alone");
        }
        Ok(())
    }

    /// The vCPUs that are not done, and the nodes that are not quiet.
    fn waiting(&self) -> String {
        let vcpus = self.vcpus.iter().filter(|vcpu| !vcpu.plan.is_empty());
        let vcpus = vcpus.map(|vcpu| {
            format!("vCPU of slice {} at {:?}, page {:?}", vcpu.slice, vcpu.plan[0], vcpu.waits_for)
        });
        let nodes = self.slices.iter().filter(|slice| !slice.node.is_quiet());
        let nodes = nodes.map(|slice| slice.node.unrest());
        vcpus.chain(nodes).collect::<Vec<_>>().join("; ")
    }

    /// Nothing happens any more: everyone must be done, and all copies the same.
    fn finish(mut self) -> Result<Report, Failure> {
        if self.vcpus.iter().any(|vcpu| vcpu.steps_left > 0 || !vcpu.plan.is_empty()) {
            return self.fail(&format!("somebody waits for ever: {}", self.waiting()));
        }
        if self.slices.iter().any(|slice| !slice.node.is_quiet()) {
            return self.fail("a node is not quiet in the end");
        }
        for gfn in (0..self.frames).map(Gfn) {
            let mut copies = self.slices.iter().filter(|s| s.node.access(gfn) != Access::None);
            let first = copies.next().map(|slice| slice.store.page(gfn));
            if !first.is_none_or(|page| copies.all(|slice| slice.store.holds(gfn, &page))) {
                return self.fail("copies differ in the end");
            }
        }
        for slice in &self.slices {
            let stats = slice.node.stats();
            self.report.faults += stats.faults_read + stats.faults_write + stats.faults_upgrade;
            self.report.messages += stats.messages_out;
            self.report.conversions += stats.replicas.conversions;
            self.report.demotions += stats.replicas.demotions;
            self.report.conflicts += stats.replicas.conflicts;
            self.report.deferrals += stats.deferrals;
        }
        Ok(self.report)
    }
}
