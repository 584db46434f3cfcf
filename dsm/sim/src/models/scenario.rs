//! What a model is made of: slices, pages, and the programs of the vCPUs.

use crate::store::Page;
use dsm_protocol::{
    Access, Config, Epoch, Gfn, HoldPolicy, HomeRange, HomeTable, Mechanisms, Message, Node,
    PlantedBug, Replicate, SliceId,
};

/// The epoch of every model.
pub(crate) const EPOCH: Epoch = Epoch(7);
/// The release that flushes a node which comes to rest.
pub(super) const REST: u64 = u64::MAX - 1;

/// One step of a vCPU's program. A load or store that lacks access faults until it gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Read or write entry 0 of any of these pages; the model tries all choices.
    Any(&'static [u64]),
    /// Load an entry and compare it with the flat memory.
    Load(u64, u16),
    /// A page-table walk through an entry: a load that needs write access (nested paging).
    Walk(u64, u16),
    /// A walk through an entry and the table it points to, unordered: nothing is compared.
    Descend(u64, u16),
    /// Store a value.
    Store(u64, u16, u64),
    /// Store without an order to other stores of the same entry: the flat memory is not told.
    Race(u64, u16, u64),
    /// Spin until the entry has the value.
    Await(u64, u16, u64),
    /// Take the lock in entry 0 of the page (an atomic exchange).
    Lock(u64),
    /// Let the lock go.
    Unlock(u64),
    /// Store as the next owner of a page that was a table: nobody may hold it as a replica now.
    Reuse(u64, u16, u64),
    /// The processor writes through an entry if the entry permits it.
    WriteThrough(u64, u16),
    /// Exchange an entry for nothing, and look at its dirty bit.
    TakeBack(u64, u16),
    /// The vCPU's root becomes this page.
    Root(u64),
    /// A release of the shell: raises the interrupt of this number when it may go.
    Interrupt(u8),
    /// Wait for the interrupt.
    AwaitInterrupt(u8),
    /// So many pages are asked for ahead, for reading (false) or writing (true).
    Prefetch(u64, u16, bool),
    /// A page is asked for, to be written, if it can be read.
    UpgradeAhead(u64),
    /// The VMM pins the page for reading (false) or writing (true).
    Pin(u64, bool),
    /// The VMM lets go of it.
    Unpin(u64, bool),
    /// Two seconds pass on this slice.
    Elapse,
    /// Wait until the slice has left that is to leave.
    AwaitLeave,
    /// Wait until the slice has joined that is to join.
    AwaitJoin,
}

/// A vCPU: where it runs and what.
#[derive(Clone, Debug)]
pub struct Vcpu {
    /// Its slice.
    pub slice: u16,
    /// Its program.
    pub ops: Vec<Op>,
}

/// Steps that run one by one, with an idle network after each, before the model starts.
pub type Prologue = Vec<(u16, Op)>;

/// One model.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name for printing.
    pub name: &'static str,
    /// How many slices.
    pub slices: u16,
    /// Home of each frame, from frame 0.
    pub homes: Vec<u16>,
    /// First contents: frame, page.
    pub contents: Vec<(u64, Page)>,
    /// Pages whose readable copies must equal the flat memory in every state.
    pub strict: Vec<u64>,
    /// The vCPUs. Number of a vCPU: its index.
    pub vcpus: Vec<Vcpu>,
    /// What happened before.
    pub prologue: Prologue,
    /// Whether kernel tables become replicas.
    pub replicate: bool,
    /// Hold window; 0 is none. Its end is an action of its own.
    pub hold_ns: u64,
    /// Whether pages that are written all the time stay longer.
    pub busy: bool,
    /// Messages on their way from another epoch: from, to, message.
    pub stale: Vec<(u16, u16, Message)>,
    /// Whether a slice may be lost, at any moment.
    pub lose: bool,
    /// Homes that move, one after another, each at any moment: first frame, pages, to. Slice 0 asks for it.
    pub moves: Vec<(u64, u16, u16)>,
    /// They begin when this interrupt was raised.
    pub moves_after: Option<u8>,
    /// A slice that leaves, at any moment after its programs have ended and the homes have moved.
    pub leaver: Option<u16>,
    /// A slice that joins, at any moment.
    pub joiner: Option<u16>,
    /// A bug to plant.
    pub planted: Option<PlantedBug>,
    /// A broken transport: keeps in order only messages of a pair for which this gives the same.
    pub stray: Option<fn(&Message) -> u8>,
}

impl Scenario {
    /// A scenario of ordinary pages: all of them strict, in order, no hold window.
    #[must_use]
    pub fn new(name: &'static str, slices: u16, homes: Vec<u16>) -> Self {
        let strict = (0..).take(homes.len()).collect();
        Self {
            name,
            slices,
            homes,
            contents: Vec::new(),
            strict,
            vcpus: Vec::new(),
            prologue: Vec::new(),
            replicate: false,
            hold_ns: 0,
            busy: false,
            stale: Vec::new(),
            lose: false,
            moves: Vec::new(),
            moves_after: None,
            leaver: None,
            joiner: None,
            planted: None,
            stray: None,
        }
    }

    /// Adds a vCPU.
    #[must_use]
    pub fn vcpu(mut self, slice: u16, ops: impl Into<Vec<Op>>) -> Self {
        self.vcpus.push(Vcpu { slice, ops: ops.into() });
        self
    }

    /// Pages that are written all the time stay twice as long, or thrice where others write them too.
    #[must_use]
    pub fn busy(mut self) -> Self {
        self.busy = true;
        self
    }

    /// The home of so many pages moves, at any moment after those that were named before.
    #[must_use]
    pub fn moves(mut self, first: u64, pages: u16, to: u16) -> Self {
        self.moves.push((first, pages, to));
        self
    }

    /// This slice leaves. Homes move off it first.
    #[must_use]
    pub fn leaves(mut self, slice: u16) -> Self {
        self.leaver = Some(slice);
        self
    }

    /// This slice is not there at the start, and joins. It is home of nothing, and not part of what happened before.
    #[must_use]
    pub fn joins(mut self, slice: u16) -> Self {
        self.joiner = Some(slice);
        self.prologue.retain(|(of, _)| *of != slice);
        self
    }

    /// Sets the hold window.
    #[must_use]
    pub fn hold(mut self, hold_ns: u64) -> Self {
        self.hold_ns = hold_ns;
        self
    }

    /// Plants a bug.
    #[must_use]
    pub fn plant(mut self, bug: PlantedBug) -> Self {
        self.planted = Some(bug);
        self
    }

    /// Has the transport keep in order only messages of a pair for which this gives the same.
    #[must_use]
    pub fn stray(mut self, of: fn(&Message) -> u8) -> Self {
        self.stray = Some(of);
        self
    }

    pub(crate) fn home(&self, gfn: u64) -> u16 {
        usize::try_from(gfn).ok().and_then(|at| self.homes.get(at)).copied().expect("a frame")
    }

    /// A node of those that are there at the start.
    pub(crate) fn node(&self, local: u16) -> Node {
        let there = (0..self.slices).filter(|slice| *slice == local || Some(*slice) != self.joiner);
        Node::new(self.config(local, there.map(SliceId).collect()))
    }

    pub(crate) fn config(&self, local: u16, slices: Vec<SliceId>) -> Config {
        let ranges = (0..).zip(&self.homes);
        let ranges = ranges
            .map(|(frame, home)| HomeRange { frames: frame..frame + 1, home: SliceId(*home) });
        let busy = if self.busy { 2 * self.hold_ns } else { 0 };
        let hold = HoldPolicy {
            busy_min_ns: busy,
            busy_max_ns: busy,
            contended_max_ns: busy / 2 * 3,
            ..HoldPolicy::fixed(self.hold_ns)
        };
        Config {
            local: SliceId(local),
            slices,
            homes: HomeTable::new(ranges.collect()).expect("ranges of one frame each"),
            epoch: EPOCH,
            hold,
            mechanisms: Mechanisms::ALL,
            vcpus: 64,
            replicate: if self.replicate { Replicate::AllTables } else { Replicate::Nothing },
            planted: self.planted,
        }
    }
}

impl Op {
    /// Page and access that the step needs, if it is a load or store.
    pub(crate) fn needs(self) -> Option<(Gfn, Access)> {
        match self {
            Self::Load(gfn, _) | Self::Await(gfn, ..) => Some((Gfn(gfn), Access::Read)),
            Self::Walk(gfn, _)
            | Self::Descend(gfn, _)
            | Self::Store(gfn, ..)
            | Self::Race(gfn, ..)
            | Self::WriteThrough(gfn, _)
            | Self::TakeBack(gfn, _)
            | Self::Lock(gfn)
            | Self::Unlock(gfn)
            | Self::Reuse(gfn, ..) => Some((Gfn(gfn), Access::Write)),
            _ => None,
        }
    }
}
