//! One slice's engine, a turn at a time, over a kernel of state machines: what the simulator is made of.
//!
//! Engine, store and chunks are those of a VM. Time, the transport and the kernel's side of the guest mapping are the
//! simulator's.

pub use crate::kernel::fake::{Between, FakeKernel, Touch};
pub use crate::memory::Source;
pub use crate::planted::PlantedBug;

use crate::engine::{
    Clock, Command, CopyError, Engine, EngineConfig, Handle, HomeMove, HomeMoveError, JoinError,
    LeaveError, Pull, Ready, RestError, SnapshotError, Uplink,
};
use crate::error::EngineError;
use crate::kernel::PAGE;
use crate::memory::collapse_pass;
use crate::memory::{ChunkId, GuestRam, LoadError, Loaded, Memory, RamError};
use crate::observe::{Report, Tracing};
use crate::snapshot::SnapshotReader;
use crossbeam_channel::{Receiver, bounded};
use dsm_protocol::saved::{Here, NodeState};
use dsm_protocol::{Config, Epoch, Gfn, HomeRange, HomeTable};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use thiserror::Error;
use transport::{Class, Transport};
use wire::{PAGE_SIZE, SliceId};

/// Why a slice cannot be simulated.
#[derive(Debug, Error)]
pub enum SimulateError {
    /// No memory.
    #[error("make guest memory")]
    Ram(#[from] RamError),
    /// Memory cannot come later.
    #[error("have memory come later")]
    Load(#[from] LoadError),
    /// No engine.
    #[error("make the engine")]
    Engine(#[from] EngineError),
}

/// What a slice is made of.
#[derive(Debug)]
pub struct SliceConfig<T> {
    /// The protocol's configuration.
    pub node: Config,
    /// Frames that have memory.
    pub frames: Vec<Range<u64>>,
    /// Of what private chunks are made.
    pub memory: Memory,
    /// To the other slices.
    pub transport: T,
    /// Nanoseconds.
    pub clock: Arc<AtomicU64>,
    /// Of what is random in the kernel.
    pub seed: u64,
    /// One in so many requests finds the address space changing; none if 0.
    pub again: u64,
    /// Whoever waits for longer waits in vain.
    pub wait_limit: Duration,
    /// A bug to plant.
    pub planted: Option<PlantedBug>,
    /// Where the contents of its home are, if they are not zeros.
    pub source: Option<Arc<dyn Source>>,
}

/// A saved node, and what writes the contents of memory.
type Saved<'a> = (&'a NodeState, &'a dyn Fn(&GuestRam));

/// Frames for the VMM are of no interest here.
struct Silent;

impl Uplink for Silent {
    fn frame(&mut self, _: SliceId, _: Class, _: &[u8]) {}
    fn lost(&mut self, _: SliceId, _: String) {}
    fn fatal(&mut self, _: EngineError) {}
    fn sample_roots(&mut self) {}
}

/// A slice that stands still between its turns.
#[derive(Debug)]
pub struct SteppedSlice {
    engine: Engine,
    handle: Handle,
    ram: Arc<GuestRam>,
    kernel: FakeKernel,
    memory: Memory,
    /// Number of the engine's userfaultfd. That of loading is the first.
    uffd: usize,
}

impl SteppedSlice {
    /// Memory, kernel and engine.
    ///
    /// # Errors
    /// There is no memory, or it does not fit the home table.
    pub fn new<T: Transport + 'static>(config: SliceConfig<T>) -> Result<Self, SimulateError> {
        Self::from(config, None)
    }

    /// The same, going on from a saved node, with memory that `fill` has written.
    ///
    /// # Errors
    /// As for [`Self::new`] and [`Engine::restore`].
    pub fn restored<T: Transport + 'static>(
        config: SliceConfig<T>,
        saved: &NodeState,
        fill: &dyn Fn(&GuestRam),
    ) -> Result<Self, SimulateError> {
        Self::from(config, Some((saved, fill)))
    }

    fn from<T: Transport + 'static>(
        config: SliceConfig<T>,
        saved: Option<Saved<'_>>,
    ) -> Result<Self, SimulateError> {
        let SliceConfig { node, frames, memory, transport, clock, .. } = config;
        let of_own = |range: &&HomeRange| range.home == node.local;
        let own: Vec<_> = node.homes.ranges().iter().filter(of_own).collect();
        let own: Vec<_> = own.into_iter().map(|range| range.frames.clone()).collect();
        let made = Mutex::new(None);
        let ram = GuestRam::with_mapping(&frames, &own, memory, |span, file| {
            let kernel = FakeKernel::new(span, file, config.seed, config.again)?;
            *made.lock().expect("nobody panics here") = Some(kernel.clone());
            Ok(Box::new(kernel))
        })?;
        let kernel = made.into_inner().expect("nobody panics here").expect("just made");
        let ram = Arc::new(ram);
        if let Some((_, fill)) = saved {
            fill(&ram);
        }
        let uffd = usize::from(config.source.is_some());
        if let Some(source) = config.source {
            ram.begin_loading(&own, source, (config.wait_limit, config.planted))?;
        }
        let engine = EngineConfig {
            core: None,
            node: node.clone(),
            ram: Arc::clone(&ram),
            bystanders: Vec::new(),
            transport: Box::new(transport),
            uplink: Box::new(Silent),
            wait_limit: config.wait_limit,
            trace: Tracing::default(),
        };
        let (handle, mut engine) = Engine::assemble(engine, Clock::Simulated(clock))?;
        engine.store.planted = config.planted;
        if let Some((saved, _)) = saved {
            engine.take_up(node, saved)?;
        }
        Ok(Self { engine, handle, ram, kernel, memory, uffd })
    }

    /// Does what there is to do; `frames` says that some came.
    ///
    /// # Errors
    /// What would end the VM.
    pub fn turn(&mut self, frames: bool) -> Result<(), EngineError> {
        let faults = self.has_faults();
        let commands = self.engine.commands.len() > 0;
        self.engine.turn(Ready { faults, frames, commands })
    }

    /// True when the engine has a fault to take.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        self.kernel.has_faults(self.uffd)
    }

    /// True when somebody waits for memory that is not loaded.
    #[must_use]
    pub fn has_load_faults(&self) -> bool {
        self.uffd > 0 && self.kernel.has_faults(0)
    }

    /// Loads one piece of memory that was not here: what somebody waits for, or the first. False if all is here.
    ///
    /// # Errors
    /// It does not come.
    pub fn load(&mut self) -> Result<bool, EngineError> {
        self.ram.load_one().map_err(EngineError::Load)
    }

    /// How much has been loaded.
    #[must_use]
    pub fn loaded(&self) -> Loaded {
        self.ram.loaded()
    }

    /// When the next turn is due at the latest, in nanoseconds, if one is.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.engine.due_ns()
    }

    /// True while frames wait for room.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        !self.engine.outbound.backlog.is_empty()
    }

    /// The kernel below it.
    #[must_use]
    pub fn kernel(&self) -> &FakeKernel {
        &self.kernel
    }

    /// Number of a frame's page in the mapping, if it has memory.
    #[must_use]
    pub fn page(&self, gfn: Gfn) -> Option<usize> {
        self.ram.offset(gfn).map(|offset| offset / PAGE_SIZE)
    }

    /// Asks the engine to come to rest.
    #[must_use]
    pub fn rest(&self, limit: Duration) -> Receiver<Result<(), RestError>> {
        let (reply, answer) = bounded(1);
        self.handle.post(Command::Rest { limit, reply });
        answer
    }

    /// Ends a rest.
    pub fn go_on(&self) {
        self.handle.go_on();
    }

    /// Whether a slice may leave.
    ///
    /// # Errors
    /// Why not.
    pub fn may_part_with(&self, slice: SliceId) -> Result<(), LeaveError> {
        self.engine.may_part_with(slice)
    }

    /// A slice leaves.
    ///
    /// # Errors
    /// Why not.
    pub fn part_with(&mut self, slice: SliceId) -> Result<(), String> {
        let parted = self.engine.part_with(slice).map_err(|error| error.to_string())?;
        parted.map_err(|error| error.to_string())
    }

    /// Whether a slice may join. Gives its form.
    ///
    /// # Errors
    /// Why not.
    pub fn may_join_with(&mut self, slice: SliceId) -> Result<NodeState, JoinError> {
        self.engine.may_join_with(slice)
    }

    /// A slice joins. Gives back its form.
    ///
    /// # Errors
    /// Why not.
    pub fn join_with(&mut self, slice: SliceId) -> Result<NodeState, String> {
        let joined = self.engine.join_with(slice).map_err(|error| error.to_string())?;
        joined.map_err(|error| error.to_string())
    }

    /// The form of the node, at rest.
    ///
    /// # Errors
    /// Something is under way.
    pub fn save(&mut self) -> Result<NodeState, RestError> {
        self.engine.save()
    }

    /// Has all memory protected.
    #[must_use]
    pub fn protect(&self) -> Receiver<Result<(), SnapshotError>> {
        let (reply, answer) = bounded(1);
        self.handle.post(Command::Protect { reply });
        answer
    }

    /// Freezes what this slice has, at rest.
    ///
    /// # Errors
    /// Why there is no snapshot.
    pub fn freeze(&mut self, here: &Here) -> Result<SnapshotReader, SnapshotError> {
        self.engine.freeze(here)
    }

    /// How often pages were protected again for a snapshot while other slices were not ready.
    #[must_use]
    pub fn upkeep(&self) -> u64 {
        self.engine.store.protection.as_ref().map_or(0, |at| at.upkeep)
    }

    /// Guest memory.
    #[must_use]
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// What puts chunks on huge pages, for a thread of its own.
    pub fn collapser(&self) -> impl FnMut() + Send + use<> {
        let (ram, mut refusals) = (Arc::clone(&self.ram), 0);
        move || {
            collapse_pass(&ram, &mut |_| true, &mut refusals);
        }
    }

    /// Has homes of frames move.
    #[must_use]
    pub fn move_home(
        &self,
        frames: Range<u64>,
        to: SliceId,
        placement: Epoch,
    ) -> Receiver<Result<(), HomeMoveError>> {
        let (reply, answer) = bounded(1);
        self.handle.post(Command::MoveHome(HomeMove { frames, to, placement, reply }));
        answer
    }

    /// Brings pages of this home here.
    #[must_use]
    pub fn pull_home(
        &self,
        frames: Range<u64>,
        from: SliceId,
    ) -> Receiver<Result<(), HomeMoveError>> {
        let (reply, answer) = bounded(1);
        self.handle.post(Command::PullHome(Pull { frames, from, fetched: None, reply }));
        answer
    }

    /// The homes as this slice knows them.
    #[must_use]
    pub fn homes(&self) -> HomeTable {
        self.engine.node.homes().clone()
    }

    /// KVM refused a vCPU a store; the answer says that it may try again.
    #[must_use]
    pub fn refuse(&self) -> Receiver<()> {
        let (reply, answer) = bounded(1);
        self.handle.post(Command::Refused { reply });
        answer
    }

    /// A device reads or writes a word of guest memory.
    #[must_use]
    pub fn copy(
        &self,
        gfn: Gfn,
        word: usize,
        write: Option<u64>,
    ) -> Receiver<Result<Vec<u8>, CopyError>> {
        let (reply, answer) = bounded(1);
        let address = gfn.0 * PAGE + u64::try_from(word * 8).expect("inside a page");
        let bytes = write.unwrap_or(0).to_le_bytes().to_vec();
        self.handle.post(Command::Copy { address, bytes, write: write.is_some(), reply });
        answer
    }

    /// All that this slice knows of a page, in a line for a person.
    #[must_use]
    pub fn state_of(&self, gfn: Gfn) -> String {
        let Engine { node, store, .. } = &self.engine;
        let mapped = self.page(gfn).map(|page| self.kernel.access(page));
        format!(
            "access {:?}, waiting {}, (load, store) {mapped:?}, place {:?}, private {}, readable {}, probed {}, \
             prefetched {}, hidden {}",
            node.access(gfn),
            node.is_waiting(gfn),
            self.ram.place(ChunkId::of(gfn)),
            store.chunks.is_private(ChunkId::of(gfn)),
            store.readable.contains(gfn),
            store.probe_pages.contains(gfn),
            store.prefetched.is_untouched(gfn),
            store.chunk_fetches.hides(gfn),
        )
    }

    /// Of what its private chunks are made.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// The counters.
    #[must_use]
    pub fn report(&self) -> Report {
        self.engine.report()
    }
}
