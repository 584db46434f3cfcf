//! The cluster: engines, their frames on the way, and the clock.

use super::carrier::{Carrier, Frame, Mailbox};
use super::contents::Contents;
use super::guests::{Guests, Host, State, Wish};
use super::leaves::Leaves;
use super::moves::Moves;
use super::programs::{DEVICE_WORD, Layout, WORDS};
use super::report::Report;
use super::setup::Setup;
use super::snapshots::Snapshots;
use crate::simulator::joins::Joins;
use crate::simulator::random::Random;
use crossbeam_channel::Receiver;
use dsm::Memory;
use dsm::simulate::{SliceConfig, SteppedSlice};
use dsm_protocol::{Config, Epoch, Gfn, HoldPolicy, Replicate, SliceId};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use transport::Class;

/// A step that takes longer counts as stuck. Virtual time.
pub(super) const STUCK_NS: u64 = 20_000_000_000;
/// Steps of the clock after which a run counts as livelocked.
const EVENTS_MAX: u64 = 3_000_000;
/// The longest sleep of an engine.
const IDLE_NS: u64 = 250_000_000;

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

#[derive(Debug)]
pub(super) enum Event {
    Deliver(usize, Frame),
    Run(usize),
    Turn(usize),
    MoveHome,
    Load(usize),
}

/// An answer that a vCPU waits for.
#[derive(Debug)]
enum Answer {
    Refused(Receiver<()>),
    Device(Gfn, Option<u64>, Receiver<Result<Vec<u8>, dsm::CopyError>>),
}

pub(super) struct Slice {
    pub(super) stepped: SteppedSlice,
    pub(super) mailbox: Arc<Mutex<Mailbox>>,
    /// The turn that is already in the calendar.
    pub(super) turn: Option<u64>,
    /// When the next piece of its memory is loaded, if one is.
    pub(super) load: Option<u64>,
    /// It has left, or has not joined yet.
    pub(super) gone: bool,
    answers: Vec<(usize, Answer)>,
}

impl Slice {
    pub(super) fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all slices are made of.
#[derive(Debug)]
struct Shape {
    layout: Layout,
    slices: u16,
    /// The slices that are there at the start: the first ones.
    there: Vec<u16>,
    memory: Memory,
    hold: HoldPolicy,
    again: u64,
    /// What memory is at first, if that comes later.
    contents: Option<Arc<Contents>>,
}

pub(super) struct World {
    pub(super) setup: Setup,
    random: Random,
    shape: Arc<Shape>,
    clock: Arc<AtomicU64>,
    number: u64,
    pub(super) calendar: BTreeMap<(u64, u64), Event>,
    /// When the last frame of a class from one slice to another arrives.
    arrival: BTreeMap<(usize, usize, Class), u64>,
    pub(super) slices: Vec<Slice>,
    guests: Arc<Mutex<Guests>>,
    /// vCPUs that the calendar has.
    planned: Vec<bool>,
    slow: u64,
    pub(super) saves: u64,
    /// Homes that move, if they do.
    pub(super) moves: Option<Moves>,
    /// Slices that leave, if they do.
    pub(super) leaves: Option<Leaves>,
    /// Slices that join, if they do.
    pub(super) joins: Option<Joins>,
    /// When memory is loaded.
    pub(super) loads: Random,
    /// Snapshots, if there are any.
    pub(super) snapshots: Option<Snapshots>,
    /// How many left, and how many joined.
    pub(super) left: u64,
    pub(super) joined: u64,
}

impl Drop for World {
    fn drop(&mut self) {
        // What runs between the calls holds the kernels, which hold it.
        self.slices.iter().for_each(|slice| slice.stepped.kernel().set_between(None));
    }
}

/// Runs one cluster to its end.
///
/// # Errors
/// The first thing that must not happen.
pub fn run(setup: Setup) -> Result<Report, Failure> {
    let mut world = World::new(setup)?;
    let mut saves = setup.saves();
    for events in 0..EVENTS_MAX {
        let Some(((at, _), event)) = world.calendar.pop_first() else {
            return world.fail(&format!("nothing happens: {}", world.waiting()));
        };
        world.happen(at, event)?;
        world.look_at_leaves(events)?;
        world.look_at_joins(events)?;
        world.look_at_snapshots(events)?;
        if saves.as_mut().is_some_and(|saves| saves.is_time(events)) {
            world.save_and_restore()?;
            world.saves += 1;
        }
        if world.guests().vcpus.iter().all(|vcpu| vcpu.state == State::Ends) {
            world.read_all()?;
            return Ok(world.report());
        }
    }
    world.fail("it does not end")
}

impl World {
    fn new(setup: Setup) -> Result<Self, Failure> {
        let mut random = setup.random();
        let slices = 2 + u16::try_from(random.below(3)).expect("small");
        let mut joins = setup.joins.then(|| Joins::new(setup.seed));
        let most = u64::from(slices - 1);
        let count =
            joins.as_mut().map_or_else(|| u64::from(slices), |at| 1 + at.random.below(most));
        let there: Vec<u16> = (0..slices).filter(|slice| u64::from(*slice) < count).collect();
        let layout = Layout::new(&there, &mut random);
        let mut guests = Guests::new(layout.clone(), Random::new(random.next()));
        let mut loads = Random::new(setup.seed.rotate_left(24) ^ 0x6c6f_6164);
        let contents = setup.loads.then(|| {
            let words = (0..WORDS).map_while(|word| usize::try_from(word).ok());
            let words: Vec<usize> = words.chain([DEVICE_WORD]).collect();
            let contents = Contents::new(&layout.blocks, &words, &mut loads);
            guests.begin_with(&contents);
            Arc::new(contents)
        });
        let slow = 10_000 << random.below(6);
        let memory = if random.one_in(3) { Memory::Anonymous } else { Memory::Memfd };
        let hold = match random.below(3) {
            0 => HoldPolicy::NONE,
            1 => HoldPolicy::fixed(100_000),
            _ => HoldPolicy::default(),
        };
        let again = if random.one_in(2) { 12 } else { 0 };
        let mut world = Self {
            setup,
            shape: Arc::new(Shape { layout, slices, there, memory, hold, again, contents }),
            clock: Arc::default(),
            number: 0,
            calendar: BTreeMap::new(),
            arrival: BTreeMap::new(),
            slices: Vec::new(),
            guests: Arc::new(Mutex::new(guests)),
            planned: Vec::new(),
            slow,
            saves: 0,
            moves: (setup.moves || setup.leaves).then(|| Moves::new(setup.seed)),
            leaves: setup.leaves.then(|| Leaves::new(setup.seed)),
            joins,
            loads,
            snapshots: setup.snapshots.then(|| Snapshots::new(setup.seed)),
            left: 0,
            joined: 0,
            random,
        };
        for slice in 0..slices {
            let made = world.add_slice(slice);
            if let Err(error) = made {
                return world.fail(&format!("a slice cannot be made: {error}"));
            }
        }
        world.add_vcpus();
        if setup.moves {
            world.at(1_000_000, Event::MoveHome);
        }
        Ok(world)
    }

    fn add_slice(&mut self, local: u16) -> Result<(), Box<dyn std::error::Error>> {
        let mailbox = Arc::new(Mutex::new(Mailbox::default()));
        if self.random.one_in(3) {
            let room = 1 + u32::try_from(self.random.below(20))?;
            mailbox.lock().unwrap_or_else(PoisonError::into_inner).narrow(room);
        }
        let source = self.shape.contents.clone().map(|contents| contents as _);
        let stepped = SteppedSlice::new(SliceConfig { source, ..self.config(local, &mailbox)? })?;
        let gone = !self.shape.there.contains(&local);
        let host = Host { gone, ..self.host(&stepped) };
        self.guests().hosts.push(host);
        let (turn, load, answers) = (None, None, Vec::new());
        self.slices.push(Slice { stepped, mailbox, turn, load, gone, answers });
        if self.setup.loads {
            self.load_later(usize::from(local));
        }
        Ok(())
    }

    /// What a slice is made of.
    pub(super) fn config(
        &mut self,
        local: u16,
        mailbox: &Arc<Mutex<Mailbox>>,
    ) -> Result<SliceConfig<Carrier>, std::io::Error> {
        let shape = Arc::clone(&self.shape);
        let is_there = |slice: &u16| match self.slices.get(usize::from(*slice)) {
            Some(at) => !at.gone || *slice == local,
            None => shape.there.contains(slice) || *slice == local,
        };
        let all = (0..shape.slices).filter(is_there).map(SliceId).collect();
        let node = Config::new(SliceId(local), all, shape.layout.homes.clone(), Epoch(1));
        let mechanisms = self.setup.mechanisms(local);
        Ok(SliceConfig {
            node: Config { hold: shape.hold, mechanisms, replicate: Replicate::Nothing, ..node },
            frames: shape.layout.blocks.clone(),
            memory: shape.memory,
            transport: Carrier::new(SliceId(local), shape.slices, Arc::clone(mailbox))?,
            clock: Arc::clone(&self.clock),
            seed: self.random.next(),
            again: shape.again,
            wait_limit: Duration::from_nanos(STUCK_NS),
            planted: self.setup.planted,
            source: None,
        })
    }

    /// A slice's kernel, and where its frames are.
    pub(super) fn host(&self, stepped: &SteppedSlice) -> Host {
        let frames = self.shape.layout.blocks.iter().cloned().flatten();
        let pages = frames.filter_map(|frame| Some((frame, stepped.page(Gfn(frame))?))).collect();
        Host { kernel: stepped.kernel().clone(), pages, gone: false }
    }

    pub(super) fn happen(&mut self, at: u64, event: Event) -> Result<(), Failure> {
        self.clock.store(at, Ordering::Relaxed);
        self.guests().now = at;
        match event {
            Event::Deliver(to, _) if self.slices[to].gone => {
                return self.fail("a frame goes to a slice that has left");
            }
            Event::Deliver(to, frame) => {
                self.slices[to].mailbox().incoming.push_back(frame);
                self.turn_soon(to);
            }
            Event::Run(vcpu) => self.run_vcpu(vcpu),
            Event::Turn(slice) => self.turn(slice)?,
            Event::MoveHome => self.move_home()?,
            // An earlier one came in between.
            Event::Load(slice) if self.slices[slice].load != Some(at) => {}
            Event::Load(slice) => self.load(slice)?,
        }
        self.look()
    }

    /// Two vCPUs a slice. They, and the threads that make huge pages, run between the calls of all engines.
    fn add_vcpus(&mut self) {
        for slice in 0..self.slices.len() {
            let there = self.shape.there.len();
            let slice = if slice < there { slice } else { slice % there };
            for _ in 0..2 {
                let vcpu = self.planned.len();
                self.guests().add_vcpu(slice, self.setup.steps);
                self.planned.push(false);
                self.plan(vcpu, 1 + vcpu as u64);
            }
        }
        let seldom = 2 + self.random.below(30);
        for at in 0..self.slices.len() {
            self.let_others_run(at, seldom);
        }
    }

    /// vCPUs, and the thread that makes huge pages, run between the calls of an engine.
    pub(super) fn let_others_run(&mut self, at: usize, seldom: u64) {
        let (guests, mut random) = (Arc::clone(&self.guests), Random::new(self.random.next()));
        let mut collapse = self.slices[at].stepped.collapser();
        let between = move || {
            if random.one_in(100) {
                collapse();
            }
            // Whoever is in there runs already.
            if random.one_in(seldom)
                && let Ok(mut guests) = guests.try_lock()
            {
                guests.run_some();
            }
        };
        self.slices[at].stepped.kernel().set_between(Some(Box::new(between)));
    }

    pub(super) fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first frame of a block of memory, and the one behind its last.
    pub(super) fn memory(&self) -> (u64, u64) {
        let block = &self.shape.layout.blocks[0];
        (block.start, block.end)
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.calendar.insert((time, self.number), event);
    }

    pub(super) fn plan(&mut self, vcpu: usize, wait: u64) {
        if !std::mem::replace(&mut self.planned[vcpu], true) {
            self.at(self.now() + wait, Event::Run(vcpu));
        }
    }

    fn turn_at(&mut self, slice: usize, time: u64) {
        let time = time.max(self.now() + 1);
        if self.slices[slice].turn.is_none_or(|turn| time < turn) {
            self.slices[slice].turn = Some(time);
            self.at(time, Event::Turn(slice));
        }
    }

    pub(super) fn turn_soon(&mut self, slice: usize) {
        let time = self.now() + 500 + self.random.below(5_000);
        self.turn_at(slice, time);
    }

    pub(super) fn fail<T>(&self, what: &str) -> Result<T, Failure> {
        Err(Failure(format!("{what}, at {} ns; replay: {}", self.now(), self.setup.replay())))
    }

    fn run_vcpu(&mut self, vcpu: usize) {
        self.planned[vcpu] = false;
        let mut guests = self.guests();
        if guests.stopped {
            return;
        }
        if guests.vcpus[vcpu].state == State::Rests {
            guests.done(vcpu);
        }
        for _ in 0..8 {
            if guests.vcpus[vcpu].state == State::Runs && guests.failure.is_none() {
                guests.step(vcpu);
            }
        }
        let runs = guests.vcpus[vcpu].state == State::Runs;
        drop(guests);
        if runs {
            let wait = 200 + self.random.below(3_000);
            self.plan(vcpu, wait);
        }
    }

    fn turn(&mut self, slice: usize) -> Result<(), Failure> {
        if self.slices[slice].turn != Some(self.now()) {
            // An earlier one came in between.
            return Ok(());
        }
        self.slices[slice].turn = None;
        if self.slices[slice].gone {
            return Ok(());
        }
        let frames = !self.slices[slice].mailbox().incoming.is_empty();
        if let Err(error) = self.slices[slice].stepped.turn(frames) {
            let error = transport::one_line(&error);
            return self.fail(&format!("slice{slice} fails: {error}"));
        }
        self.send_frames(slice);
        self.take_answers(slice)?;
        if !self.slices[slice].mailbox().incoming.is_empty()
            || self.slices[slice].stepped.is_behind()
        {
            self.turn_soon(slice);
        }
        let due = self.slices[slice].stepped.due_ns().unwrap_or(u64::MAX);
        self.turn_at(slice, due.min(self.now() + IDLE_NS));
        Ok(())
    }

    fn send_frames(&mut self, slice: usize) {
        let outgoing = std::mem::take(&mut self.slices[slice].mailbox().outgoing);
        for Frame { peer: to, class, bytes } in outgoing {
            let peer = SliceId(u16::try_from(slice).expect("few"));
            let to = usize::from(to.0);
            let seldom = if class == Class::Run { 6 } else { 50 };
            let range = if self.random.one_in(seldom) { 40 * self.slow } else { self.slow };
            let time = self.now() + 1_000 + self.random.below(range);
            let last = self.arrival.entry((slice, to, class)).or_default();
            let time = time.max(*last + 1);
            *last = time;
            self.at(time, Event::Deliver(to, Frame { peer, class, bytes }));
        }
    }

    /// What the engine answered goes to the vCPUs that wait for it.
    fn take_answers(&mut self, slice: usize) -> Result<(), Failure> {
        for (vcpu, answer) in std::mem::take(&mut self.slices[slice].answers) {
            let answered = match &answer {
                Answer::Refused(reply) => reply.try_recv().is_ok().then_some(None),
                Answer::Device(gfn, write, reply) => match reply.try_recv() {
                    Ok(Ok(bytes)) => {
                        let word = bytes.try_into().map_or(0, u64::from_le_bytes);
                        Some(Some((*gfn, *write, word)))
                    }
                    Ok(Err(error)) => return self.fail(&format!("a device cannot: {error}")),
                    Err(_) => None,
                },
            };
            match answered {
                None => self.slices[slice].answers.push((vcpu, answer)),
                Some(None) => {
                    self.guests().vcpus[vcpu].state = State::Runs;
                    self.plan(vcpu, 500);
                }
                Some(Some((gfn, write, word))) => {
                    self.guests().device_done(vcpu, gfn, write, word);
                    self.plan(vcpu, 500);
                }
            }
        }
        Ok(())
    }

    /// Looks at what the vCPUs did, wherever they ran.
    fn look(&mut self) -> Result<(), Failure> {
        let wishes = std::mem::take(&mut self.guests().wishes);
        for (vcpu, wish) in wishes {
            let at = self.guests().vcpus[vcpu].slice;
            let slice = &mut self.slices[at];
            match wish {
                Wish::Rest(time) => {
                    self.plan(vcpu, time);
                    continue;
                }
                Wish::Refused => {
                    slice.answers.push((vcpu, Answer::Refused(slice.stepped.refuse())));
                }
                Wish::Device(gfn, write) => {
                    let reply = slice.stepped.copy(gfn, DEVICE_WORD, write);
                    slice.answers.push((vcpu, Answer::Device(gfn, write, reply)));
                }
            }
            self.turn_soon(at);
        }
        for slice in 0..self.slices.len() {
            let woken = self.guests().wake(slice);
            for vcpu in woken {
                let wait = 100 + self.random.below(2_000);
                self.plan(vcpu, wait);
            }
            if self.slices[slice].stepped.has_load_faults() {
                self.load_soon(slice);
            }
            if self.slices[slice].stepped.has_faults() && !self.slices[slice].gone {
                let is_alone = self.staying().len() == 1 && self.left > 0;
                if is_alone && self.leaves.as_ref().is_some_and(Leaves::is_over) {
                    return self.fail("a fault on a slice that shares memory with nobody");
                }
                self.turn_soon(slice);
            }
        }
        self.check()
    }
}
