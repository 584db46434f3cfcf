//! The engine's thread: faults, frames and commands in, mappings and frames out.
//!
//! ```text
//!   running --Stop---------------------------> stopped
//!      |----peer lost, protocol broken, call failed--> fenced (told to the uplink) -> stopped
//! ```
//!
//! A fenced engine answers nothing any more: whoever waits for a page keeps waiting. Going on could hand out stale
//! memory. So guest memory stays watched when the engine has ended, for as long as it is mapped
//! ([`GuestRam::stay_watched`](crate::GuestRam::stay_watched)).

use super::clock::Clock;
use super::command::{Command, Commands, OwnCommands, Release};
use super::config::EngineConfig;
use super::copying::Copying;
use super::handle::Handle;
use super::homes::HomeMoves;
use super::outbound::Outbound;
use super::overdue::{Late, Overdue};
use super::poll::{Ready, poll};
use super::rest::Rest;
use super::schedule;
use super::snapshot_error::SnapshotError;
use super::uplink::Uplink;
use super::wait_policy::WaitPolicy;
use super::waker::Waker;
use crate::async_faults::Workers;
use crate::error::EngineError;
use crate::kernel::Fault;
use crate::mapping::Store;
use crate::observe::{Classifier, Trace};
use crate::prefetch::Prefetcher;
use crossbeam_channel::Sender;
use dsm_protocol::{Effect, Input, Node};
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use wire::SliceId;

/// The longest sleep: stale roots are looked for that often.
const IDLE: Duration = Duration::from_millis(250);
/// The engine. Lives on its own thread.
pub struct Engine {
    pub(crate) node: Node,
    pub(crate) store: Store,
    pub(crate) outbound: Outbound,
    pub(super) uplink: Box<dyn Uplink>,
    pub(crate) commands: Commands,
    pub(super) own_commands: Arc<OwnCommands>,
    /// Taken out of the queue, and still to be executed.
    pub(super) next_command: Option<Command>,
    pub(super) waker: Arc<Waker>,
    pub(super) clock: Clock,
    /// What steps have decided and is to be carried out.
    pub(super) effects: Vec<Effect>,
    /// Room that is used again, of effects being carried out.
    pub(super) spare: Vec<Effect>,
    pub(super) next_token: u64,
    /// Frames that wait until changes of tables are visible everywhere, by token.
    pub(super) releases: BTreeMap<u64, Release>,
    /// Copies that wait for a page, by token.
    pub(super) copies: BTreeMap<u64, Copying>,
    pub(super) classifier: Classifier,
    pub(super) trace: Trace,
    pub(super) faults: Vec<Fault>,
    pub(super) prefetcher: Prefetcher,
    pub(super) workers: Workers,
    overdue: Overdue,
    pub(super) bystanders: Vec<SliceId>,
    /// Slices that have left and not joined again. What comes from them means nothing, and nor does their loss.
    pub(super) departed: Vec<SliceId>,
    pub(super) wait_policy: WaitPolicy,
    pub(super) home_moves: HomeMoves,
    /// Who waits until all memory is protected.
    pub(super) protecting: Option<Sender<Result<(), SnapshotError>>>,
    /// A rest that was asked for and has not come.
    pub(super) rest: Option<Rest>,
    pub(super) stopping: bool,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("local", &self.outbound.transport.local())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens userfaultfd, watches what must be watched and starts the thread.
    ///
    /// # Errors
    /// A kernel without the needed features, or memory that does not fit the home table.
    pub fn start(config: EngineConfig) -> Result<(Handle, JoinHandle<()>), EngineError> {
        let core = config.core;
        let (handle, engine) = Self::assemble(config, Clock::Host(Instant::now()))?;
        Ok((handle, engine.spawn(core)?))
    }

    /// Starts the thread.
    pub(super) fn spawn(mut self, core: Option<usize>) -> Result<JoinHandle<()>, EngineError> {
        let run = move || {
            self.own_commands.claim();
            schedule::prefer_this_thread();
            schedule::settle(core);
            if let Err(error) = self.run() {
                self.uplink.fatal(error);
            }
            let ram = Arc::clone(&self.store.ram);
            ram.stay_watched(self.store.into_uffd());
        };
        Builder::new().name("dsm".into()).spawn(run).map_err(EngineError::Start)
    }

    /// An engine that has not begun. All that was watched is watched from now on.
    pub(crate) fn assemble(
        config: EngineConfig,
        clock: Clock,
    ) -> Result<(Handle, Self), EngineError> {
        let (handle, commands, waker) = Handle::pair().map_err(EngineError::Start)?;
        let uffd = config.ram.userfaultfd()?;
        let (own, others): (Vec<_>, Vec<_>) =
            config.node.homes.ranges().iter().partition(|range| range.home == config.node.local);
        let frames = |ranges: Vec<&dsm_protocol::HomeRange>| -> Vec<_> {
            ranges.into_iter().map(|range| range.frames.clone()).collect()
        };
        let mechanisms = config.node.mechanisms;
        let store = Store::new(uffd, config.ram, &frames(own), &frames(others), mechanisms)?;
        let mut engine = Self {
            node: Node::new(config.node),
            store,
            outbound: Outbound::new(config.transport, mechanisms),
            uplink: config.uplink,
            commands,
            own_commands: Arc::clone(&handle.own),
            next_command: None,
            waker,
            clock,
            effects: Vec::new(),
            spare: Vec::new(),
            next_token: 0,
            releases: BTreeMap::new(),
            copies: BTreeMap::new(),
            classifier: Classifier::default(),
            trace: Trace::new(config.trace),
            faults: Vec::new(),
            prefetcher: Prefetcher::new(mechanisms),
            workers: Workers::default(),
            overdue: Overdue::new(config.wait_limit),
            bystanders: config.bystanders,
            departed: Vec::new(),
            wait_policy: WaitPolicy::new(mechanisms),
            home_moves: HomeMoves::default(),
            protecting: None,
            rest: None,
            stopping: false,
        };
        engine.outbound.find_remote_writers(&engine.store.ram);
        Ok((handle, engine))
    }

    fn run(&mut self) -> Result<(), EngineError> {
        while !self.stopping {
            let ready = self.wait()?;
            self.turn(ready)?;
        }
        Ok(())
    }

    /// Does what there is to do.
    pub(crate) fn turn(&mut self, ready: Ready) -> Result<(), EngineError> {
        if ready.faults {
            self.take_faults()?;
        }
        if ready.commands {
            self.take_commands()?;
        }
        if ready.frames || !self.outbound.backlog.is_empty() {
            self.take_frames()?;
        }
        self.stopping |= !self.stopping && !self.uplink.looked();
        self.step(Input::Tick)?;
        self.move_homes()?;
        self.pull_on()?;
        self.carry_out()?;
        let now = self.now();
        self.look_for_overdue(now)?;
        self.store.end_expired_probes(now)?;
        self.store.map_pieces(now)?;
        self.store.tend(now)?;
        self.protect_on()?;
        if self.rest.is_some() {
            self.look_at_rest();
            self.fetch_on()?;
        }
        Ok(())
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now_ns()
    }

    /// When there is something to do at the latest, even if nothing comes.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let store = &self.store;
        let rest = self.rest.as_ref().map(|rest| rest.until_ns);
        [
            rest,
            self.protection_due(),
            self.node.next_tick_ns(),
            store.probe_pages.due_ns(),
            store.chunk_fetches.due_ns(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Sleeps until there is something to do; tells whether faults, frames or commands wait.
    fn wait(&mut self) -> Result<Ready, EngineError> {
        let now = self.now();
        let chunk_awaited = self.store.chunk_fetches.is_awaited();
        let look = self.wait_policy.look(&self.node, chunk_awaited);
        let due = self.due_ns();
        let due = due.map_or(IDLE, |due| Duration::from_nanos(due.saturating_sub(now)).min(IDLE));
        let fds = [
            self.store.uffd.as_raw_fd(),
            self.outbound.transport.readiness().as_raw_fd(),
            self.waker.as_raw_fd(),
        ];
        let limit = look.min(due);
        let start = Instant::now();
        while start.elapsed() < limit {
            let came = self.outbound.transport.look();
            // Faults and commands are looked for too, or frames that keep coming would hold them up.
            let mut ready = poll(fds, Duration::ZERO).map_err(EngineError::Wait)?;
            ready.frames |= came;
            if ready.faults || ready.frames || ready.commands {
                return Ok(ready);
            }
            self.trace.look_at_notes();
        }
        self.trace.look_at_notes();
        // Looking has taken of the time until then. A hold window would last twice as long otherwise.
        poll(fds, due.saturating_sub(start.elapsed())).map_err(EngineError::Wait)
    }

    /// One step of the protocol. What it decides is added to `effects`.
    pub(super) fn step(&mut self, input: Input) -> Result<(), EngineError> {
        let now = self.now();
        let mut store = self.store.with_body(None);
        self.node.step(now, input, &mut store, &mut self.effects)?;
        self.store.take_failure().map_or(Ok(()), Err)
    }

    /// Ends the VM when something is waited for that does not come.
    fn look_for_overdue(&mut self, now: u64) -> Result<(), EngineError> {
        if !self.overdue.is_due(now) {
            return Ok(());
        }
        let release = self.releases.keys().next().copied();
        let (what, waited, whereabouts) =
            match self.overdue.look(now, self.node.oldest_wait(), release) {
                None => return Ok(()),
                Some(Late::Page(gfn, waited)) => {
                    (format!("{gfn} has been waited for"), waited, self.node.whereabouts(gfn))
                }
                Some(Late::Release(waited)) => {
                    let what = "changes of tables have not been acknowledged".into();
                    (what, waited, "by a slice that lives".into())
                }
            };
        tracing::error!("memory: {}", self.node.unrest());
        Err(EngineError::Overdue { what, waited, whereabouts })
    }
}
