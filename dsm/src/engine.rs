//! The engine's thread: faults, frames and commands in, mappings and frames out.
//!
//! ```text
//!   running --Stop---------------------------> stopped
//!      |----peer lost, protocol broken, call failed--> fenced (told to the uplink) -> stopped
//! ```
//!
//! A fenced engine answers nothing any more: whoever waits for a page keeps waiting. Going on could hand out stale
//! memory. So guest memory stays watched when the engine has ended, for as long as it is mapped
//! ([`GuestRam::stay_watched`]).
#![expect(unsafe_code, reason = "poll")]
// UNSAFETY: poll(2) takes an array of descriptors.

use crate::backlog::Backlog;
use crate::classify::{Classifier, PageClass};
use crate::clock::Clock;
use crate::device_pages::DeviceUse;
use crate::error::EngineError;
use crate::handle::{Bell, Command, Commands, CopyError, Handle, OwnCommands, Tuning};
use crate::inbox::Inbox;
use crate::mapping::Fault;
use crate::overdue::Overdue;
use crate::parcel::Parcel;
use crate::ram::GuestRam;
use crate::report::{FaultCounts, PageMoves, Report};
use crate::schedule::{self, Look};
use crate::store::Store;
use crate::trace::{Company, FaultKind, Trace, Tracing};
use crate::workers::{Verdict, Workers};
use crossbeam_channel::Sender;
use dsm_protocol::foresight::{Companions, Lack, Runs};
use dsm_protocol::{Access, Config, Effect, Gfn, Input, Node};
use std::collections::BTreeMap;
use std::io::Error;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use transport::{Class, Event, Transport};
use wire::{PAGE_SIZE, SliceId};

/// Transport events handled before faults and commands are looked at again.
const POLL_BUDGET: usize = 64;
/// For so long after a message that somebody waits for, frames of runs are handled one at a time: each is work for
/// up to 64 pages, and the next such message may have come meanwhile.
const URGENT_NS: u64 = 5_000_000;
/// How long frames of a run may wait for a vCPU that goes through a chunk of the same run: about as long as it
/// takes a core to read 2 MiB. Whatever else wakes the engine ends that.
const REST_NS: u64 = 250_000;
/// The longest sleep: stale roots are looked for that often.
const IDLE: Duration = Duration::from_millis(250);
/// A page asked for that often without being known as a table makes the VMM look at CR3 again.
const SAMPLE_EVERY: u32 = 16;
/// From so many faults on it is looked for what a page is lacked together with: most pages never come twice.
const OFTEN: u32 = 4;

/// What the engine tells the VMM. Called on the engine's thread: return at once.
pub trait Uplink: Send {
    /// A frame that is not about coherence came.
    fn frame(&mut self, from: SliceId, class: Class, bytes: &[u8]);
    /// The engine begins to look at what its peers sent, and to speak to those that have not heard from it.
    fn looks(&mut self) {}
    /// The engine has just looked at what its peers sent, spoken to those that had not heard from it, and goes round
    /// again. None is lost that it has not told of. False: it is to stop.
    fn looked(&mut self) -> bool {
        true
    }
    /// A slice is lost: the VM must stop, unless it was a bystander.
    fn lost(&mut self, peer: SliceId, cause: String);
    /// The engine cannot go on: the VM must stop.
    fn fatal(&mut self, error: EngineError);
    /// Some page is hot and unknown: look at the roots of the local vCPUs.
    fn sample_roots(&mut self);
    /// A vCPU waits for this page: let it say where it is, by [`Handle::sampled`]. `thread` is its
    /// thread, or one of the kernel's that waits in its name. A VMM that cannot ask does nothing.
    fn sample_fault(&mut self, _gfn: Gfn, _thread: u32) {}
}

/// What there is to do for an engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ready {
    pub(crate) faults: bool,
    pub(crate) frames: bool,
    pub(crate) commands: bool,
}

/// What an engine is made of.
pub struct EngineConfig {
    /// The core that the engine's thread runs on, if it is not to be left to the scheduler. On the core
    /// of its vCPU, a fault wakes it without an interrupt to another core.
    pub core: Option<usize>,
    /// Whether pages behind a run of faults are fetched before they are touched.
    pub fetch_ahead: bool,
    /// The protocol's configuration.
    pub node: Config,
    /// Guest memory, already laid out.
    pub ram: Arc<GuestRam>,
    /// Slices that are no members of the protocol: memory goes on without them.
    pub bystanders: Vec<SliceId>,
    /// The connection to the other slices.
    pub transport: Box<dyn Transport>,
    /// The VMM.
    pub uplink: Box<dyn Uplink>,
    /// Whoever waits for longer than this waits in vain: several leases.
    pub wait_limit: Duration,
    /// Which pages are traced from the start; see [`Handle::set_trace`].
    pub trace: Tracing,
}

impl std::fmt::Debug for EngineConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineConfig").field("node", &self.node).finish_non_exhaustive()
    }
}

/// A copy between guest memory and a buffer, in progress.
struct Copying {
    address: u64,
    done: usize,
    bytes: Vec<u8>,
    write: bool,
    reply: Sender<Result<Vec<u8>, CopyError>>,
}

impl Copying {
    /// Page, offset in it, and bytes of the next piece.
    fn piece(&self) -> (Gfn, usize, usize) {
        let at = self.address + u64::try_from(self.done).expect("a buffer fits");
        let offset = usize::try_from(at % 4096).expect("less than a page");
        (Gfn(at / 4096), offset, (PAGE_SIZE - offset).min(self.bytes.len() - self.done))
    }
}

/// The engine. Lives on its own thread.
pub struct Engine {
    pub(crate) node: Node,
    pub(crate) store: Store,
    pub(crate) transport: Box<dyn Transport>,
    uplink: Box<dyn Uplink>,
    pub(crate) commands: Commands,
    own_commands: Arc<OwnCommands>,
    bell: Arc<Bell>,
    clock: Clock,
    pub(crate) effects: Vec<Effect>,
    /// Room that is used again: of effects being carried out, and of a message's head.
    pub(crate) spare: Vec<Effect>,
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
    /// Pages that go out together.
    pub(crate) parcel: Parcel,
    /// How the pages travel that are being sent.
    pub(crate) company: Company,
    pub(crate) backlog: Backlog,
    next_token: u64,
    pub(crate) releases: BTreeMap<u64, (SliceId, Class, Vec<u8>)>,
    copies: BTreeMap<u64, Copying>,
    classifier: Classifier,
    pub(crate) trace: Trace,
    /// Pages that a vCPU waits for.
    demanded: Vec<Gfn>,
    faults: Vec<Fault>,
    /// None when nothing is fetched ahead.
    pub(crate) runs: Option<Runs>,
    pub(crate) companions: Option<Companions>,
    /// Pages asked for with others that are lacked at the same times.
    pub(crate) companions_asked: u64,
    /// Of these, pages that were here already and were to be written.
    pub(crate) upgraded_ahead: u64,
    workers: Workers,
    pub(crate) overdue: Overdue,
    bystanders: Vec<SliceId>,
    /// Cores that this process may use.
    cores: usize,
    /// Slices that may write pages into our memory.
    pub(crate) placers: Vec<SliceId>,
    pub(crate) moved: PageMoves,
    stopping: bool,
    /// Until then frames of a run may wait.
    rest_until_ns: u64,
    /// Until then they are handled one at a time.
    urgent_until_ns: u64,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("local", &self.transport.local()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens userfaultfd, watches what must be watched and starts the thread.
    ///
    /// # Errors
    /// A kernel without the needed features, or memory that does not fit the home table.
    pub fn start(config: EngineConfig) -> Result<(Handle, JoinHandle<()>), EngineError> {
        let (ram, core) = (Arc::clone(&config.ram), config.core);
        let (handle, mut engine) = Self::assemble(config, Clock::Host(Instant::now()))?;
        let run = move || {
            engine.own_commands.claim();
            schedule::prefer_this_thread();
            schedule::settle(core);
            if let Err(error) = engine.run() {
                engine.uplink.fatal(error);
            }
            ram.stay_watched(engine.store.into_uffd());
        };
        let thread = Builder::new().name("dsm".into()).spawn(run).map_err(EngineError::Start)?;
        Ok((handle, thread))
    }

    /// An engine that has not begun. All that was watched is watched from now on.
    pub(crate) fn assemble(
        config: EngineConfig,
        clock: Clock,
    ) -> Result<(Handle, Self), EngineError> {
        let (handle, commands, bell) = Handle::pair().map_err(EngineError::Start)?;
        let uffd = config.ram.userfaultfd()?;
        let (own, others): (Vec<_>, Vec<_>) =
            config.node.homes.ranges().iter().partition(|range| range.home == config.node.local);
        let frames = |ranges: Vec<&dsm_protocol::HomeRange>| -> Vec<_> {
            ranges.into_iter().map(|range| range.frames.clone()).collect()
        };
        let store = Store::new(uffd, config.ram, &frames(own), &frames(others))?;
        let runs = config.fetch_ahead.then(Runs::default);
        let companions = config.fetch_ahead.then(Companions::default);
        let mut engine = Self {
            node: Node::new(config.node),
            store,
            transport: config.transport,
            uplink: config.uplink,
            commands,
            own_commands: Arc::clone(&handle.own),
            bell,
            clock,
            effects: Vec::new(),
            spare: Vec::new(),
            head: Vec::new(),
            body: Vec::new(),
            parcel: Parcel::default(),
            company: Company::Alone,
            backlog: Backlog::default(),
            next_token: 0,
            releases: BTreeMap::new(),
            copies: BTreeMap::new(),
            classifier: Classifier::default(),
            trace: Trace::new(config.trace),
            demanded: Vec::new(),
            faults: Vec::new(),
            runs,
            companions,
            companions_asked: 0,
            upgraded_ahead: 0,
            workers: Workers::default(),
            overdue: Overdue::new(config.wait_limit),
            bystanders: config.bystanders,
            cores: schedule::cores(),
            placers: Vec::new(),
            moved: PageMoves::default(),
            stopping: false,
            rest_until_ns: 0,
            urgent_until_ns: 0,
        };
        engine.find_placers();
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
        if ready.frames || !self.backlog.is_empty() {
            self.take_frames()?;
        }
        self.stopping |= !self.stopping && !self.uplink.looked();
        self.step(Input::Tick)?;
        self.carry_out()?;
        let now = self.now();
        self.look_for_overdue(now)?;
        self.store.answer_expired(now)?;
        self.store.map_pieces(now)?;
        self.store.tend(now)
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now_ns()
    }

    /// When there is something to do at the latest, even if nothing comes.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let store = &self.store;
        [self.node.next_tick_ns(), store.asked.due_ns(), store.whole.due_ns()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Sleeps until there is something to do; tells whether faults, frames or commands wait.
    fn wait(&mut self) -> Result<Ready, EngineError> {
        let now = self.now();
        let look = self.look(now);
        let due = [self.due_ns(), look.wake_ns].into_iter().flatten().min();
        let due = due.map_or(IDLE, |due| Duration::from_nanos(due.saturating_sub(now)).min(IDLE));
        let fds = [
            self.store.uffd.as_raw_fd(),
            self.transport.readiness().as_raw_fd(),
            self.bell.as_raw_fd(),
        ];
        let limit = look.spin.min(due);
        let start = Instant::now();
        while start.elapsed() < limit {
            let came = self.transport.look();
            // Faults and commands are looked for too, or frames that keep coming would hold them up.
            let mut ready = poll(fds, Duration::ZERO).map_err(EngineError::Wait)?;
            ready.frames |= came;
            if ready.faults || ready.frames || ready.commands {
                return Ok(ready);
            }
            self.trace.look_at_notes();
        }
        self.trace.look_at_notes();
        // A vCPU that goes through the chunk it was just given is not to be interrupted for each frame.
        let Some(rest) = self.rest(now) else {
            return poll(fds, due).map_err(EngineError::Wait);
        };
        self.transport.hush(true);
        let ready = poll(fds, due.min(rest));
        self.transport.hush(false);
        ready.map_err(EngineError::Wait)
    }

    /// For how long frames of a run may wait.
    fn rest(&mut self, now: u64) -> Option<Duration> {
        if std::mem::take(&mut self.store.provided) {
            self.rest_until_ns = now + REST_NS;
        }
        let is_awaited = !self.demanded.is_empty() || self.store.whole.is_awaited();
        let left = self.rest_until_ns.saturating_sub(now);
        (left > 0 && !is_awaited).then(|| Duration::from_nanos(left))
    }

    /// How long to look for answers before sleeping, and when to be awake for one.
    fn look(&mut self, now: u64) -> Look {
        let node = &self.node;
        self.demanded.retain(|gfn| node.is_waiting(*gfn));
        let limit = schedule::spin_limit(Duration::from_nanos(node.mean_transfer_ns()), self.cores);
        let chunk = self.store.whole.is_awaited().then(|| Look::new(limit, now, None));
        let looks = self.demanded.iter().map(|gfn| Look::new(limit, now, node.expected_ns(*gfn)));
        let looks = looks.chain(chunk);
        looks.reduce(Look::join).unwrap_or_default()
    }

    fn take_faults(&mut self) -> Result<(), EngineError> {
        let mut faults = std::mem::take(&mut self.faults);
        let mut sampled = None;
        self.store.uffd.read(&mut faults).map_err(EngineError::Wait)?;
        for fault in faults.drain(..) {
            let Some(gfn) = self.store.ram.frame_at(fault.address) else { continue };
            let want = self.wanted(gfn, fault)?;
            self.fault(gfn, want)?;
            if self.trace.is_due(gfn) && self.node.is_waiting(gfn) {
                sampled = Some((gfn, fault.thread));
            }
        }
        self.faults = faults;
        self.carry_out()?;
        // The requests are out; whoever is asked waits for the answer anyway.
        if let Some((gfn, thread)) = sampled {
            self.uplink.sample_fault(gfn, thread);
        }
        Ok(())
    }

    fn fault(&mut self, gfn: Gfn, want: Access) -> Result<(), EngineError> {
        let held = self.node.access(gfn);
        let missed = held < want && !self.node.is_waiting(gfn);
        let (mut ask, mut often) = (want, false);
        if missed {
            ask = self.foreseen(gfn, want, held);
            tracing::trace!(gfn = gfn.0, ?want, ?ask, ?held, "fault");
            often = self.count_fault(gfn, FaultKind::of(held, want))? >= OFTEN;
        }
        let marker = self.store.ahead.touched(gfn);
        let chunk = self.touch_whole(gfn)?;
        self.step(Input::Fault { gfn, want: ask })?;
        if self.node.is_waiting(gfn) && !self.demanded.contains(&gfn) {
            self.demanded.push(gfn);
        }
        if often && self.node.is_waiting(gfn) {
            self.fetch_companions(Lack { gfn, want: ask })?;
        }
        match chunk {
            Some(first) => self.fetch_ahead(first, want, false),
            None if missed || marker => self.fetch_ahead(gfn, want, missed),
            None => Ok(()),
        }
    }

    /// The access to ask for: more than a read needs, where this slice always writes next.
    fn foreseen(&mut self, gfn: Gfn, want: Access, held: Access) -> Access {
        if self.node.table(gfn).is_some() {
            return want;
        }
        self.store.habits.fault(gfn, held, want)
    }

    /// What the vCPU behind a fault wants. Where only the vCPU can tell, reading is the least of it:
    /// the page is on its way while the vCPU is asked.
    fn wanted(&mut self, gfn: Gfn, fault: Fault) -> Result<Access, EngineError> {
        if let Verdict::Wants(want) = self.workers.judge(&fault, self.held(gfn)) {
            self.store.answer(gfn)?;
            return Ok(want);
        }
        if self.class(gfn) != PageClass::Other {
            // A walk: it sets accessed bits, and AMD's always needs to write.
            return Ok(Access::Write);
        }
        if self.store.habits.foresees(gfn) {
            self.workers.guessed += 1;
        } else {
            self.workers.asked += 1;
            self.store.ask(gfn)?;
        }
        Ok(Access::Read)
    }

    /// The access that a worker can have seen here. A page that is asked about may have come since.
    fn held(&self, gfn: Gfn) -> Access {
        let store = &self.store;
        let hidden = store.ahead.is_untouched(gfn) || store.whole.hides(gfn);
        let unseen = store.asked.contains(gfn) || hidden;
        if unseen { Access::None } else { self.node.access(gfn) }
    }

    /// KVM refused a vCPU a store, to the page that was asked about last: a wrong page is got for
    /// nothing, and the vCPU is refused again.
    fn refused(&mut self) -> Result<(), EngineError> {
        let Some(gfn) = self.store.asked.latest() else { return Ok(()) };
        self.store.answer(gfn)?;
        self.fault(gfn, Access::Write)
    }

    fn class(&mut self, gfn: Gfn) -> PageClass {
        let now = self.now();
        self.classifier.class(gfn, now, &self.node, &self.store.ram)
    }

    /// Counts a fault on a page. How many there were so far.
    fn count_fault(&mut self, gfn: Gfn, kind: FaultKind) -> Result<u32, EngineError> {
        let (class, known) = (self.class(gfn), self.node.table(gfn).is_some());
        let count = self.trace.fault(self.now(), gfn, kind, class, known);
        if known {
            return Ok(count);
        }
        let missed_table = class != PageClass::Other && count.is_power_of_two();
        if missed_table || count.is_multiple_of(SAMPLE_EVERY) {
            self.uplink.sample_roots();
        }
        if missed_table {
            self.fetch_roots()?;
        }
        Ok(count)
    }

    /// Asks for the roots of other slices' vCPUs, so that they become replicas.
    ///
    /// A kernel that starts a vCPU lets it run on a root of its own for a while. That root and
    /// this slice's share the kernel's tables, which go back and forth: no replica points to them
    /// as long as each root is used by one slice only.
    fn fetch_roots(&mut self) -> Result<(), EngineError> {
        for gfn in self.classifier.roots() {
            let absent = self.node.access(gfn) == Access::None && !self.node.is_waiting(gfn);
            if absent && self.node.table(gfn).is_some() {
                self.step(Input::Fault { gfn, want: Access::Write })?;
            }
        }
        Ok(())
    }

    fn take_commands(&mut self) -> Result<(), EngineError> {
        // The bell only wakes; the channel holds the commands. What they send goes out together.
        self.bell.silence();
        let corked = self.commands.len() > 1;
        if corked {
            self.transport.cork(true);
        }
        let result = self.take_commands_corked();
        if corked {
            self.transport.cork(false);
        }
        result
    }

    fn take_commands_corked(&mut self) -> Result<(), EngineError> {
        while let Some(command) = self.own_commands.pop().or_else(|| self.commands.pop()) {
            match command {
                Command::Send { to, class, frame } => {
                    let token = self.token();
                    self.releases.insert(token, (to, class, frame));
                    self.step(Input::Release { token })?;
                }
                Command::Copy { address, bytes, write, reply } => {
                    let copying = Copying { address, done: 0, bytes, write, reply };
                    self.next_piece(copying)?;
                }
                // The guest chooses its root, and may choose one without memory.
                Command::Root { vcpu, gfn } if self.node.home(gfn).is_some() => {
                    self.classifier.set_root(vcpu, gfn);
                    self.step(Input::Root { vcpu, gfn })?;
                }
                Command::Root { .. } => {}
                Command::Refused { reply } => {
                    self.refused()?;
                    let _ = reply.send(());
                }
                Command::Wanted { gfn, reply } => {
                    self.store.answer(gfn)?;
                    self.fault(gfn, Access::Write)?;
                    let _ = reply.send(());
                }
                Command::Report { reply } => {
                    // Whoever asked may have given up.
                    let _ = reply.send(self.report());
                }
                Command::ForgetDevicePages { only } => self.store.ram.forget_device_pages(only),
                Command::Tune { tuning } => self.tune(tuning),
                Command::Trace { reply } => {
                    let _ = reply.send(self.trace.report(self.now()));
                }
                Command::SetTrace { tracing } => self.trace.set(tracing),
                Command::Sampled { gfn, site } => self.trace.sampled(gfn, site),
                Command::LogState => {
                    let (backlog, releases) = (self.backlog.len(), self.releases.len());
                    let unrest = self.node.unrest();
                    tracing::info!(
                        backlog,
                        releases,
                        copies = self.copies.len(),
                        "memory: {unrest}"
                    );
                }
                Command::Stop => self.stopping = true,
            }
            self.carry_out()?;
        }
        Ok(())
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn next_piece(&mut self, copying: Copying) -> Result<(), EngineError> {
        if copying.done == copying.bytes.len() {
            let _ = copying.reply.send(Ok(copying.bytes));
            return Ok(());
        }
        let (gfn, _, _) = copying.piece();
        if self.node.home(gfn).is_none() {
            let _ = copying.reply.send(Err(CopyError::NoMemory(gfn.0 * 4096)));
            return Ok(());
        }
        let want = if copying.write { Access::Write } else { Access::Read };
        let token = self.token();
        self.copies.insert(token, copying);
        self.step(Input::Pin { gfn, want, token })
    }

    /// The page of a copy is here: copy the piece and go on with the next.
    pub(crate) fn pinned(&mut self, token: u64) -> Result<(), EngineError> {
        let Some(mut copying) = self.copies.remove(&token) else { return Ok(()) };
        let (gfn, offset, len) = copying.piece();
        let piece = copying.done..copying.done + len;
        if copying.write {
            self.store.ram.write(gfn, offset, &copying.bytes[piece]);
        } else {
            self.store.ram.read(gfn, offset, &mut copying.bytes[piece]);
        }
        copying.done += len;
        self.step(Input::Unpin { gfn })?;
        self.next_piece(copying)
    }

    fn take_frames(&mut self) -> Result<(), EngineError> {
        let mut result = Ok(());
        let Self { node, store, transport, uplink, effects, classifier, trace, clock, .. } = self;
        let (placers, moved) = (&self.placers, &mut self.moved);
        let mut inbox = Inbox { node, store, classifier, trace, effects, placers, moved };
        let (bystanders, mut lost) = (&self.bystanders, Vec::<(SliceId, String)>::new());
        let (mut fenced, mut urgent) = (false, false);
        let is_urgent = clock.now_ns() < self.urgent_until_ns;
        uplink.looks();
        transport.limit_runs(if is_urgent { 1 } else { POLL_BUDGET });
        transport.poll(POLL_BUDGET, &mut |event| {
            match event {
                // All of them, for each is told once; and what comes behind a bystander's counts.
                Event::Lost { peer, cause } => {
                    fenced |= !bystanders.contains(&peer);
                    lost.push((peer, cause));
                }
                _ if result.is_err() || fenced => {}
                Event::Frame { from, class: class @ (Class::Coherence | Class::Run), bytes } => {
                    urgent |= class == Class::Coherence;
                    result = inbox.take(clock.now_ns(), from, class, bytes);
                }
                Event::Head { bytes, length, landing, .. } => {
                    *landing = inbox.landing(bytes, length);
                }
                Event::Landed { from, bytes, length } => {
                    result = inbox.landed(clock.now_ns(), from, bytes, length);
                }
                Event::Frame { from, class, bytes } => uplink.frame(from, class, bytes),
            }
        });
        result?;
        if urgent {
            self.urgent_until_ns = self.now() + URGENT_NS;
        }
        self.stopping |= fenced;
        for (peer, cause) in lost {
            self.uplink.lost(peer, cause);
        }
        if self.stopping {
            return Ok(());
        }
        self.store.map_pending()?;
        self.fetch_on()?;
        self.carry_out()
    }

    pub(crate) fn step(&mut self, input: Input) -> Result<(), EngineError> {
        let now = self.now();
        let mut store = self.store.with_body(None);
        self.node.step(now, input, &mut store, &mut self.effects)?;
        self.store.take_failure().map_or(Ok(()), Err)
    }

    fn tune(&mut self, tuning: Tuning) {
        if let Some(policy) = tuning.hold {
            self.node.set_hold(policy);
        }
        if let Some(on) = tuning.companions {
            self.companions = on.then(|| self.companions.take().unwrap_or_default());
        }
    }

    pub(crate) fn report(&self) -> Report {
        let stats = self.node.stats();
        let of_devices = |what| self.store.ram.device_pages(what);
        let (device_pages, device_page_moves) = of_devices(DeviceUse::Data);
        let (device_frame_pages, device_frame_page_moves) = of_devices(DeviceUse::Frame);
        Report {
            device_pages,
            device_page_moves,
            device_frame_pages,
            device_frame_page_moves,
            page_moves: self.moved,
            faults: FaultCounts {
                read: stats.faults_read,
                write: stats.faults_write,
                upgrade: stats.faults_upgrade.saturating_sub(self.upgraded_ahead),
            },
            faults_by_class: self.trace.classes(),
            faults_local: stats.faults_local,
            waited_us: stats.waited_ns / 1000,
            held_us: stats.held_ns / 1000,
            prefetches: stats.prefetches,
            companions_asked: self.companions_asked,
            worker_faults_asked: self.workers.asked,
            worker_faults_guessed: self.workers.guessed,
            writes_foreseen: self.store.habits.foreseen,
            writes_foreseen_in_vain: self.store.habits.in_vain,
            pages_in: stats.pages_in,
            pages_out: stats.pages_out,
            invalidations: stats.invalidations,
            deferrals: stats.deferrals,
            messages_out: stats.messages_out,
            epoch_refused: stats.epoch_refused,
            replica_pages: stats.replicas.pages,
            replica_conversions: stats.replicas.conversions,
            replica_demotions: stats.replicas.demotions,
            replica_flushes: stats.replicas.flushes,
            replica_diffs: stats.replicas.diffs,
            replica_entries_out: stats.replicas.entries_out,
            replica_entries_in: stats.replicas.entries_in,
            replica_conflicts: stats.replicas.conflicts,
            hold_window_ns: self.node.hold_window_ns(),
            hot_pages: self.trace.hottest(),
            hot_tables: self.trace.hottest_tables(),
            chunks: self.store.chunk_counts(),
        }
    }
}

/// Waits until one of the descriptors is readable or the time is over: those of faults, frames and commands.
fn poll(fds: [RawFd; 3], limit: Duration) -> Result<Ready, Error> {
    let mut array = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(1),
        tv_nsec: libc::c_long::from(limit.subsec_nanos().cast_signed()),
    };
    // SAFETY: three initialised descriptors, a valid time, no signal mask.
    let result = unsafe { libc::ppoll(array.as_mut_ptr(), 3, &raw const time, std::ptr::null()) };
    if result >= 0 {
        let [faults, frames, commands] = array.map(|fd| fd.revents != 0);
        return Ok(Ready { faults, frames, commands });
    }
    let error = Error::last_os_error();
    if error.raw_os_error() == Some(libc::EINTR) { Ok(Ready::default()) } else { Err(error) }
}
