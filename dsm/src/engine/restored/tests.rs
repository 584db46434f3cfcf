//! Engines over a kernel of state machines that are given forms which somebody else has written: one is taken as it is,
//! and memory is mapped as it says, or it is refused and nothing has changed.

use super::*;
use crate::engine::Uplink;
use crate::engine::command::Command;
use crate::kernel::fake::{FakeKernel, Touch};
use crate::memory::{ChunkId, GuestRam, Memory};
use crate::observe::Tracing;
use crossbeam_channel::bounded;
use dsm_protocol::saved::{
    Channel, FrameRuns, HolderKind, HomeState, ReplicaState, RootState, TableHalf, TableScope,
};
use dsm_protocol::{Access, Effect, Epoch, HomeTable, Input, Message, NoPages, Replicate};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transport::{Class, Event, SendError, Transport};
use wire::{SliceId, VcpuId};
use xxhash_rust::xxh3::Xxh3Default;

const SLICES: u16 = 3;
const EPOCH: Epoch = Epoch(3);
/// Memory, with a hole. Slice 0 is home of a whole chunk and of parts of two.
const BLOCKS: [Range<u64>; 2] = [0..1100, 1536..2048];
const HOMES: [(Range<u64>, u16); 4] =
    [(0..600, 0), (600..1100, 1), (1536..1700, 2), (1700..2048, 0)];
/// The root of every vCPU; a replica as soon as two slices walk it.
const ROOT: Gfn = Gfn(2);
/// The most that a node may count to.
const COUNT_MAX: u64 = 1 << 56;
/// Entries of a root, for a process and for the kernel.
const ENTRIES: [(u16, u64); 2] = [(1, 8 << 12 | 0x67), (300, 9 << 12 | 0x63)];

fn config(local: u16) -> Config {
    let range = |(frames, home): &(Range<u64>, u16)| HomeRange {
        frames: frames.clone(),
        home: SliceId(*home),
    };
    let homes = HomeTable::new(HOMES.iter().map(range).collect()).unwrap();
    let config = Config::new(SliceId(local), (0..SLICES).map(SliceId).collect(), homes, EPOCH);
    Config { replicate: Replicate::AllTables, vcpus: 4, ..config }
}

fn frames() -> impl Iterator<Item = Gfn> {
    BLOCKS.into_iter().flatten().map(Gfn)
}

/// Nodes that exchange messages.
struct Cluster {
    nodes: Vec<Node>,
    messages: VecDeque<(u16, SliceId, Message)>,
}

impl Cluster {
    fn give(&mut self, slice: u16, input: Input) {
        let mut effects = Vec::new();
        let node = &mut self.nodes[usize::from(slice)];
        node.step(1_000, input, &mut NoPages, &mut effects).unwrap();
        for effect in effects {
            if let Effect::Send { to, message } = effect {
                self.messages.push_back((slice, to, message));
            }
        }
    }

    fn settle(&mut self) {
        while let Some((from, to, message)) = self.messages.pop_front() {
            self.give(to.0, Input::Message { from: SliceId(from), epoch: EPOCH, message });
        }
    }
}

/// Forms of nodes at rest after these inputs, every kind of page among them.
fn states(inputs: Vec<(u16, Input)>) -> Vec<NodeState> {
    let nodes = (0..SLICES).map(|local| Node::new(config(local))).collect();
    let mut cluster = Cluster { nodes, messages: VecDeque::new() };
    let touch = |gfn, want| Input::Fault { gfn: Gfn(gfn), want };
    let root = |vcpu: u16| Input::Root { vcpu: VcpuId(u32::from(vcpu)), gfn: ROOT };
    let begin = (0..SLICES).map(|slice| (slice, root(slice)));
    let more = [
        (1, touch(ROOT.0, Access::Write)),
        (1, touch(5, Access::Read)),
        (2, touch(700, Access::Read)),
        (0, touch(701, Access::Write)),
        (0, touch(702, Access::Read)),
        (1, Input::Prefetch { gfn: Gfn(1536), pages: 3, want: Access::Read }),
    ];
    for (slice, input) in begin.chain(more).chain(inputs) {
        cluster.give(slice, input);
        cluster.settle();
    }
    let states = cluster.nodes.iter().map(|node| node.save(&NoPages).unwrap());
    states.map(with_entries).collect()
}

/// The form, of memory whose replicas have [`ENTRIES`].
fn with_entries(mut state: NodeState) -> NodeState {
    let mut hash = Xxh3Default::new();
    for (index, value) in ENTRIES {
        hash.update(&index.to_le_bytes());
        // Without accessed and dirty bits.
        hash.update(&(value & !0x60).to_le_bytes());
    }
    for replica in &mut state.replicas {
        (replica.hash, replica.of_process) = (hash.digest(), true);
    }
    state
}

struct Nobody {
    peers: Vec<SliceId>,
    local: SliceId,
    idle: File,
}

impl Transport for Nobody {
    fn local(&self) -> SliceId {
        self.local
    }
    fn peers(&self) -> &[SliceId] {
        &self.peers
    }
    fn send(&mut self, _: SliceId, _: Class, _: &[u8], _: &[u8]) -> Result<(), SendError> {
        Ok(())
    }
    fn cork(&mut self, _: bool) {}
    fn poll(&mut self, _: usize, _: &mut dyn FnMut(Event<'_>)) -> usize {
        0
    }
    fn take_heard(&mut self, _: &mut dyn FnMut(SliceId, u64)) {}
    fn readiness(&self) -> BorrowedFd<'_> {
        self.idle.as_fd()
    }
}

impl Uplink for Nobody {
    fn frame(&mut self, _: SliceId, _: Class, _: &[u8]) {}
    fn lost(&mut self, _: SliceId, _: String) {}
    fn fatal(&mut self, _: EngineError) {}
    fn sample_roots(&mut self) {}
}

/// An engine that has not begun, and its kernel.
struct Bench {
    engine: Engine,
    handle: Handle,
    kernel: FakeKernel,
    ram: Arc<GuestRam>,
    /// Pages that have contents.
    filled: FrameRuns,
}

impl Bench {
    /// An engine with memory for this form, in which somebody has touched pages before the engine was made.
    fn new(local: u16, memory: Memory, state: &NodeState, touched: &[Gfn]) -> Self {
        let own = HOMES.iter().filter(|(_, home)| *home == local);
        let own: Vec<_> = own.map(|(frames, _)| frames.clone()).collect();
        let made = Mutex::new(None);
        let ram = GuestRam::with_mapping(&BLOCKS, &own, memory, |span, file| {
            let kernel = FakeKernel::new(span, file, 1, 5)?;
            *made.lock().unwrap() = Some(kernel.clone());
            Ok(Box::new(kernel))
        });
        let (ram, kernel) = (Arc::new(ram.unwrap()), made.into_inner().unwrap().unwrap());
        for gfn in touched {
            let page = page(&ram, *gfn);
            assert_eq!(kernel.touch(0, 1, page, true), Touch::Done);
        }
        fill(&ram, state);
        let nobody = || Nobody {
            peers: (0..SLICES).filter(|at| *at != local).map(SliceId).collect(),
            local: SliceId(local),
            idle: File::open("/dev/null").unwrap(),
        };
        let config = EngineConfig {
            core: None,
            node: config(local),
            ram: Arc::clone(&ram),
            bystanders: Vec::new(),
            transport: Box::new(nobody()),
            uplink: Box::new(nobody()),
            wait_limit: Duration::from_secs(1),
            trace: Tracing::default(),
        };
        let (handle, engine) = Engine::assemble(config, Clock::Host(Instant::now())).unwrap();
        Self { engine, handle, kernel, ram, filled: state.shared.clone() }
    }

    /// Gives the engine a form. It is taken as it is, and memory is mapped accordingly, or nothing has changed.
    fn give(&mut self, config: Config, state: &NodeState) -> Result<bool, TestCaseError> {
        let before = (self.engine.save().unwrap(), self.mapped());
        let epoch = config.epoch;
        match self.engine.take_up(config, state) {
            Ok(()) => {
                let expected = NodeState { epoch, ..state.clone() };
                prop_assert_eq!(self.engine.save().unwrap(), expected);
                self.check_mapping()?;
                Ok(true)
            }
            Err(error) => {
                prop_assert!(matches!(error, EngineError::Restore(_)), "{:?}", error);
                prop_assert_eq!((self.engine.save().unwrap(), self.mapped()), before);
                Ok(false)
            }
        }
    }

    /// Whether the guest may load from each page at once, and store to it.
    fn mapped(&self) -> Vec<(bool, bool)> {
        frames().map(|gfn| self.kernel.access(page(&self.ram, gfn))).collect()
    }

    /// No page is mapped with more access than the node has; pages to read are mapped, with their contents.
    fn check_mapping(&self) -> Result<(), TestCaseError> {
        for gfn in frames() {
            let page = page(&self.ram, gfn);
            let mapped = self.kernel.access(page);
            match self.engine.node.access(gfn) {
                Access::None => {
                    prop_assert_eq!(mapped, (false, false), "{} is elsewhere", gfn);
                    prop_assert_eq!(self.kernel.touch(0, 1, page, false), Touch::Waits);
                }
                Access::Read => {
                    prop_assert_eq!(mapped, (true, false), "{} is to be read", gfn);
                    prop_assert_eq!(self.kernel.touch(0, 1, page, true), Touch::Waits);
                    let as_saved = self.kernel.load(page, 7) == gfn.0;
                    prop_assert!(as_saved || !self.filled.contains(gfn), "contents of {}", gfn);
                }
                Access::Write => {}
            }
        }
        Ok(())
    }
}

/// Number of a frame's page in the mapping.
fn page(ram: &GuestRam, gfn: Gfn) -> usize {
    ram.offset(gfn).unwrap() / 4096
}

/// Pages that the node has get contents, others bytes that nobody may see.
fn fill(ram: &GuestRam, state: &NodeState) {
    for gfn in frames() {
        if state.replicas.iter().any(|replica| replica.page == gfn) {
            ram.write(gfn, 0, &[0; 4096]);
            for (index, value) in ENTRIES {
                ram.write(gfn, usize::from(index) * 8, &value.to_le_bytes());
            }
        } else if state.shared.contains(gfn) || state.exclusive.contains(gfn) {
            ram.write(gfn, 7 * 8, &gfn.0.to_le_bytes());
        } else if gfn.0 % 3 > 0 {
            ram.write(gfn, 0, &[0xee; 64]);
        }
    }
}

fn frame() -> impl Strategy<Value = Gfn> {
    prop_oneof![0..8_u64, 590..610_u64, 695..705_u64, 1536..1540_u64, 1695..1705_u64].prop_map(Gfn)
}

fn input() -> impl Strategy<Value = Input> {
    let want = || prop_oneof![Just(Access::Read), Just(Access::Write)];
    prop_oneof![
        6 => (frame(), want()).prop_map(|(gfn, want)| Input::Fault { gfn, want }),
        1 => (frame(), 1..5_u16, want())
            .prop_map(|(gfn, pages, want)| Input::Prefetch { gfn, pages, want }),
        1 => frame().prop_map(|gfn| Input::UpgradeAhead { gfn }),
    ]
}

fn memory() -> impl Strategy<Value = Memory> {
    prop_oneof![Just(Memory::Memfd), Just(Memory::Anonymous)]
}

/// What a change of a form is made of.
#[derive(Clone, Debug)]
struct Draw {
    at: Index,
    frame: u64,
    slice: SliceId,
    number: u64,
    on: bool,
}

fn draw() -> impl Strategy<Value = Draw> {
    let edge = |at: u64| at.saturating_sub(1)..=at.saturating_add(1);
    let anywhere = prop_oneof![edge(600), edge(1100), edge(1536), edge(2048), any::<u64>()];
    let frame = prop_oneof![4 => frame().prop_map(|gfn| gfn.0), 1 => anywhere];
    let number = prop_oneof![0..6_u64, edge(COUNT_MAX), edge(u64::MAX), any::<u64>()];
    let slice =
        prop_oneof![6 => 0..SLICES + 1, 1 => 62..66_u16, 1 => any::<u16>()].prop_map(SliceId);
    (any::<Index>(), frame, slice, number, any::<bool>())
        .prop_map(|(at, frame, slice, number, on)| Draw { at, frame, slice, number, on })
}

fn one<'a, T>(list: &'a mut [T], at: &Index) -> Option<&'a mut T> {
    if list.is_empty() { None } else { Some(at.get_mut(list)) }
}

/// The set with a frame more, or less.
fn toggled(set: &FrameRuns, frame: u64) -> FrameRuns {
    let frame = frame.min(u64::MAX - 1);
    let split = |range: Range<u64>| {
        let (before, after) =
            (range.start..range.end.min(frame), range.start.max(frame + 1)..range.end);
        if range.contains(&frame) { vec![before, after] } else { vec![range] }
    };
    let new = if set.contains(Gfn(frame)) { None } else { Some(frame..frame + 1) };
    FrameRuns::of(set.ranges().flat_map(split).chain(new).collect())
}

fn half(on: bool) -> TableHalf {
    if on { TableHalf::User } else { TableHalf::Kernel }
}

type Change = fn(&mut NodeState, &Draw);

/// Every field, and every field of what lies in it.
const CHANGES: [Change; 32] = [
    |state, draw| state.epoch = Epoch(u32::try_from(draw.number).unwrap_or(u32::MAX)),
    |state, draw| state.slice = draw.slice,
    |state, draw| state.slices.push(draw.slice),
    |state, draw| one(&mut state.slices, &draw.at).into_iter().for_each(|it| *it = draw.slice),
    |state, draw| state.slices.truncate(draw.at.index(4)),
    |state, draw| one(&mut state.homes, &draw.at).into_iter().for_each(|it| it.first = draw.frame),
    |state, draw| one(&mut state.homes, &draw.at).into_iter().for_each(|it| it.pages = draw.number),
    |state, draw| one(&mut state.homes, &draw.at).into_iter().for_each(|it| it.home = draw.slice),
    |state, draw| {
        state.homes.push(HomeState { first: draw.frame, pages: draw.number, home: draw.slice });
    },
    |state, draw| state.vcpus = u32::try_from(draw.number).unwrap_or(u32::MAX),
    |state, draw| {
        state.tables = [TableScope::Nothing, TableScope::Kernel, TableScope::All][draw.at.index(3)];
    },
    |state, draw| state.shared = toggled(&state.shared, draw.frame),
    |state, draw| state.exclusive = toggled(&state.exclusive, draw.frame),
    |state, draw| {
        state.shared = toggled(&state.shared, draw.frame);
        state.exclusive = toggled(&state.exclusive, draw.frame);
    },
    |state, draw| state.never_replicas = toggled(&state.never_replicas, draw.frame),
    |state, draw| {
        one(&mut state.replicas, &draw.at).into_iter().for_each(|it| it.page.0 = draw.frame);
    },
    |state, draw| {
        let level = u8::try_from(draw.number).unwrap_or(u8::MAX);
        one(&mut state.replicas, &draw.at).into_iter().for_each(|it| it.level = level);
    },
    |state, draw| {
        one(&mut state.replicas, &draw.at).into_iter().for_each(|it| it.half = half(draw.on));
    },
    |state, draw| {
        one(&mut state.replicas, &draw.at).into_iter().for_each(|it| it.of_process = draw.on);
    },
    |state, draw| {
        one(&mut state.replicas, &draw.at).into_iter().for_each(|it| it.hash ^= draw.number);
    },
    |state, draw| {
        let Some(replica) = state.replicas.first() else { return };
        state.replicas.push(ReplicaState { page: Gfn(draw.frame), ..replica.clone() });
    },
    |state, draw| state.replicas.truncate(draw.at.index(2)),
    |state, draw| {
        let kinds = [
            HolderKind::Shared,
            HolderKind::Exclusive,
            HolderKind::ExclusiveGrant,
            HolderKind::Replicated,
        ];
        let kind = kinds[usize::try_from(draw.number % 4).unwrap()];
        one(&mut state.directory, &draw.at).into_iter().for_each(|it| it.kind = kind);
    },
    |state, draw| {
        let group = one(&mut state.directory, &draw.at);
        group.into_iter().for_each(|it| it.slices = vec![draw.slice]);
    },
    |state, draw| {
        let group = one(&mut state.directory, &draw.at);
        group.into_iter().for_each(|it| it.slices.push(draw.slice));
    },
    |state, draw| {
        one(&mut state.directory, &draw.at).into_iter().for_each(|it| it.widely_shared = draw.on);
    },
    |state, draw| {
        let group = one(&mut state.directory, &draw.at);
        group.into_iter().for_each(|it| it.frames = toggled(&it.frames, draw.frame));
    },
    |state, draw| {
        // A page changes its holders, in the directory alone.
        for group in &mut state.directory {
            if group.frames.contains(Gfn(draw.frame)) {
                group.frames = toggled(&group.frames, draw.frame);
            }
        }
        let group = one(&mut state.directory, &draw.at);
        group.into_iter().for_each(|it| it.frames = toggled(&it.frames, draw.frame));
    },
    |state, draw| {
        let vcpu = VcpuId(u32::try_from(draw.number).unwrap_or(u32::MAX));
        state.roots.push(RootState { vcpu, page: Gfn(draw.frame) });
    },
    |state, draw| state.newest_flush = draw.number,
    |state, draw| {
        let Some(channel) = one(&mut state.channels, &draw.at) else { return };
        if draw.on { channel.sent = draw.number } else { channel.received = draw.number }
    },
    |state, draw| {
        state.channels.push(Channel { peer: draw.slice, sent: draw.number, received: 0 });
    },
];

/// A form that is refused: the field that is named, and how it came to be.
type Case<'a> = (&'static str, &'a dyn Fn(&mut NodeState));

/// Forms that are in order by themselves, or nearly so, but not of this engine.
#[test]
fn forms_that_do_not_fit_are_refused() {
    let states = states(Vec::new());
    let good = &states[0];
    let other_homes = |state: &mut NodeState| {
        state.homes[3].home = SliceId(2);
        state.directory = states[2].directory.clone();
    };
    let cases: [Case<'_>; 16] = [
        ("slice", &|state| *state = states[1].clone()),
        ("slices", &|state| {
            state.slices.push(SliceId(3));
            state.channels.push(Channel { peer: SliceId(3), sent: 0, received: 0 });
        }),
        ("channels", &|state| state.channels[1].peer = SliceId(3)),
        ("homes", &|state| state.homes[0].pages += 1),
        ("homes", &|state| state.homes[0].pages = u64::MAX),
        ("directory", &other_homes),
        ("shared", &|state| state.shared = toggled(&state.shared, 1100)),
        ("exclusive", &|state| state.exclusive = toggled(&state.exclusive, 1 << 40)),
        ("vcpus", &|state| state.vcpus += 1),
        ("tables", &|state| state.tables = TableScope::Kernel),
        ("epoch", &|state| state.epoch = Epoch(EPOCH.0 + 1)),
        ("newest_flush", &|state| state.newest_flush = COUNT_MAX + 1),
        ("channels", &|state| state.channels[0].received = COUNT_MAX + 1),
        ("replicas", &|state| state.replicas[0].hash ^= 1),
        // It was taken, and was saved as what memory says.
        ("replicas", &|state| state.replicas[0].of_process = false),
        ("replicas", &|state| state.replicas[0].half = TableHalf::User),
    ];
    let mut bench = Bench::new(0, Memory::Memfd, good, &[]);
    for (number, (field, change)) in cases.into_iter().enumerate() {
        let mut state = good.clone();
        change(&mut state);
        let error = bench.engine.take_up(config(0), &state).unwrap_err();
        let EngineError::Restore(invalid) = error else { panic!("form {number}: {error}") };
        assert_eq!(invalid.field, field, "form {number}: {invalid}");
        assert!(!bench.give(config(0), &state).unwrap());
    }
    assert!(bench.give(config(0), good).unwrap(), "nothing has changed before");
}

/// Nobody is to touch the mapping before. Should it happen all the same, pages of other homes are not left where the
/// guest sees what they had, or stores to what it may only read.
#[test]
fn pages_that_were_mapped_before_do_not_stay() {
    for (local, state) in (0..).zip(states(Vec::new())) {
        for memory in [Memory::Memfd, Memory::Anonymous] {
            let touched: Vec<Gfn> = frames().collect();
            let mut bench = Bench::new(local, memory, &state, &touched);
            assert!(bench.give(config(local), &state).unwrap());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn forms_of_nodes_at_rest_are_taken(
        inputs in vec((0..SLICES, input()), 0..20),
        local in 0..SLICES,
        memory in memory(),
        touched in vec(frame(), 0..6),
        later in 0..2_u32,
    ) {
        let state = &states(inputs)[usize::from(local)];
        let mut bench = Bench::new(local, memory, state, &touched);
        let config = Config { epoch: Epoch(EPOCH.0 + later), ..config(local) };
        prop_assert!(bench.give(config, state)?);
    }

    #[test]
    fn changed_forms_are_taken_as_they_are_or_not_at_all(
        inputs in vec((0..SLICES, input()), 0..20),
        changes in vec((0..CHANGES.len(), draw()), 1..4),
        local in 0..SLICES,
        memory in memory(),
    ) {
        let good = &states(inputs)[usize::from(local)];
        let mut bench = Bench::new(local, memory, good, &[]);
        let mut state = good.clone();
        for (change, draw) in changes {
            CHANGES[change](&mut state, &draw);
        }
        if !bench.give(config(local), &state)? {
            // It was no worse for it.
            prop_assert!(bench.give(config(local), good)?);
        }
    }
}

#[test]
fn no_more_of_a_chunk_is_asked_for_while_an_engine_comes_to_rest() {
    let state = &states(Vec::new())[1];
    let mut bench = Bench::new(1, Memory::Memfd, state, &[]);
    let engine = &mut bench.engine;
    let asked = |engine: &Engine| engine.node.stats().prefetches;
    engine.node.set_resting(true);
    engine.begin_chunk(ChunkId::of(Gfn(1536)), Access::Read).unwrap();
    engine.fetch_on().unwrap();
    assert_eq!(asked(engine), 0);
    engine.end_rest().unwrap();
    assert!(asked(engine) > 0);
}

#[test]
fn commands_without_end_leave_the_engine_time_for_the_rest() {
    const ALL: usize = 1000;
    let mut bench = Bench::new(1, Memory::Memfd, &states(Vec::new())[1], &[]);
    let (reply, answers) = bounded(ALL);
    let posted = |_| bench.handle.post(Command::Trace { reply: reply.clone() });
    assert!((0..ALL).all(posted));
    let (mut turns, mut answered) = (0, 0);
    while answered < ALL {
        assert!(bench.engine.waker.is_pending(), "it sleeps with {answered} of {ALL} answered");
        bench.engine.take_commands().unwrap();
        let in_turn = answers.try_iter().count();
        assert!((1..=ALL / 10).contains(&in_turn), "{in_turn} in one turn");
        (turns, answered) = (turns + 1, answered + in_turn);
    }
    assert!(turns >= 10, "{turns} turns");
}
