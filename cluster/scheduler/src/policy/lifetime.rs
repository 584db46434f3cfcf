//! Our policy: what comes together is what is worth its cost, by the age of the VM and what it was measured to wait.
//!
//! * **Young VMs are left alone.** Most end within hours, and a move for them is for nothing. Only one that waits more than
//!   its class allows is moved early.
//! * **Old VMs are looked at again and again**, not only when something ends beside them.
//! * **Any host may take all of a VM**, not only those where it has a slice: splitting and moving whole VMs together.
//! * **Slices move as a whole.** What vCPUs share within a slice stays together.
//! * **The last slice is a best fit**, so that a split leaves no new fragment where it need not.

use super::best_fit::{best_fit_on_a_node, on_one};
use super::consolidate::all_of;
use super::fragbff::on_several;
use super::refusal::refuse;
use super::split::{Order, Splitter};
use super::{Facts, Policy, Refusal};
use crate::cluster::{Cluster, Move, Slice, Traits, Vm};
use crate::cost::{Prices, stall_saved};
use crate::fragmentation::Mix;
use crate::ids::{HostId, VmId};
use crate::placement::{Decision, Rejections, Rule};
use crate::resources::Resources;
use crate::spec::Spec;
use crate::survival::{HOUR, Survival};
use crate::validate::{Candidate, of_moment, of_traits};
use std::collections::BTreeMap;

/// Consolidation by age and measured stall.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// VMs that are expected.
    pub mix: Mix,
    /// How long VMs live.
    pub survival: Survival,
    /// What moves cost.
    pub prices: Prices,
    /// Younger VMs are left alone, in milliseconds.
    pub age_min: u64,
}

impl Lifetime {
    /// For VMs as in Azure's trace.
    #[must_use]
    pub fn azure() -> Self {
        Self {
            mix: Mix::azure(),
            survival: Survival::azure(),
            prices: Prices::default(),
            age_min: 6 * HOUR,
        }
    }

    /// What some moves are worth, which bring the slices of these hosts together.
    fn worth(
        &self,
        cluster: &Cluster,
        vm: &Vm,
        facts: &Facts<'_>,
        joined: &[HostId],
        moves: &[Move],
    ) -> i64 {
        let spec = vm.spec();
        let saved = stall_saved(spec, facts.stall, joined, vm.slices().len());
        let remaining = self.survival.remaining(facts.now.saturating_sub(vm.started()));
        let holes = self.holes(cluster, moves);
        let benefit = self.prices.benefit_us(saved, spec.needs.cores, remaining, holes);
        let costs = moves.iter().map(|step| self.prices.cost_us(step, spec, facts.stall));
        self.prices.worth(benefit, costs.fold(0, u64::saturating_add))
    }

    /// Cores more that the next VM can use, after all moves.
    fn holes(&self, cluster: &Cluster, moves: &[Move]) -> i64 {
        let mut free: BTreeMap<HostId, (Resources, Resources)> = BTreeMap::new();
        for step in moves {
            for (id, comes) in [(step.from, false), (step.to, true)] {
                let now = cluster.host(id).map_or(Resources::NONE, |host| host.free());
                let after = &mut free.entry(id).or_insert((now, now)).1;
                *after =
                    if comes { after.minus(step.resources) } else { after.plus(step.resources) };
            }
        }
        let signed = |it: u64| i64::try_from(it).unwrap_or(i64::MAX);
        let falls = free.values().map(|(before, after)| {
            signed(self.mix.unusable(*before)) - signed(self.mix.unusable(*after))
        });
        let sum: i64 = falls.fold(0, i64::saturating_add);
        sum / signed(self.mix.sum().max(1))
    }
}

impl Policy for Lifetime {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        let mut rejections = Rejections::default();
        if let Some(host) = best_fit_on_a_node(cluster, spec, &mut rejections) {
            return Ok(on_one(host, spec, rejections));
        }
        let splitter =
            Splitter { cluster, spec, vm: None, slices_max: spec.slices_max, is_last_tight: true };
        on_several(&splitter, Order::MostFirst, Rule::FewestHosts, rejections)
            .ok_or_else(|| refuse(cluster, spec))
    }

    fn consolidate(&self, cluster: &Cluster, id: VmId, facts: &Facts<'_>) -> Vec<Move> {
        let Some(vm) = cluster.vm(id) else { return Vec::new() };
        let is_young = facts.now.saturating_sub(vm.started()) < self.age_min;
        if is_young && !facts.is_over_budget {
            return Vec::new();
        }
        let slices = vm.slices();
        let mut best: Option<(i64, Vec<Move>)> = None;
        for (joined, moves) in options(cluster, id, vm, &slices) {
            let worth = self.worth(cluster, vm, facts, &joined, &moves);
            if worth > best.as_ref().map_or(0, |(best, _)| *best) {
                best = Some((worth, moves));
            }
        }
        best.map(|(_, moves)| moves).unwrap_or_default()
    }

    fn revisits(&self) -> bool {
        true
    }
}

/// Which slices come together, and by which moves: all on one host, or two.
fn options(
    cluster: &Cluster,
    id: VmId,
    vm: &Vm,
    slices: &[Slice],
) -> Vec<(Vec<HostId>, Vec<Move>)> {
    let hosts: Vec<HostId> = slices.iter().map(|slice| slice.host).collect();
    let elsewhere = host_for_all(cluster, id, vm);
    let mut options = Vec::new();
    for to in hosts.iter().copied().chain(elsewhere) {
        if let Some(moves) = gathered(cluster, id, slices, to) {
            options.push((hosts.clone(), moves));
        }
    }
    for slice in slices {
        for &to in hosts.iter().filter(|to| **to != slice.host) {
            options.extend(
                all_of(cluster, id, slice, to).map(|step| (vec![slice.host, to], vec![step])),
            );
        }
    }
    options
}

/// The best fit of the VM's fabric for all of it.
fn host_for_all(cluster: &Cluster, id: VmId, vm: &Vm) -> Option<HostId> {
    let spec = vm.spec();
    let fabric = cluster.host(vm.bootstrap())?.fabric();
    let it = Candidate::slice(spec, Some(id)).with(spec.needs, &spec.devices);
    let suits = |traits: &Traits| of_traits(traits, &it).is_none();
    let mut hosts = cluster.best_fit_in(fabric, spec.needs, suits);
    hosts.find(|host| of_moment(cluster, host, &it).is_none()).map(|host| host.id())
}

/// All slices that are not there, if there is room for all of them.
fn gathered(cluster: &Cluster, vm: VmId, slices: &[Slice], to: HostId) -> Option<Vec<Move>> {
    let others: Vec<&Slice> = slices.iter().filter(|slice| slice.host != to).collect();
    let sum = others.iter().fold(Resources::NONE, |sum, slice| sum.plus(slice.resources));
    if !sum.fits_in(cluster.host(to)?.free()) {
        return None;
    }
    others.into_iter().map(|slice| all_of(cluster, vm, slice, to)).collect()
}
