//! Hosts as their agents see them, and whether the scheduler keeps its rules (decision 62). Knows nothing of the ledger, and
//! compares it with what should be there.

use rustc_hash::FxHashMap;
use scheduler::cluster::{Cluster, Move};
use scheduler::{Decision, HostId, Limits, ReservationId, Resources, Settings, Spec, VmId};
use std::collections::{BTreeMap, VecDeque};

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// I1: a running VM has what it asked for.
    Sum,
    /// I2: nothing is taken from a running VM.
    Keeps,
    /// I3: no host has more than it has room for, also while slices move.
    Room,
    /// I4: reservations expire.
    Expires,
    /// I5: moves stand still for a bounded time, and cannot be given up after the flip.
    Pause,
    /// I6: moves of a host and of a VM are few.
    Budget,
    /// I7: nothing goes back at once, unless its host is drained.
    Return,
    /// The scheduler takes what an executor may say.
    Refused,
}

/// What has expired is given back when time passes, a minute later at most.
const TICK: u64 = 60_000;

type Shares = Vec<(HostId, Resources)>;

#[derive(Debug)]
struct Kept {
    vm: VmId,
    shares: Shares,
    step: Option<Move>,
    expires: u64,
    flips: bool,
}

#[derive(Clone, Copy, Debug)]
struct Made {
    at: u64,
    from: HostId,
    to: HostId,
}

/// What agents have, and what has been broken.
#[derive(Debug)]
pub struct Judge {
    totals: Vec<Resources>,
    used: Vec<Resources>,
    running: FxHashMap<VmId, Shares>,
    kept: FxHashMap<ReservationId, Kept>,
    by_host: Vec<VecDeque<u64>>,
    by_vm: FxHashMap<VmId, VecDeque<Made>>,
    limits: Limits,
    pause_max_us: u64,
    broken: BTreeMap<Rule, u64>,
}

impl Judge {
    /// Of hosts without VMs.
    #[must_use]
    pub fn new(cluster: &Cluster, settings: Settings) -> Self {
        let totals: Vec<_> = cluster.hosts().iter().map(|host| host.total()).collect();
        Self {
            used: vec![Resources::NONE; totals.len()],
            by_host: vec![VecDeque::new(); totals.len()],
            totals,
            running: FxHashMap::default(),
            kept: FxHashMap::default(),
            by_vm: FxHashMap::default(),
            limits: settings.limits,
            pause_max_us: settings.pause_max_us,
            broken: BTreeMap::new(),
        }
    }

    /// Rules that were broken, and how often.
    #[must_use]
    pub fn broken(&self) -> &BTreeMap<Rule, u64> {
        &self.broken
    }

    fn breaks(&mut self, rule: Rule) {
        *self.broken.entry(rule).or_default() += 1;
    }

    fn must(&mut self, holds: bool, rule: Rule) {
        if !holds {
            self.breaks(rule);
        }
    }

    /// Something that may be said was not taken.
    pub fn refused(&mut self) {
        self.breaks(Rule::Refused);
    }

    fn take(&mut self, shares: &[(HostId, Resources)]) {
        for (host, resources) in shares {
            let Some(at) = index(*host).filter(|at| *at < self.used.len()) else {
                self.breaks(Rule::Room);
                continue;
            };
            self.used[at] = self.used[at].plus(*resources);
            let fits = self.used[at].fits_in(self.totals[at]);
            self.must(fits, Rule::Room);
        }
    }

    fn give(&mut self, shares: &[(HostId, Resources)]) {
        for (host, resources) in shares {
            if let Some(used) = index(*host).and_then(|at| self.used.get_mut(at)) {
                *used = used.minus(*resources);
            }
        }
    }

    /// Room is kept for a VM.
    pub fn start(
        &mut self,
        reservation: ReservationId,
        vm: VmId,
        spec: &Spec,
        decision: &Decision,
        expires: u64,
    ) {
        let shares: Shares = decision.shares.iter().map(|it| (it.host, it.resources)).collect();
        let sum = shares.iter().fold(Resources::NONE, |sum, it| sum.plus(it.1));
        self.must(sum == spec.needs, Rule::Sum);
        self.must(shares.len() <= usize::from(spec.slices_max), Rule::Sum);
        self.take(&shares);
        let kept = Kept { vm, shares, step: None, expires, flips: false };
        self.kept.insert(reservation, kept);
    }

    /// It runs.
    pub fn runs(&mut self, reservation: ReservationId, vm: VmId, now: u64) {
        let Some(kept) = self.kept.remove(&reservation) else {
            self.breaks(Rule::Expires);
            return;
        };
        self.must(now < kept.expires, Rule::Expires);
        self.must(kept.vm == vm && !self.running.contains_key(&vm), Rule::Sum);
        self.running.insert(vm, kept.shares);
    }

    /// It has ended, and what was kept for it is free.
    pub fn ends(&mut self, vm: VmId) {
        let shares = self.running.remove(&vm).unwrap_or_default();
        self.give(&shares);
        let own: Vec<_> =
            self.kept.iter().filter(|(_, it)| it.vm == vm).map(|(id, _)| *id).collect();
        for id in own {
            let shares = self.kept.remove(&id).map(|it| it.shares).unwrap_or_default();
            self.give(&shares);
        }
        self.by_vm.remove(&vm);
    }

    /// Room is kept for a slice that is to move; `times`: how long it stands still, and until when the room is kept.
    pub fn moves(
        &mut self,
        now: u64,
        reservation: ReservationId,
        step: &Move,
        times: (u64, u64),
        is_drain: bool,
    ) {
        self.must(times.0 <= self.pause_max_us, Rule::Pause);
        self.count(now, step, is_drain);
        let has = |shares: &Shares| {
            let of_host = shares.iter().filter(|it| it.0 == step.from);
            let sum = of_host.fold(Resources::NONE, |sum, it| sum.plus(it.1));
            step.resources.fits_in(sum)
        };
        let is_there = self.running.get(&step.vm).is_some_and(has);
        self.must(is_there, Rule::Keeps);
        let shares = vec![(step.to, step.resources)];
        self.take(&shares);
        let step = Some(step.clone());
        let vm = step.as_ref().map_or(VmId(0), |step| step.vm);
        let kept = Kept { vm, shares, step, expires: times.1, flips: false };
        self.kept.insert(reservation, kept);
    }

    fn count(&mut self, now: u64, step: &Move, is_drain: bool) {
        let limits = self.limits;
        let mut few = true;
        for host in [step.from, step.to] {
            let Some(made) = index(host).and_then(|at| self.by_host.get_mut(at)) else { continue };
            while made.front().is_some_and(|at| at.saturating_add(limits.window) <= now) {
                made.pop_front();
            }
            made.push_back(now);
            few &= is_few(made.len(), limits.moves_per_host);
        }
        let made = self.by_vm.entry(step.vm).or_default();
        let longest = limits.window.max(limits.no_way_back);
        while made.front().is_some_and(|it| it.at.saturating_add(longest) <= now) {
            made.pop_front();
        }
        let back = |it: &Made| {
            let is_recent = it.at.saturating_add(limits.no_way_back) > now;
            is_recent && (it.from, it.to) == (step.to, step.from)
        };
        let returns = !is_drain && made.iter().any(back);
        made.push_back(Made { at: now, from: step.from, to: step.to });
        let recent = made.iter().filter(|it| it.at.saturating_add(limits.window) > now).count();
        few &= is_few(recent, limits.moves_per_vm);
        self.must(few, Rule::Budget);
        self.must(!returns, Rule::Return);
    }

    /// The location table flips.
    pub fn flips(&mut self, reservation: ReservationId, now: u64) {
        let in_time = self.kept.get_mut(&reservation).is_some_and(|kept| {
            let in_time = now < kept.expires && !kept.flips;
            kept.flips = true;
            in_time
        });
        self.must(in_time, Rule::Expires);
    }

    /// The slice is at its new place, and nothing of it at the former one.
    pub fn flipped(&mut self, reservation: ReservationId) {
        // Its VM may have ended.
        let Some(kept) = self.kept.remove(&reservation) else { return };
        self.must(kept.flips, Rule::Pause);
        let (Some(step), Some(shares)) = (kept.step, self.running.get_mut(&kept.vm)) else {
            return;
        };
        let at = shares.iter().position(|it| it.0 == step.from);
        if let Some(at) = at {
            shares[at].1 = shares[at].1.minus(step.resources);
        }
        match shares.iter_mut().find(|it| it.0 == step.to) {
            Some(it) => it.1 = it.1.plus(step.resources),
            None => shares.push((step.to, step.resources)),
        }
        shares.retain(|it| !it.1.is_none());
        self.give(&[(step.from, step.resources)]);
    }

    /// The room is given back.
    pub fn expires(&mut self, reservation: ReservationId) {
        let Some(kept) = self.kept.remove(&reservation) else { return };
        self.must(!kept.flips, Rule::Pause);
        self.give(&kept.shares);
    }

    /// The ledger says the same, and nothing is kept for longer than it may be.
    pub fn compare(&mut self, cluster: &Cluster, now: u64) {
        let mut count = 0;
        let (mut sums, mut same) = (true, true);
        for (id, vm) in cluster.vms() {
            count += 1;
            sums &= vm.resources() == vm.spec().needs;
            let mut slices: Shares =
                vm.slices().into_iter().map(|it| (it.host, it.resources)).collect();
            let mut own = self.running.get(&id).cloned().unwrap_or_default();
            slices.sort_unstable_by_key(|it| it.0);
            own.sort_unstable_by_key(|it| it.0);
            same &= slices == own;
        }
        self.must(sums, Rule::Sum);
        self.must(same && count == self.running.len(), Rule::Keeps);
        let long = |at: u64| at.saturating_add(TICK) < now;
        let is_kept = cluster.reservations().any(|(_, it)| it.expires().is_some_and(long));
        self.must(!is_kept, Rule::Expires);
        self.must(cluster.check().is_ok(), Rule::Room);
    }
}

fn index(host: HostId) -> Option<usize> {
    usize::try_from(host.0).ok()
}

fn is_few(count: usize, most: u32) -> bool {
    u32::try_from(count).is_ok_and(|count| count <= most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use scheduler::{Class, Share};

    const HOUR: u64 = 3_600_000;

    fn judge() -> Judge {
        let pool = Pool { hosts: 3, cores: 8, gib: 8, fabric: 3, domain: 3 };
        Judge::new(&pool.cluster().unwrap(), Settings::default())
    }

    fn decision(shares: &[(u32, u32)]) -> Decision {
        let share = |(host, cores): &(u32, u32)| Share {
            host: HostId(*host),
            resources: Resources::new(*cores, *cores),
            devices: Vec::new(),
        };
        Decision {
            shares: shares.iter().map(share).collect(),
            rule: scheduler::Rule::BestFit,
            rejected: Vec::new(),
            rejected_count: 0,
            basis: Vec::new(),
        }
    }

    fn start(judge: &mut Judge, vm: u32, cores: u32, shares: &[(u32, u32)]) {
        let spec = Spec::new(Resources::new(cores, cores), Class::Default);
        let id = ReservationId(u64::from(vm));
        judge.start(id, VmId(vm), &spec, &decision(shares), 30_000);
        judge.runs(id, VmId(vm), 1000);
    }

    fn step(vm: u32, from: u32, to: u32, cores: u32) -> Move {
        let (from, to) = (HostId(from), HostId(to));
        let resources = Resources::new(cores, cores);
        Move { vm: VmId(vm), from, to, resources, devices: Vec::new() }
    }

    fn shift(judge: &mut Judge, now: u64, id: u64, step: &Move) {
        let id = ReservationId(id);
        judge.moves(now, id, step, (172, now + 30_000), false);
        judge.flips(id, now + 1000);
        judge.flipped(id);
    }

    fn rules(judge: &Judge) -> Vec<Rule> {
        judge.broken().keys().copied().collect()
    }

    #[test]
    fn what_is_right_breaks_nothing() {
        let mut it = judge();
        start(&mut it, 0, 6, &[(0, 4), (1, 2)]);
        shift(&mut it, 2000, 10, &step(0, 1, 0, 2));
        start(&mut it, 1, 8, &[(1, 8)]);
        it.ends(VmId(0));
        start(&mut it, 2, 8, &[(0, 8)]);

        assert_eq!(rules(&it), []);
    }

    #[test]
    fn host_that_is_given_away_twice_is_found() {
        let mut it = judge();
        start(&mut it, 0, 6, &[(0, 6)]);
        start(&mut it, 1, 4, &[(0, 4)]);

        assert_eq!(rules(&it), [Rule::Room]);
    }

    #[test]
    fn vm_that_gets_less_is_found() {
        let mut it = judge();
        start(&mut it, 0, 6, &[(0, 4)]);

        assert_eq!(rules(&it), [Rule::Sum]);
    }

    #[test]
    fn late_start_and_late_flip_are_found() {
        let mut it = judge();
        let spec = Spec::new(Resources::new(1, 1), Class::Default);
        it.start(ReservationId(0), VmId(0), &spec, &decision(&[(0, 1)]), 30_000);
        it.runs(ReservationId(0), VmId(0), 30_000);
        it.moves(40_000, ReservationId(1), &step(0, 0, 1, 1), (86, 70_000), false);
        it.flips(ReservationId(1), 70_000);

        assert_eq!(it.broken().get(&Rule::Expires), Some(&2));
    }

    #[test]
    fn long_pause_too_many_moves_and_a_way_back_are_found() {
        let mut it = judge();
        start(&mut it, 0, 1, &[(0, 1)]);
        it.moves(2000, ReservationId(1), &step(0, 0, 1, 1), (10_000_001, 60_000), false);
        it.flips(ReservationId(1), 3000);
        it.flipped(ReservationId(1));
        shift(&mut it, 4000, 2, &step(0, 1, 0, 1));
        assert_eq!(rules(&it), [Rule::Pause, Rule::Return]);

        let mut it = judge();
        start(&mut it, 0, 1, &[(0, 1)]);
        for (round, id) in (0..9).zip(10..) {
            shift(&mut it, 2000, id, &step(0, round % 3, (round + 1) % 3, 1));
        }
        assert_eq!(rules(&it), [Rule::Budget]);
        shift(&mut it, 2000 + 2 * HOUR, 99, &step(0, 0, 1, 1));
        assert_eq!(it.broken().get(&Rule::Budget), Some(&1), "an hour later it may move again");
    }

    #[test]
    fn vm_that_the_ledger_has_lost_is_found() {
        let mut it = judge();
        let pool = Pool { hosts: 3, cores: 8, gib: 8, fabric: 3, domain: 3 };
        start(&mut it, 0, 1, &[(0, 1)]);
        it.compare(&pool.cluster().unwrap(), 5000);

        assert_eq!(rules(&it), [Rule::Keeps]);
    }
}
