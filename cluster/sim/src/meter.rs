//! What is counted while a simulation runs.

use crate::judge::Rule;
use crate::pool::Pool;
use crate::tally::{Tally, size_class};
use rustc_hash::FxHashMap;
use scheduler::cluster::{Cluster, Move};
use scheduler::fragmentation::{Fragmentation, Mix};
use scheduler::{Resources, Spec, VmId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Cores of VMs at this moment.
#[derive(Clone, Copy, Debug, Default)]
struct Now {
    used: f64,
    /// Of Aggregate VMs.
    aggregate: f64,
    /// Of these what is expected to be lost by waiting for pages.
    lost: f64,
    aggregates: f64,
    waiting: f64,
}

#[derive(Debug)]
struct Running {
    spec: Arc<Spec>,
    is_aggregate: bool,
}

/// Sums over a window of time.
#[derive(Debug)]
pub(crate) struct Meter {
    pool: Pool,
    mix: Mix,
    from: u64,
    to: u64,
    last: u64,
    now: Now,
    running: FxHashMap<VmId, Running>,
    tally: Tally,
}

impl Meter {
    pub(crate) fn new(pool: Pool) -> Self {
        Self {
            pool,
            mix: Mix::azure(),
            from: 0,
            to: u64::MAX,
            last: 0,
            now: Now::default(),
            running: FxHashMap::default(),
            tally: Tally::default(),
        }
    }

    pub(crate) fn window(&mut self, from: u64, to: u64) {
        (self.from, self.to, self.last) = (from, to, from);
    }

    fn counts(&self, at: u64) -> bool {
        (self.from..self.to).contains(&at)
    }

    /// What is so has been so since the last time.
    pub(crate) fn advance(&mut self, now: u64) {
        let now = now.min(self.to);
        if now <= self.last {
            return;
        }
        let seconds = seconds(now - self.last);
        self.last = now;
        let (sums, is) = (&mut self.tally.core_seconds, &self.now);
        sums.used += is.used * seconds;
        sums.aggregate += is.aggregate * seconds;
        sums.lost += is.lost * seconds;
        self.tally.aggregate_seconds += is.aggregates * seconds;
        self.tally.waiting_seconds += is.waiting * seconds;
    }

    pub(crate) fn comes(&mut self, spec: &Spec, at: u64) {
        self.tally.steps += 1;
        if self.counts(at) {
            self.tally.delays[size_class(spec)].vms += 1;
        }
    }

    pub(crate) fn larger(&mut self, at: u64) {
        self.tally.larger += u64::from(self.counts(at));
    }

    pub(crate) fn turned_away(&mut self, at: u64) {
        self.tally.turned_away += u64::from(self.counts(at));
    }

    pub(crate) fn waits(&mut self, queue: usize) {
        self.now.waiting = u32::try_from(queue).map_or(f64::MAX, f64::from);
    }

    /// It has come at a time, and is placed now.
    pub(crate) fn starts(&mut self, spec: &Spec, at: u64, now: u64, slices: usize) {
        if now > at {
            self.delayed(spec, at, now);
        }
        if self.counts(now) && slices > 1 {
            let slices = u64::try_from(slices).unwrap_or(u64::MAX);
            self.tally.splits += 1;
            self.tally.slices += slices;
            self.tally.slices_most = self.tally.slices_most.max(slices);
        }
    }

    /// It has waited until now.
    pub(crate) fn delayed(&mut self, spec: &Spec, at: u64, now: u64) {
        if self.counts(at) {
            let seconds = u32::try_from((now - at).div_ceil(1000)).unwrap_or(u32::MAX);
            self.tally.delays[size_class(spec)].seconds.push(seconds);
        }
    }

    pub(crate) fn runs(&mut self, now: u64, vm: VmId, spec: &Arc<Spec>) {
        self.advance(now);
        self.now.used += f64::from(spec.needs.cores);
        self.running.insert(vm, Running { spec: Arc::clone(spec), is_aggregate: false });
    }

    pub(crate) fn ends(&mut self, now: u64, vm: VmId) {
        self.is_aggregate(now, vm, false);
        let Some(it) = self.running.remove(&vm) else { return };
        self.now.used -= f64::from(it.spec.needs.cores);
    }

    /// Whether it is an Aggregate VM from now on.
    pub(crate) fn is_aggregate(&mut self, now: u64, vm: VmId, is_aggregate: bool) {
        self.advance(now);
        let Some(it) = self.running.get_mut(&vm) else { return };
        if it.is_aggregate == is_aggregate {
            return;
        }
        it.is_aggregate = is_aggregate;
        let sign = if is_aggregate { 1.0 } else { -1.0 };
        let cores = sign * f64::from(it.spec.needs.cores);
        self.now.aggregates += sign;
        self.now.aggregate += cores;
        self.now.lost += cores * f64::from(it.spec.class.stall_expected()) / 1e6;
    }

    pub(crate) fn moves(&mut self, now: u64, step: &Move) {
        if self.counts(now) {
            self.tally.moves += 1;
            self.tally.moved_vcpus += u64::from(step.resources.cores);
            self.tally.moved_units += u64::from(step.resources.memory);
        }
    }

    /// How fragmented the hosts are, how many are in use, and how few could be.
    pub(crate) fn look(&mut self, now: u64, cluster: &Cluster) {
        if !self.counts(now) {
            return;
        }
        let found = Fragmentation::of(cluster, &self.mix);
        let host = self.pool.host();
        let (mut used, mut busy) = (Resources::NONE, 0.0);
        for it in cluster.hosts() {
            let has = it.total().minus(it.free());
            used = used.plus(has);
            busy += if has.is_none() { 0.0 } else { 1.0 };
        }
        let share = |of: u32, all: u32| f64::from(of) / f64::from(all.max(1));
        let least = share(used.cores, host.cores).max(share(used.memory, host.memory));
        let looks = &mut self.tally.looks;
        looks.count += 1.0;
        looks.phi += found.phi;
        looks.fr_16 += found.fr_16;
        looks.busy_hosts += busy;
        looks.least_hosts += least;
        looks.memory += share(used.memory, host.memory) / f64::from(self.pool.hosts.max(1));
    }

    pub(crate) fn finish(mut self, broken: BTreeMap<Rule, u64>) -> Tally {
        self.tally.window_ms = self.to - self.from;
        #[expect(clippy::cast_precision_loss, reason = "cores of a pool are few")]
        let cores = self.pool.all_cores() as f64;
        self.tally.core_seconds.all = cores * seconds(self.to - self.from);
        self.tally.broken = broken;
        self.tally
    }
}

#[expect(clippy::cast_precision_loss, reason = "times of a simulation are below 2^53 ms")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}
