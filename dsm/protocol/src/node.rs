//! One slice's share of the protocol: state, inputs, effects and dispatch.

use crate::hold::{Habit, Hold, HoldPolicy};
use crate::holder::Deferred;
use crate::home::Serving;
use crate::homes::HomeTable;
use crate::pages::{Copy, Pages, SLICES_MAX};
use crate::release::Releases;
use crate::requester::Wait;
use crate::stats::Stats;
use crate::store::PageStore;
use crate::tables::{Replicate, Tables};
use crate::waits::Waits;
use crate::windows::{Recalls, Windows};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use thiserror::Error;
use wire::{Access, Entry, Epoch, Gfn, Message, SliceId, Table, VcpuId};

/// Default number of vCPUs.
const VCPUS: u32 = 256;

/// What a node is told when it is made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// This slice.
    pub local: SliceId,
    /// All slices, this one too, ascending. At most 64.
    pub slices: Vec<SliceId>,
    /// Who is home of what.
    pub homes: HomeTable,
    /// The epoch. Messages of another are refused.
    pub epoch: Epoch,
    /// The hold window.
    pub hold: HoldPolicy,
    /// Which page-table pages become replicas.
    pub replicate: Replicate,
    /// vCPUs of the VM; a peer that names another breaks the protocol.
    pub vcpus: u32,
    /// A bug to plant.
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<crate::PlantedBug>,
}

impl Config {
    /// A configuration of `epoch` without hold window and without replicated tables.
    #[must_use]
    pub fn new(local: SliceId, slices: Vec<SliceId>, homes: HomeTable, epoch: Epoch) -> Self {
        Self {
            local,
            slices,
            homes,
            epoch,
            hold: HoldPolicy::NONE,
            replicate: Replicate::Nothing,
            vcpus: VCPUS,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }
}

/// Something that happened to this slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A vCPU, or a guard of the VMM, touched a page without the access it needs.
    Fault {
        /// The page.
        gfn: Gfn,
        /// The access it needs: `Read` or `Write`.
        want: Access,
    },
    /// Pages are likely to be touched soon: ask for those that can be had without harm.
    Prefetch {
        /// The first page.
        gfn: Gfn,
        /// How many.
        pages: u16,
        /// The access it will need.
        want: Access,
    },
    /// A message came.
    Message {
        /// The sender.
        from: SliceId,
        /// Its epoch.
        epoch: Epoch,
        /// The message. Its body, if any, is in the store's hands.
        message: Message,
    },
    /// The shell wants to send something through which another slice could learn of this slice's
    /// writes: an interrupt, a device call. Answered by [`Effect::Released`].
    Release {
        /// The shell's number for it.
        token: u64,
    },
    /// Keep the page while the VMM uses it. Answered by [`Effect::Pinned`].
    Pin {
        /// The page.
        gfn: Gfn,
        /// The access needed.
        want: Access,
        /// The shell's number for it.
        token: u64,
    },
    /// The VMM is done with a pinned page.
    Unpin {
        /// The page.
        gfn: Gfn,
    },
    /// A local vCPU was seen with this page-table root.
    Root {
        /// The vCPU.
        vcpu: VcpuId,
        /// Frame of CR3.
        gfn: Gfn,
    },
    /// Time passed: carry out what was deferred.
    Tick,
}

/// Something that the shell must do, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Send the message; if it has a body, the body is the page as it is now.
    Send {
        /// The receiver, never this slice.
        to: SliceId,
        /// The message.
        message: Message,
    },
    /// The release may go.
    Released {
        /// The shell's number.
        token: u64,
    },
    /// The page is here and stays until it is unpinned.
    Pinned {
        /// The shell's number.
        token: u64,
    },
}

/// A peer broke the protocol, or this slice did. The VM must stop: going on could corrupt it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
#[error("{from} sent {what} for {gfn}, which does not fit the state here: {state}")]
pub struct ProtocolError {
    /// Who.
    pub from: SliceId,
    /// The kind of message.
    pub what: &'static str,
    /// The page.
    pub gfn: Gfn,
    /// What was found.
    pub state: &'static str,
}

/// A page pinned by the VMM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pins {
    pub(crate) held: u32,
    pub(crate) waiting: Vec<(Access, u64)>,
}

/// One slice's share of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub(crate) config: Config,
    pub(crate) now: u64,
    pub(crate) pages: Pages,
    /// Requests of this slice on their way.
    pub(crate) waits: Waits,
    /// Requests that a replica answered before the home did. When the replica goes, the home says
    /// whether it dropped the request; if not, the request counts again.
    pub(crate) overtaken: BTreeMap<Gfn, Wait>,
    /// Accesses that wait for an offered replica.
    pub(crate) forming: BTreeMap<Gfn, Access>,
    /// Requests that this home serves.
    pub(crate) serving: BTreeMap<Gfn, Serving>,
    /// Recalls that wait for a page to come, or for the end of a hold window or pin, in order.
    pub(crate) deferred: Recalls,
    /// The hold windows of pages that came lately.
    pub(crate) held: Windows,
    /// What this slice did with pages when they were here last.
    pub(crate) habits: BTreeMap<Gfn, Habit>,
    /// Pages that other slices kept for long after they were asked: how long the last holder did, and how
    /// long this slice waited.
    pub(crate) long_held: BTreeMap<Gfn, (u64, u64)>,
    pub(crate) hold: Hold,
    pub(crate) pins: BTreeMap<Gfn, Pins>,
    pub(crate) tables: Tables,
    pub(crate) releases: Releases,
    /// Late run requests: their sender has got the page already, as the heir of a replica that had answered them
    /// (home only).
    pub(crate) late_runs: BTreeSet<(SliceId, Gfn)>,
    /// Pages that must never be replicated again (home only).
    pub(crate) banned: BTreeSet<Gfn>,
    /// Messages of this slice to itself.
    loopback: VecDeque<Message>,
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
            waits: Waits::new(config.homes.end()),
            overtaken: BTreeMap::new(),
            forming: BTreeMap::new(),
            serving: BTreeMap::new(),
            deferred: Recalls::default(),
            held: Windows::default(),
            habits: BTreeMap::new(),
            long_held: BTreeMap::new(),
            hold: Hold::new(config.hold),
            pins: BTreeMap::new(),
            tables: Tables::new(config.replicate),
            releases: Releases::default(),
            late_runs: BTreeSet::new(),
            banned: BTreeSet::new(),
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
            Input::Message { from, epoch, message } => {
                if epoch != self.config.epoch && !self.epoch_check_lost() {
                    self.stats.epoch_refused += 1;
                } else {
                    self.receive(from, message, store)?;
                }
            }
            Input::Release { token } => {
                self.release(crate::release::Outgoing::External(token));
            }
            Input::Pin { gfn, want, token } => self.pin(gfn, want, token, store),
            Input::Unpin { gfn } => self.unpin(gfn, store),
            Input::Root { vcpu, gfn } => self.local_root(vcpu, gfn),
            Input::Tick => {
                self.carry_out_due(store);
                self.drop_stale_roots(store);
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
        self.pages.copy(gfn) == Copy::Replica
    }

    /// What kind of page table the page is, if replicated tables or a vCPU's root say that it is one.
    #[must_use]
    pub fn table(&self, gfn: Gfn) -> Option<Table> {
        self.tables.table(gfn)
    }

    /// True while a request of this slice for the page is on its way.
    #[must_use]
    pub fn is_waiting(&self, gfn: Gfn) -> bool {
        self.waits.contains(gfn)
    }

    /// True when nothing is on its way, served, deferred or held back here.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.waits.is_empty()
            && self.serving.is_empty()
            && self.deferred.is_empty()
            && self.releases.is_empty()
    }

    /// What is on its way, served, deferred or held back here. For the report of a run that hangs.
    #[must_use]
    pub fn unrest(&self) -> String {
        let Self { config, waits, serving, deferred, releases, pins, .. } = self;
        format!(
            "{}: waits {waits:?}, serving {serving:?}, deferred {deferred:?}, {releases:?}, {pins:?}",
            config.local
        )
    }

    /// The page that this slice has waited for the longest, and since when, in the clock of the steps.
    #[must_use]
    pub fn oldest_wait(&self) -> Option<(Gfn, u64)> {
        self.waits.oldest()
    }

    /// Where a page is, as far as this slice knows: its home, and its holders if that is this slice.
    #[must_use]
    pub fn whereabouts(&self, gfn: Gfn) -> String {
        let home = self.home(gfn).map_or_else(|| "nowhere".into(), |home| home.to_string());
        let Some(holders) = self.pages.holders(gfn) else {
            return format!("its home is {home}, which knows its holder");
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

    /// The epoch of this node and of every message it sends.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.config.epoch
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
        self.hold.set(policy);
    }

    /// The hold window now, in nanoseconds.
    #[must_use]
    pub fn hold_window_ns(&self) -> u64 {
        self.hold.window_ns()
    }

    fn receive(
        &mut self,
        from: SliceId,
        message: Message,
        store: &mut impl PageStore,
    ) -> Result<(), ProtocolError> {
        self.check(from, &message)?;
        match message {
            Message::Get { gfn, want, table } => self.home_get(from, gfn, want, table, store),
            Message::GetRun { gfn, pages, want } => {
                self.home_get_run(from, gfn, pages, want, store)
            }
            Message::Confirm { gfn, held, asked } => self.home_confirm(from, gfn, held, asked),
            Message::Fetch { gfn, requester, keep, acks, owner, table } => self.recalled(
                from,
                Deferred::fetch(gfn, requester, keep, acks, owner, table),
                store,
            ),
            Message::Invalidate { gfn, requester, upgrade } => {
                self.recalled(from, Deferred::invalidate(gfn, requester, upgrade), store)
            }
            Message::Grant { gfn, acks, table } => self.granted(from, gfn, acks, table, store),
            Message::Data { gfn, access, acks, held_us, table } => {
                self.note_held(gfn, held_us);
                self.data(from, gfn, access, acks, table, store)
            }
            Message::Acked { gfn, upgrade, held_us } => {
                self.note_held(gfn, held_us);
                self.acked(from, gfn, upgrade, store)
            }
            Message::Offer { gfn, table } => self.offered(from, gfn, table, store),
            Message::Ready { gfn } => self.ready(from, gfn, store),
            Message::Go { gfn } => self.go(from, gfn, store),
            Message::Diff { flush, entries } => {
                self.diff(from, flush, &entries, store);
                Ok(())
            }
            Message::DiffDone { flush } => self.diff_done(from, flush),
            Message::Demote { gfn, conflict } => self.home_demote(from, gfn, conflict),
            Message::Leave { gfn, heir, dropped } => {
                self.recalled(from, Deferred::leave(gfn, heir, dropped), store)
            }
            Message::Left { gfn, entries } => self.left(from, gfn, &entries, store),
            Message::Demoted { gfn } => self.demoted(from, gfn),
            Message::Root { vcpu, gfn } => {
                self.tables.set_root(vcpu, gfn);
                Ok(())
            }
        }
    }

    /// Frames, slices and vCPUs that a peer may name at all. Everything behind this relies on it.
    fn check(&self, from: SliceId, message: &Message) -> Result<(), ProtocolError> {
        let gfn = message.gfn().unwrap_or_default();
        let no = |state| Err(self.error(from, "a message", gfn, state));
        let is_member = |slice: &SliceId| self.config.slices.binary_search(slice).is_ok();
        if message.gfn().is_some() && self.home(gfn).is_none() {
            return no("no memory there");
        }
        let (named, entries): (_, &[Entry]) = match message {
            Message::Fetch { requester, .. } | Message::Invalidate { requester, .. } => {
                (*requester, &[])
            }
            Message::Leave { heir, .. } => (*heir, &[]),
            Message::Diff { entries, .. } | Message::Left { entries, .. } => (from, entries),
            Message::Root { vcpu, .. } if vcpu.0 >= self.config.vcpus => {
                return no("the VM has no such vCPU");
            }
            _ => (from, &[]),
        };
        if !is_member(&from) || !is_member(&named) {
            return no("a slice that has no share in memory");
        }
        if entries.iter().any(|entry| self.home(entry.gfn).is_none()) {
            return no("an entry of a page without memory");
        }
        Ok(())
    }

    /// Sends a message, to this slice too.
    pub(crate) fn post(&mut self, to: SliceId, message: Message) {
        if to == self.config.local {
            self.loopback.push_back(message);
        } else {
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

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn planted(&self, bug: crate::PlantedBug) -> bool {
        self.config.planted == Some(bug)
    }

    fn epoch_check_lost(&self) -> bool {
        #[cfg(feature = "planted-bugs")]
        return self.planted(crate::PlantedBug::LoseEpochCheck);
        #[cfg(not(feature = "planted-bugs"))]
        return false;
    }
}
