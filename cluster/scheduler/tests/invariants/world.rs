//! Hosts as their agents see them: they do what the scheduler says, and know nothing of its ledger.

use scheduler::cluster::{HostState, Move};
use scheduler::policy::Policy;
use scheduler::{
    Discipline, Effect, HostId, Input, ReservationId, Resources, Scheduler, Settings, Share, Spec,
    VmId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What must hold.
pub(crate) mod names {
    pub(crate) const SUM: &str = "I1: a running VM has what it asked for";
    pub(crate) const KEEPS: &str = "I2: nothing is taken from a running VM";
    pub(crate) const ROOM: &str =
        "I3: no host has more than it has room for, also while slices move";
    pub(crate) const EXPIRES: &str = "I4: reservations expire";
    pub(crate) const PAUSE: &str = "I5: moves stand still for a bounded time";
    pub(crate) const BACK: &str = "I5: a move can be given up until it flips, and then it cannot";
    pub(crate) const BUDGET: &str = "I6: moves of a host and of a VM are few";
    pub(crate) const RETURN: &str = "I7: nothing goes back at once, unless its host is drained";
    pub(crate) const RESTS: &str =
        "a move that has failed is tried again later, and later each time";
    pub(crate) const KNOWN: &str = "a VM waits, starts or runs";
    pub(crate) const ORDER: &str = "nobody passes one that has waited for too long";
    pub(crate) const LEDGER: &str = "the ledger adds up";
    pub(crate) const ALL: [&str; 12] =
        [SUM, KEEPS, ROOM, EXPIRES, PAUSE, BACK, BUDGET, RETURN, RESTS, KNOWN, ORDER, LEDGER];
}

type ByHost = BTreeMap<HostId, Resources>;

/// What agents keep for a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kept {
    vm: VmId,
    hosts: ByHost,
    /// Of a move.
    step: Option<Move>,
    expires: u64,
    flips: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World<P> {
    pub(crate) scheduler: Scheduler<P>,
    settings: Settings,
    pub(crate) now: u64,
    totals: Vec<Resources>,
    /// VMs that came and have not gone.
    live: BTreeMap<VmId, Arc<Spec>>,
    pub(crate) running: BTreeMap<VmId, ByHost>,
    pub(crate) kept: BTreeMap<ReservationId, Kept>,
    /// Agents have given it up by now, and an executor may not know yet.
    pub(crate) late: BTreeMap<ReservationId, Kept>,
    made: Vec<(u64, Move)>,
    /// When moves of VMs have failed, one after another.
    failed: BTreeMap<VmId, Vec<u64>>,
    pub(crate) broken: BTreeSet<&'static str>,
    /// What has been seen, for properties that say that it can be.
    pub(crate) seen: BTreeSet<&'static str>,
}

impl<P: Policy> World<P> {
    pub(crate) fn new(scheduler: Scheduler<P>, settings: Settings) -> Self {
        let totals = scheduler.cluster().hosts().iter().map(|host| host.total()).collect();
        Self {
            scheduler,
            settings,
            now: 0,
            totals,
            live: BTreeMap::new(),
            running: BTreeMap::new(),
            kept: BTreeMap::new(),
            late: BTreeMap::new(),
            made: Vec::new(),
            failed: BTreeMap::new(),
            broken: BTreeSet::new(),
            seen: BTreeSet::new(),
        }
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = VmId> {
        self.live.keys().copied()
    }

    pub(crate) fn flipping(&self) -> impl Iterator<Item = ReservationId> {
        self.kept.iter().filter(|(_, kept)| kept.flips).map(|(id, _)| *id)
    }

    pub(crate) fn prepared(&self) -> impl Iterator<Item = ReservationId> {
        self.kept.iter().filter(|(_, kept)| !kept.flips).map(|(id, _)| *id)
    }

    pub(crate) fn pass(&mut self, time: u64) {
        self.now += time;
        let now = self.now;
        let over = |kept: &Kept| !kept.flips && kept.expires <= now;
        let late: Vec<_> =
            self.kept.iter().filter(|(_, kept)| over(kept)).map(|(id, _)| *id).collect();
        for id in late {
            self.late.extend(self.kept.remove(&id).map(|kept| (id, kept)));
        }
        self.input(&Input::Passed);
    }

    /// Tells the scheduler, does what it says, and judges. Returns whether it was taken.
    pub(crate) fn input(&mut self, input: &Input) -> bool {
        let before: Vec<VmId> = self.running.keys().copied().collect();
        let aged = self.oldest();
        let mut effects = Vec::new();
        let taken = self.scheduler.step(self.now, input.clone(), &mut effects).is_ok();
        if taken {
            self.take(input);
        }
        for effect in &effects {
            self.act(effect, input);
        }
        let gone = |vm: &VmId| matches!(input, Input::Depart { vm: gone } if gone == vm);
        let kept = |vm: &VmId| gone(vm) || self.scheduler.cluster().vm(*vm).is_some();
        if !before.iter().all(kept) {
            self.broken.insert(names::KEEPS);
        }
        self.judge_order(aged, &effects);
        self.judge();
        taken
    }

    /// What the executor has done before it reported this.
    fn take(&mut self, input: &Input) {
        match input {
            Input::Arrive { vm, spec } => {
                self.live.insert(*vm, Arc::clone(spec));
            }
            Input::Depart { vm } => {
                self.live.remove(vm);
                self.running.remove(vm);
                self.failed.remove(vm);
                self.kept.retain(|_, kept| kept.vm != *vm);
                self.late.retain(|_, kept| kept.vm != *vm);
            }
            Input::Failed { reservation } => {
                let kept = self.kept.remove(reservation);
                if kept.as_ref().is_some_and(|kept| kept.flips) {
                    self.broken.insert(names::BACK);
                }
                if let Some(vm) = kept.filter(|kept| kept.step.is_some()).map(|kept| kept.vm) {
                    self.note_failure(vm);
                }
                self.late.remove(reservation);
            }
            Input::Flipped { reservation } => {
                let Some(kept) = self.kept.remove(reservation) else { return };
                let (Some(step), Some(vm)) = (kept.step, self.running.get_mut(&kept.vm)) else {
                    return;
                };
                let to = vm.entry(step.to).or_default();
                *to = to.plus(step.resources);
                let from = vm.entry(step.from).or_default();
                *from = from.minus(step.resources);
                vm.retain(|_, has| !has.is_none());
                self.failed.remove(&kept.vm);
            }
            Input::Ready { reservation } => {
                let late = self.late.remove(reservation);
                self.kept.extend(late.map(|kept| (*reservation, kept)));
            }
            Input::Measured { .. } | Input::Host { .. } | Input::Passed => {}
        }
    }

    fn act(&mut self, effect: &Effect, input: &Input) {
        match effect {
            Effect::Start { reservation, vm, decision, expires } => {
                let hosts = decision.shares.iter().map(|it: &Share| (it.host, it.resources));
                // One that has devices alone has nothing that is counted here.
                let hosts: ByHost = hosts.filter(|(_, has)| !has.is_none()).collect();
                if decision.shares.len() > 1 {
                    self.seen.insert("split");
                }
                let kept = Kept { vm: *vm, hosts, step: None, expires: *expires, flips: false };
                self.kept.insert(*reservation, kept);
            }
            Effect::Run { vm } => {
                let Input::Ready { reservation } = input else { return };
                let hosts = self.kept.remove(reservation).map(|kept| kept.hosts);
                self.running.insert(*vm, hosts.unwrap_or_default());
            }
            Effect::Waits { .. } => {
                self.seen.insert("waits");
            }
            Effect::Move { reservation, step, expires, pause_us } => {
                self.judge_move(step, *pause_us);
                self.made.push((self.now, step.clone()));
                let hosts = [(step.to, step.resources)].into();
                let step = Some(step.clone());
                let vm = step.as_ref().map_or_else(VmId::default, |step| step.vm);
                let kept = Kept { vm, hosts, step, expires: *expires, flips: false };
                self.kept.insert(*reservation, kept);
            }
            Effect::Flip { reservation } => {
                if let Some(kept) = self.kept.get_mut(reservation) {
                    kept.flips = true;
                }
            }
            Effect::Expired { reservation, vm } => {
                self.seen.insert("expired");
                let kept = self.kept.remove(reservation);
                self.late.extend(kept.map(|kept| (*reservation, kept)));
                let late = self.late.get(reservation);
                if late.is_some_and(|kept| kept.step.is_some()) {
                    self.note_failure(*vm);
                }
            }
            Effect::HandBack { .. } => {
                self.seen.insert("hand-back");
            }
        }
    }

    fn note_failure(&mut self, vm: VmId) {
        let (now, most) = (self.now, self.settings.limits.rest_max);
        let until = self.rests_until(vm);
        let failed = self.failed.entry(vm).or_default();
        if until.is_some_and(|until| until + most <= now) {
            failed.clear();
        }
        failed.push(now);
    }

    /// When something of a VM may move again of which something has failed.
    fn rests_until(&self, vm: VmId) -> Option<u64> {
        let failed = self.failed.get(&vm)?;
        let limits = self.settings.limits;
        // It has doubled with each but the first.
        let time =
            failed.iter().skip(1).fold(limits.rest, |time, _| (time * 2).min(limits.rest_max));
        failed.last().map(|last| last + time)
    }

    fn judge_move(&mut self, step: &Move, pause_us: u64) {
        if self.rests_until(step.vm).is_some_and(|until| self.now < until) {
            self.broken.insert(names::RESTS);
        }
        let limits = self.settings.limits;
        if pause_us > self.settings.pause_max_us {
            self.broken.insert(names::PAUSE);
        }
        let now = self.now;
        let recent = |at: u64| at + limits.window > now;
        let of_host = |host: HostId| {
            let made = self.made.iter().filter(|(at, _)| recent(*at));
            made.filter(|(_, made)| made.from == host || made.to == host).count() + 1
        };
        let of_vm = self.made.iter().filter(|(at, made)| recent(*at) && made.vm == step.vm);
        let few = |count: usize, most: u32| u32::try_from(count).is_ok_and(|count| count <= most);
        if !few(of_host(step.from), limits.moves_per_host)
            || !few(of_host(step.to), limits.moves_per_host)
            || !few(of_vm.count() + 1, limits.moves_per_vm)
        {
            self.broken.insert(names::BUDGET);
        }
        let back = |(at, made): &&(u64, Move)| {
            let is_recent = *at + limits.no_way_back > now;
            is_recent && made.vm == step.vm && (made.from, made.to) == (step.to, step.from)
        };
        let from = self.scheduler.cluster().host(step.from);
        let is_drain = from.is_some_and(|host| host.state() == HostState::Draining);
        if !is_drain && self.made.iter().any(|made| back(&made)) {
            self.broken.insert(names::RETURN);
        }
    }

    /// The first VM of the queue, if it has waited for too long.
    fn oldest(&self) -> Option<(u64, VmId)> {
        let first = self.scheduler.queue().get(0)?;
        let age_max = match self.settings.discipline {
            Discipline::Backfill { age_max } => age_max,
            Discipline::Strict => 0,
        };
        (self.now - first.since >= age_max).then_some((first.since, first.vm))
    }

    /// Whether one that came later was started while the oldest waited, and waits still.
    fn judge_order(&mut self, aged: Option<(u64, VmId)>, effects: &[Effect]) {
        let Some(aged) = aged.filter(|_| aged == self.oldest()) else { return };
        let since: BTreeMap<VmId, u64> = self.scheduler.starting().collect();
        let later = |effect: &Effect| match effect {
            Effect::Start { vm, .. } => since.get(vm).is_some_and(|since| (*since, *vm) > aged),
            _ => false,
        };
        if effects.iter().any(later) {
            self.broken.insert(names::ORDER);
        }
        self.seen.insert("aged");
    }

    fn judge(&mut self) {
        let mut broken = BTreeSet::new();
        let cluster = self.scheduler.cluster();
        let mut used: ByHost = BTreeMap::new();
        let kept = self.kept.values().map(|kept| &kept.hosts);
        for (host, has) in kept.chain(self.running.values()).flatten() {
            let sum = used.entry(*host).or_default();
            *sum = sum.plus(*has);
        }
        let fits = |(total, host): (&Resources, u32)| {
            used.get(&HostId(host)).is_none_or(|used| used.fits_in(*total))
        };
        if !self.totals.iter().zip(0..).all(fits) {
            broken.insert(names::ROOM);
        }
        for (vm, hosts) in &self.running {
            let sum = hosts.values().fold(Resources::NONE, |sum, has| sum.plus(*has));
            let ledger = cluster.vm(*vm).map(|it| it.resources());
            let spec = self.live.get(vm).map(|spec| spec.needs);
            if spec != Some(sum) || ledger.is_some_and(|ledger| Some(ledger) != spec) {
                broken.insert(names::SUM);
            }
            let slices = cluster.vm(*vm).map(|it| it.slices()).unwrap_or_default();
            let slices = slices.into_iter().filter(|slice| !slice.resources.is_none());
            let slices: ByHost = slices.map(|slice| (slice.host, slice.resources)).collect();
            if !slices.is_empty() && slices != *hosts {
                broken.insert(names::BACK);
            }
        }
        let over = |at: u64| at <= self.now;
        if cluster.reservations().any(|(_, it)| it.expires().is_some_and(over)) {
            broken.insert(names::EXPIRES);
        }
        if !self.all_are_known() {
            broken.insert(names::KNOWN);
        }
        if cluster.check().is_err() {
            broken.insert(names::LEDGER);
        }
        self.broken.extend(broken);
        let longest = self.settings.limits.window.max(self.settings.limits.no_way_back);
        let now = self.now;
        self.made.retain(|(at, _)| at + longest > now);
    }

    fn all_are_known(&self) -> bool {
        let places = |vm: VmId| {
            let waits = self.scheduler.queue().iter().filter(|it| it.vm == vm).count();
            let starts = self.scheduler.starting().filter(|it| it.0 == vm).count();
            waits + starts + usize::from(self.scheduler.cluster().vm(vm).is_some())
        };
        self.live.keys().all(|vm| places(*vm) == 1)
    }
}
