//! How often things may move: so many moves of a host and of a VM in a window of time, no way back for a while, and a pause after a
//! move that has failed, which doubles with each that follows.

use crate::cluster::Move;
use crate::ids::{HostId, VmId};
use crate::planted::{Planted, PlantedBug};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// The limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// In so many milliseconds...
    pub window: u64,
    /// ... a host takes part in at most so many moves, ...
    pub moves_per_host: u32,
    /// ... and a VM makes at most so many.
    pub moves_per_vm: u32,
    /// What has moved does not go back for so long, in milliseconds, unless the host is drained.
    pub no_way_back: u64,
    /// After a move of a VM has failed nothing of it moves for so long, in milliseconds, and twice as long after each that follows, ...
    pub rest: u64,
    /// ... up to so long. A VM of which nothing has failed for so long after that begins anew.
    pub rest_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let hour = 3_600_000;
        let (rest, rest_max) = (5_000, 600_000);
        Self {
            window: hour,
            moves_per_host: 32,
            moves_per_vm: 8,
            no_way_back: hour,
            rest,
            rest_max,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Made {
    at: u64,
    from: HostId,
    to: HostId,
}

/// After moves that have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rest {
    /// How many have failed, one after another.
    failed: u32,
    until: u64,
}

/// Moves of the last while.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    hosts: BTreeMap<HostId, VecDeque<u64>>,
    vms: BTreeMap<VmId, VecDeque<Made>>,
    rests: BTreeMap<VmId, Rest>,
}

/// So much time has passed since then.
const fn is_over(at: u64, time: u64, now: u64) -> bool {
    at.saturating_add(time) <= now
}

impl Budget {
    /// Whether all of these may be made now.
    pub(crate) fn allows(
        &self,
        now: u64,
        moves: &[Move],
        is_drain: bool,
        limits: &Limits,
        planted: Planted,
    ) -> bool {
        let recent = |at: u64| at.saturating_add(limits.window) > now;
        let count = |hits: usize| u32::try_from(hits).unwrap_or(u32::MAX);
        let host_has_room = |host: HostId| {
            let made = self.hosts.get(&host).into_iter().flatten().filter(|at| recent(**at));
            let planned = moves.iter().filter(|step| step.from == host || step.to == host);
            count(made.count() + planned.count()) <= limits.moves_per_host
                || planted.has(PlantedBug::HostBudgetIgnored)
        };
        let vm_has_room = |vm: VmId| {
            let made = self.vms.get(&vm).into_iter().flatten().filter(|made| recent(made.at));
            let planned = moves.iter().filter(|step| step.vm == vm);
            count(made.count() + planned.count()) <= limits.moves_per_vm
                || planted.has(PlantedBug::VmBudgetIgnored)
        };
        let rests = |vm: VmId| {
            self.rests_until(vm).is_some_and(|until| until > now)
                && !planted.has(PlantedBug::TriedAtOnce)
        };
        moves.iter().all(|step| {
            !rests(step.vm)
                && host_has_room(step.from)
                && host_has_room(step.to)
                && vm_has_room(step.vm)
                && (is_drain || !self.goes_back(now, step, limits, planted))
        })
    }

    fn goes_back(&self, now: u64, step: &Move, limits: &Limits, planted: Planted) -> bool {
        let back = |made: &Made| {
            made.at.saturating_add(limits.no_way_back) > now
                && (made.from, made.to) == (step.to, step.from)
        };
        let goes = self.vms.get(&step.vm).is_some_and(|made| made.iter().any(back));
        goes && !planted.has(PlantedBug::MovesBack)
    }

    /// It is made now.
    pub(crate) fn note(&mut self, now: u64, step: &Move) {
        for host in [step.from, step.to] {
            self.hosts.entry(host).or_default().push_back(now);
        }
        let made = Made { at: now, from: step.from, to: step.to };
        self.vms.entry(step.vm).or_default().push_back(made);
    }

    /// A move of this VM has come to nothing.
    pub(crate) fn failed(&mut self, now: u64, vm: VmId, limits: &Limits) {
        let last = self.rests.get(&vm).filter(|rest| !is_over(rest.until, limits.rest_max, now));
        let failed = last.map_or(0, |rest| rest.failed);
        let time = limits.rest.saturating_mul(1 << failed.min(32)).min(limits.rest_max);
        let rest = Rest { failed: failed.saturating_add(1), until: now.saturating_add(time) };
        self.rests.insert(vm, rest);
    }

    /// A move of this VM is done.
    pub(crate) fn done(&mut self, vm: VmId) {
        self.rests.remove(&vm);
    }

    /// Nothing of this VM moves before.
    pub(crate) fn rests_until(&self, vm: VmId) -> Option<u64> {
        self.rests.get(&vm).map(|rest| rest.until)
    }

    /// Forgets what counts no more. What is left is bounded by the limits.
    pub(crate) fn pass(&mut self, now: u64, limits: &Limits) {
        self.hosts.retain(|_, made| {
            made.retain(|at| !is_over(*at, limits.window, now));
            !made.is_empty()
        });
        let longer = limits.window.max(limits.no_way_back);
        self.vms.retain(|_, made| {
            made.retain(|made| !is_over(made.at, longer, now));
            !made.is_empty()
        });
        self.rests.retain(|_, rest| !is_over(rest.until, limits.rest_max, now));
    }

    pub(crate) fn forget(&mut self, vm: VmId) {
        self.vms.remove(&vm);
        self.rests.remove(&vm);
    }
}
