//! One slice's share of the protocol: its state, and the step.

use crate::channels::Channels;
use crate::config::Config;
use crate::effect::Effect;
use crate::error::ProtocolError;
use crate::hold::{Hold, HoldPolicy};
use crate::hold_windows::{HoldHistory, HoldWindows};
use crate::home_moves::HomeMoves;
use crate::homes::HomeTable;
use crate::input::Input;
use crate::mechanisms::Mechanisms;
use crate::outstanding_requests::{OutstandingRequest, OutstandingRequests};
use crate::pages::{PageCopy, Pages};
use crate::pins::Pins;
use crate::planted::PlantedBug;
use crate::recalls::Recalls;
use crate::releases::{Outgoing, Releases};
use crate::serving::Serving;
use crate::stats::Stats;
use crate::store::PageStore;
use crate::tables::Tables;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::{Access, Epoch, Gfn, Message, SLICES_MAX, SliceId, Table};

/// One slice's share of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub(crate) config: Config,
    pub(crate) now: u64,
    pub(crate) pages: Pages,
    /// Requests of this slice on their way.
    pub(crate) outstanding: OutstandingRequests,
    /// Requests that a replica answered before the home did. When the replica goes, the home says
    /// whether it dropped the request; if not, the request counts again.
    pub(crate) overtaken: BTreeMap<Gfn, OutstandingRequest>,
    /// Accesses that wait for an offered replica.
    pub(crate) forming: BTreeMap<Gfn, Access>,
    /// Requests that this home serves.
    pub(crate) serving: BTreeMap<Gfn, Serving>,
    /// Recalls that wait for a page to come, or for the end of a hold window or pin, in order.
    pub(crate) deferred: Recalls,
    /// The hold windows of pages that came lately.
    pub(crate) held: HoldWindows,
    /// What this slice did with pages when they were here last.
    pub(crate) hold_history: BTreeMap<Gfn, HoldHistory>,
    pub(crate) hold: Hold,
    pub(crate) pins: BTreeMap<Gfn, Pins>,
    pub(crate) tables: Tables,
    pub(crate) releases: Releases,
    /// Late run requests: their sender has got the page already, as the heir of a replica that had answered them
    /// (home only).
    pub(crate) late_runs: BTreeSet<(SliceId, Gfn)>,
    /// Pages whose home moves.
    pub(crate) home_moves: HomeMoves,
    /// Pages that must never be replicated again (home only).
    pub(crate) banned: BTreeSet<Gfn>,
    /// Messages to and from each other slice.
    pub(crate) channels: Channels,
    /// Nothing is begun that no vCPU waits for.
    pub(crate) resting: bool,
    /// Messages of this slice to itself.
    pub(crate) loopback: VecDeque<Message>,
    /// A recall that waited and then did not fit.
    pub(crate) broken: Option<ProtocolError>,
    out: Vec<Effect>,
    pub(crate) stats: Stats,
}

impl Node {
    /// A node in the initial state: every page exclusive at its home.
    ///
    /// # Panics
    /// When there are more than 64 slices, or the local one is not among them.
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!(config.slices.iter().all(|slice| slice.0 < SLICES_MAX), "at most 64 slices");
        assert!(config.slices.contains(&config.local), "the local slice is a member");
        Self {
            now: 0,
            pages: Pages::new(config.local, &config.homes),
            outstanding: OutstandingRequests::new(config.homes.end()),
            overtaken: BTreeMap::new(),
            forming: BTreeMap::new(),
            serving: BTreeMap::new(),
            deferred: Recalls::default(),
            held: HoldWindows::default(),
            hold_history: BTreeMap::new(),
            hold: Hold::new(config.hold.limited_to(config.mechanisms)),
            pins: BTreeMap::new(),
            tables: Tables::new(config.replicate),
            releases: Releases::default(),
            late_runs: BTreeSet::new(),
            home_moves: HomeMoves::default(),
            banned: BTreeSet::new(),
            channels: Channels::new(&config.slices),
            resting: false,
            loopback: VecDeque::new(),
            broken: None,
            out: Vec::new(),
            stats: Stats::default(),
            config,
        }
    }

    /// Takes one input at time `now_ns` and appends what the shell must do.
    ///
    /// # Errors
    /// A message that cannot happen: the VM must be stopped.
    pub fn step(
        &mut self,
        now_ns: u64,
        input: Input,
        store: &mut impl PageStore,
        out: &mut Vec<Effect>,
    ) -> Result<(), ProtocolError> {
        self.now = now_ns;
        match input {
            Input::Fault { gfn, want } => self.fault(gfn, want, store),
            Input::Prefetch { gfn, pages, want } => self.prefetch(gfn, pages, want),
            Input::UpgradeAhead { gfn } => self.upgrade_ahead(gfn),
            Input::Message { from, epoch, message } => {
                self.channels.received(from);
                if epoch != self.config.epoch && !self.planted(PlantedBug::LoseEpochCheck) {
                    self.stats.epoch_refused += 1;
                } else {
                    self.receive(from, message, store)?;
                }
            }
            Input::Release { tokens } => {
                tokens.for_each(|token| self.release(Outgoing::External(token)));
            }
            Input::Pin { gfn, want, token } => self.pin(gfn, want, token, store),
            Input::Unpin { gfn } => self.unpin(gfn, store),
            Input::Root { vcpu, gfn } => self.local_root(vcpu, gfn),
            Input::MoveHome { gfn, pages, to, placement } => {
                self.ask_home_move(gfn, pages, to, placement);
            }
            Input::Pull { gfn, pages, from } => self.pull(gfn, pages, from),
            Input::Tick => {
                self.carry_out_due(store);
                if !self.resting {
                    self.drop_stale_roots(store);
                }
            }
        }
        self.end_step(store)?;
        out.append(&mut self.out);
        Ok(())
    }

    /// Messages to this slice itself, then the releases of the whole step after one flush. Both may
    /// bring more of the other.
    fn end_step(&mut self, store: &mut impl PageStore) -> Result<(), ProtocolError> {
        loop {
            while let Some(message) = self.loopback.pop_front() {
                self.receive(self.config.local, message, store)?;
            }
            if let Some(error) = self.broken.take() {
                return Err(error);
            }
            store.settle();
            if !self.send_releases(store) {
                return Ok(());
            }
        }
    }

    /// What this slice may do with a page.
    #[must_use]
    pub fn access(&self, gfn: Gfn) -> Access {
        self.pages.copy(gfn).access()
    }

    /// True when the page is a replica in use here.
    #[must_use]
    pub fn is_replica(&self, gfn: Gfn) -> bool {
        self.pages.copy(gfn) == PageCopy::Replica
    }

    /// What kind of page table the page is, if replicated tables or a vCPU's root say that it is one.
    #[must_use]
    pub fn table(&self, gfn: Gfn) -> Option<Table> {
        self.tables.table(gfn)
    }

    /// True while a request of this slice for the page is on its way.
    #[must_use]
    pub fn is_waiting(&self, gfn: Gfn) -> bool {
        self.outstanding.contains(gfn)
    }

    /// True when nothing is on its way, served, deferred or held back here.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.outstanding.is_empty()
            && self.serving.is_empty()
            && self.deferred.is_empty()
            && self.releases.is_empty()
            && self.home_moves.is_quiet()
    }

    /// What is on its way, served, deferred or held back here. For the report of a run that hangs.
    #[must_use]
    pub fn unrest(&self) -> String {
        let Self { config, outstanding, serving, deferred, releases, pins, home_moves, .. } = self;
        format!(
            "{}: outstanding {outstanding:?}, serving {serving:?}, deferred {deferred:?}, {releases:?}, {pins:?}, \
             {home_moves:?}",
            config.local
        )
    }

    /// The page that this slice has waited for the longest, and since when, in the clock of the steps.
    #[must_use]
    pub fn oldest_wait(&self) -> Option<(Gfn, u64)> {
        self.outstanding.oldest()
    }

    /// Where a page is, as far as this slice knows: its home, and its holders if that is this slice.
    #[must_use]
    pub fn whereabouts(&self, gfn: Gfn) -> String {
        let home = self.home(gfn).map_or_else(|| "nowhere".into(), |home| home.to_string());
        let Some(holders) = self.pages.holders(gfn) else {
            let moves = if self.is_home_moving(gfn) { ", and moves" } else { "" };
            return format!("its home is {home}, which knows its holder{moves}");
        };
        let holders: Vec<_> = holders.iter().map(|slice| slice.to_string()).collect();
        format!("its home is {home}, its holder {}", holders.join(" and "))
    }

    /// When the next [`Input::Tick`] is due, in the clock of the steps.
    #[must_use]
    pub fn next_tick_ns(&self) -> Option<u64> {
        self.deferred.next_due()
    }

    /// The home of a frame, or `None` where there is no memory.
    #[must_use]
    pub fn home(&self, gfn: Gfn) -> Option<SliceId> {
        self.config.homes.home(gfn)
    }

    /// True for a slice that shares this memory.
    #[must_use]
    pub fn is_member(&self, slice: SliceId) -> bool {
        self.config.slices.binary_search(&slice).is_ok()
    }

    /// The homes of all frames, as far as this slice knows.
    #[must_use]
    pub fn homes(&self) -> &HomeTable {
        &self.config.homes
    }

    /// The epoch of this node and of every message it sends.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.config.epoch
    }

    /// The optional mechanisms that this slice uses.
    #[must_use]
    pub fn mechanisms(&self) -> Mechanisms {
        self.config.mechanisms
    }

    /// What this node counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats.clone();
        stats.replicas.pages = self.tables.replica_count();
        stats
    }

    /// Mean time of a fault that needed another slice, less what holders kept the page, in nanoseconds;
    /// 0 before the first.
    #[must_use]
    pub fn mean_transfer_ns(&self) -> u64 {
        self.hold.mean_ns()
    }

    /// Other parameters of the hold window, for pages that come from now on.
    pub fn set_hold(&mut self, policy: HoldPolicy) {
        self.hold.set(policy.limited_to(self.config.mechanisms));
    }

    /// The hold window now, in nanoseconds.
    #[must_use]
    pub fn hold_window_ns(&self) -> u64 {
        self.hold.window_ns()
    }

    /// Sends a message, to this slice too.
    pub(crate) fn post(&mut self, to: SliceId, message: Message) {
        if to == self.config.local {
            self.loopback.push_back(message);
        } else {
            self.channels.sent(to);
            self.stats.messages_out += 1;
            if message.has_body() {
                self.stats.pages_out += 1;
            }
            self.out.push(Effect::Send { to, message });
        }
    }

    pub(crate) fn post_to_others(&mut self, message: &Message) {
        for to in self.others() {
            self.post(to, message.clone());
        }
    }

    pub(crate) fn others(&self) -> Vec<SliceId> {
        self.config.slices.iter().copied().filter(|slice| *slice != self.config.local).collect()
    }

    /// How many slices there are beside this one.
    pub(crate) fn others_count(&self) -> u16 {
        u16::try_from(self.config.slices.len() - 1).expect("at most 64 slices")
    }

    pub(crate) fn effect(&mut self, effect: Effect) {
        self.out.push(effect);
    }

    pub(crate) fn home_of(&self, gfn: Gfn) -> SliceId {
        self.home(gfn).expect("a checked frame")
    }

    pub(crate) fn error(
        &self,
        from: SliceId,
        what: &'static str,
        gfn: Gfn,
        state: &'static str,
    ) -> ProtocolError {
        ProtocolError { from, what, gfn, state }
    }

    /// Whether a test has planted a bug.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn planted(&self, bug: PlantedBug) -> bool {
        self.config.planted == Some(bug)
    }

    #[cfg(not(feature = "planted-bugs"))]
    #[expect(clippy::unused_self, reason = "tests look")]
    pub(crate) const fn planted(&self, _: PlantedBug) -> bool {
        false
    }
}
